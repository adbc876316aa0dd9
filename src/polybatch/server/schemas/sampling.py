"""Fields that completions and chat completions have in common, and what they become for the engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from polybatch.server.schemas.base import Body

INT64 = 2**63
MAX_CHOICES = 128
StopText = Annotated[str, Field(min_length=1, max_length=256)]


class StreamOptions(Body):
    """include_usage: one more chunk at the end, with the usage of the whole request and no choices."""

    include_usage: bool | None = None


class JsonSchema(Body):
    """``schema`` is a JSON schema; without one any JSON object will do."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """text: no constraint. json_object: any JSON object. json_schema: JSON of the schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is given with type json_schema, and only then")
        return self


class StructuredOutputs(Body):
    """Exactly one of: a regular expression, a grammar (llguidance's Lark), strings to choose from, a JSON schema."""

    regex: Annotated[str, Field(min_length=1)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    json_object: Literal[True] | None = None

    @model_validator(mode="after")
    def _check(self) -> StructuredOutputs:
        if len(self.given) != 1:
            raise ValueError("give exactly one of regex, grammar, choice, json and json_object")
        return self

    @property
    def given(self) -> dict[str, Any]:
        """What was given, by name."""
        fields = {
            "regex": self.regex,
            "grammar": self.grammar,
            "choice": self.choice,
            "json": self.json_,
            "json_object": self.json_object,
        }
        return {name: value for name, value in fields.items() if value is not None}


class SamplingBody(Body):
    """How tokens are chosen and when an answer ends; OpenAI's fields, then those that vLLM adds."""

    model: Annotated[str, Field(max_length=512)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=1024),
        ]
        | None
    ) = None
    max_tokens: Annotated[int, Field(ge=1, lt=INT64)] | None = None
    response_format: ResponseFormat | None = None
    user: Annotated[str, Field(max_length=256)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=INT64)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> SamplingBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is allowed only with stream=true")
        if self.structured_outputs is not None and self.response_format is not None:
            raise ValueError("give response_format or structured_outputs, not both")
        return self

    @property
    def choices(self) -> int:
        """Answers per prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
