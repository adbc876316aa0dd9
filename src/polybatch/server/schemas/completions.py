"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from polybatch.server.schemas.sampling import INT64, SamplingBody

TokenId = Annotated[int, Field(ge=0, lt=INT64)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]


class CompletionBody(SamplingBody):
    """prompt: a string, strings, token ids, or lists of token ids; every prompt gets ``n`` answers."""

    prompt: str | TokenIds | Annotated[list[str], Field(min_length=1)] | Annotated[list[TokenIds], Field(min_length=1)]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: None = None

    @model_validator(mode="after")
    def _check_fields(self) -> CompletionBody:
        if self.echo and self.logprobs is not None:
            raise ValueError("logprobs of the prompt are not computed: give echo or logprobs, not both")
        if self.best_of is not None and self.best_of != self.choices:
            raise ValueError("best_of must equal n: answers are not ranked")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts as a list."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)
