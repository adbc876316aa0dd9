"""Prompts that begin as what a slot holds: such a beginning need not be run again.

Pure policy over plain values, as the scheduler is. A slot keeps what it holds after its sequence has ended, until
another sequence needs the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FEWEST_COPIED = 8
"""To copy fewer tokens than this costs about what running them in a prefill chunk does."""

TokenSource = Callable[[int, int, int], Sequence[int]]
"""(request_id, start, count) -> token ids at positions ``start .. start+count-1`` of a live or waiting request."""


@dataclass(frozen=True)
class SlotCopy:
    """The first ``positions`` positions of slot ``source`` are to be copied to slot ``target``, for a request."""

    request_id: int
    source: int
    target: int
    positions: int


class PrefixReuse:
    """What the slots hold. For each: positions ``0 .. length-1`` of the cache are those of the tokens noted here.

    copies: whether positions can be copied from slot to slot; otherwise a prompt starts from a free slot or not at all.
    """

    def __init__(self, slots: int, ctx_len: int, tokens: TokenSource, *, copies: bool) -> None:
        self._source = tokens
        self._copies = copies
        self._tokens = np.zeros((slots, ctx_len), np.int32)
        self._lengths = np.zeros(slots, np.int64)
        self._last_used = [0] * slots
        self._uses = 0

    def choose(self, request_id: int, prompt_tokens: int, free: Collection[int]) -> tuple[int, int]:
        """The slot for a request, of one or more free ones, and how many tokens of its prompt it holds already.

        That is the slot that holds most of the prompt, if that is at least half of what it holds or cannot be copied.
        Otherwise the slot that was left alone for longest, so that the former serves whoever comes back.
        """
        found = self._matches(request_id, prompt_tokens)
        best = max(free, key=lambda slot: (found[slot], -self._lengths[slot], -self._last_used[slot], -slot))
        oldest = min(free, key=lambda slot: (self._last_used[slot], slot))
        worth = found[best] > 0 and (not self._copies or 2 * found[best] >= self._lengths[best])
        slot = best if worth else oldest
        self._lengths[slot] = found[slot]
        return slot, int(found[slot])

    def copy(self, request_id: int, prompt_tokens: int, slot: int, cached: int) -> SlotCopy | None:
        """The copy that saves a request in ``slot``, with ``cached`` tokens, most of its prompt; to be made at once."""
        if not self._copies:
            return None
        found = self._matches(request_id, prompt_tokens)
        source = int(found.argmax())
        positions = int(found[source])
        if positions - cached < _FEWEST_COPIED:
            return None
        self._tokens[slot, :positions] = self._tokens[source, :positions]
        self._lengths[slot] = positions
        return SlotCopy(request_id, source, slot, positions)

    def note(self, request_id: int, slot: int, cached: int) -> None:
        """``slot`` holds ``cached`` tokens of a live request by now."""
        known = int(self._lengths[slot])
        if cached > known:
            self._tokens[slot, known:cached] = self._source(request_id, known, cached - known)
            self._lengths[slot] = cached

    def held(self, slot: int) -> int:
        """How many tokens ``slot`` holds, as far as is noted."""
        return int(self._lengths[slot])

    def leave(self, slot: int) -> None:
        """The sequence in ``slot`` has ended."""
        self._uses += 1
        self._last_used[slot] = self._uses

    def forget(self, slot: int) -> None:
        """What ``slot`` holds is not known any more."""
        self._lengths[slot] = self._last_used[slot] = 0

    def _matches(self, request_id: int, prompt_tokens: int) -> NDArray[np.int64]:
        """For each slot, how many tokens of the prompt it holds; never the last, whose logits are wanted."""
        wanted = np.array(self._source(request_id, 0, prompt_tokens - 1), np.int32)
        if wanted.size == 0:
            return np.zeros_like(self._lengths)
        same = self._tokens[:, : wanted.size] == wanted
        found = np.where(same.all(axis=1), wanted.size, same.argmin(axis=1))
        return np.minimum(found, self._lengths)
