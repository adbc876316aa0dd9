"""Where one answer is in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from polybatch.engine.protocols import Logits
from polybatch.errors import InvalidGrammarError

_MAX_MESSAGE = 300


class Matcher(Protocol):
    """The part of llguidance's ``LLMatcher`` that is used: a parser's state, which moves on token by token."""

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def validate_tokens(self, tokens: list[int]) -> int: ...
    def is_stopped(self) -> bool: ...
    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...


class Constraint:
    """The tokens that may come next, and how far the answer is; used from the engine's thread alone.

    It moves on by accepted tokens only, so its state is that of reading the answer so far from the start. Raises
    InvalidGrammarError when llguidance gives up on the grammar, as it does on one that takes too long to follow.
    """

    def __init__(self, matcher: Matcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._bits = np.zeros(-(-vocab_size // 32), np.int32)

    @property
    def complete(self) -> bool:
        """Whether nothing but EOS may follow."""
        return self._matcher.is_stopped()

    def mask(self, logits: Logits) -> None:
        """Set the logits [vocab] of tokens that may not come next to -inf, in place."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        allowed = np.unpackbits(self._bits.view(np.uint8), count=self._vocab_size, bitorder="little")
        known = logits[: self._vocab_size]
        np.copyto(known, -np.inf, where=allowed[: known.size] == 0)
        logits[self._vocab_size :] = -np.inf

    def accept(self, token_id: int) -> None:
        """The answer goes on with a token that the mask allowed."""
        self._matcher.consume_token(token_id)
        self._check()

    def valid_prefix(self, token_ids: Sequence[int]) -> int:
        """How many of the tokens, from the first on, may come next one after the other."""
        return self._matcher.validate_tokens(list(token_ids))

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidGrammarError(f"the grammar cannot be followed any further: {brief(self._matcher.get_error())}")


def brief(message: str) -> str:
    """One line of what llguidance says, without the parser's state and the grammar."""
    said = " ".join(message.split("\n<")[0].split())
    half = _MAX_MESSAGE // 2  # a long grammar is quoted in the middle, and the reason comes last
    return said if len(said) <= _MAX_MESSAGE else f"{said[:half]} ... {said[-half:]}"
