"""What is served: an engine, its tokenizer, and the limits that requests are checked against."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from polybatch.engine import Engine
from polybatch.engine.checks import check_text
from polybatch.server.errors import ApiError, bad_request
from polybatch.server.logprobs import TokenTexts


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A loaded program. about: what /version and the page say of it."""

    name: str
    engine: Engine
    tokenizer: Any
    max_prompt_len: int
    ctx_len: int
    vocab_size: int | None
    slots: int
    about: Mapping[str, Any] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def token_texts(self) -> TokenTexts:
        """What single tokens look like."""
        return TokenTexts(self.require_tokenizer("logprobs"))

    @cached_property
    def _longest_token(self) -> int:
        return max((len(token) for token in self.tokenizer.get_vocab()), default=1)

    @property
    def is_encoding(self) -> bool:
        """Whether another thread is at ``encode``, which would have to be waited for."""
        return self._lock.locked()

    def check_length(self, text: str, param: str) -> None:
        """400 for a text that is too long for a prompt whatever its tokens are: nobody should wait for those."""
        least = len(text) // (2 * self._longest_token)  # twice: a tokenizer may drop or join characters
        if least > self.max_prompt_len:
            raise self._too_long(f"at least {least}", param)

    def _too_long(self, tokens: str, param: str) -> ApiError:
        return bad_request(
            f"{param}: the prompt has {tokens} tokens, and this program takes at most {self.max_prompt_len}",
            param,
            "context_length_exceeded",
        )

    def encode(self, text: str, param: str, *, special: bool = True) -> list[int]:
        """Token ids of a text, of any number. 400 for text that UTF-8 cannot encode."""
        tokenizer = self.require_tokenizer(param)
        try:
            check_text(param, text)
        except ValueError as error:
            raise bad_request(str(error), param) from error
        with self._lock:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=special)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        text: str = self.require_tokenizer("tokens").decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def require_tokenizer(self, param: str) -> Any:
        if self.tokenizer is None:
            raise bad_request(f"{param}: this program has no tokenizer; give token ids to /v1/completions", param)
        return self.tokenizer

    def check_prompt(self, token_ids: Sequence[int], param: str) -> None:
        """400 for an empty prompt, one that is too long, or ids outside the vocabulary."""
        if not token_ids:
            raise bad_request(f"{param}: the prompt has no tokens", param)
        if len(token_ids) > self.max_prompt_len:
            raise self._too_long(str(len(token_ids)), param)
        self.check_ids(token_ids, param)

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """400 for an id outside the vocabulary."""
        if self.vocab_size is not None and token_ids and max(token_ids) >= self.vocab_size:
            raise bad_request(
                f"{param}: token id {max(token_ids)} is out of the vocabulary of {self.vocab_size} tokens", param
            )

    def check_name(self, name: str | None) -> None:
        """404 unless the request names this model or none."""
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"there is no model {name!r} here; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )
