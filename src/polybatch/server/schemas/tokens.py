"""The bodies of POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from polybatch.server.schemas.base import Body
from polybatch.server.schemas.completions import TokenId


class TokenizeBody(Body):
    """add_special_tokens: as for a prompt of /v1/completions, which is the default."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """tokens: ids of the program's vocabulary."""

    tokens: Annotated[list[TokenId], Field(max_length=1_000_000)]
    model: str | None = None
