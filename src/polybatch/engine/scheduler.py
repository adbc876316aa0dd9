"""Which tokens the next step runs: pure policy over plain values, with no clock, no arrays and no randomness.

The caller repeats: ``plan()``, run the rows, ``advance()`` each row that ran, ``remove()`` each request that ended.
The same calls in the same order always give the same plans.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from polybatch.engine.prefixes import PrefixReuse, SlotCopy
from polybatch.engine.slots import SlotAllocator


@dataclass(frozen=True)
class PlannedRow:
    """Tokens ``start .. start+count-1`` (positions in the sequence) of one request, for one slot."""

    request_id: int
    slot: int
    start: int
    count: int


@dataclass(frozen=True)
class StepPlan:
    """One prefill chunk, or one decode step over every decoding sequence in slot order; before it, the copies."""

    phase: Literal["prefill", "decode"]
    rows: tuple[PlannedRow, ...]
    copies: tuple[SlotCopy, ...] = ()


@dataclass
class LiveRequest:
    """A request that holds a slot: ``cached_tokens`` of its tokens are in the cache."""

    request_id: int
    slot: int
    prompt_tokens: int
    cached_tokens: int = 0
    began: bool = False

    @property
    def decoding(self) -> bool:
        return self.cached_tokens >= self.prompt_tokens


class Scheduler:
    """First come, first served admission to slots; prefill in chunks, interleaved with decode.

    While anything is decoding, at most one chunk runs between two decode steps; otherwise chunks run back to back.
    With ``continuous=False`` newcomers wait until every slot is free, and one chunk serves all prompts at once.
    With ``prefixes`` (continuous only) a request starts behind what its slot, or another, holds of its prompt. What
    others hold is looked up when its first chunk is due, so requests that come together share what the first has run.
    """

    def __init__(
        self,
        slot_count: int,
        prefill_seq_len: int,
        *,
        continuous: bool = True,
        prefixes: PrefixReuse | None = None,
    ) -> None:
        self._slots = SlotAllocator(slot_count)
        self._prefill_seq_len = prefill_seq_len
        self._continuous = continuous
        self._prefixes = prefixes if continuous else None
        self._waiting: OrderedDict[int, int] = OrderedDict()  # prompt tokens; either end and any key leave in O(1)
        self._live: dict[int, LiveRequest] = {}
        self._occupants: list[LiveRequest | None] = [None] * slot_count
        self._chunk_since_decode = False

    @property
    def live_count(self) -> int:
        """Sequences that hold a slot."""
        return len(self._live)

    @property
    def waiting_count(self) -> int:
        """Requests without a slot yet."""
        return len(self._waiting)

    @property
    def occupants(self) -> tuple[LiveRequest | None, ...]:
        """Who holds each slot. Another thread may read it: each entry is right, if not all of the same moment."""
        return tuple(self._occupants)

    @property
    def held_slots(self) -> frozenset[int]:
        """The slots of the live sequences."""
        return self._slots.held

    def kept_tokens(self, slot: int) -> int:
        """Tokens that a free slot keeps for whoever begins with them."""
        return 0 if self._prefixes is None else self._prefixes.held(slot)

    def add(self, request_id: int, prompt_tokens: int) -> None:
        """Queue a request of ``prompt_tokens`` >= 1 tokens."""
        self._waiting[request_id] = prompt_tokens

    def plan(self) -> StepPlan | None:
        """The next step, to be run now; None when no request is live or waiting."""
        self._admit()
        prefilling = [live for live in self._live.values() if not live.decoding]
        decoding = [live for live in self._occupants if live is not None and live.decoding]
        if prefilling and not (decoding and self._chunk_since_decode):
            self._chunk_since_decode = True
            return self._prefill(prefilling)
        if decoding:
            self._chunk_since_decode = False
            rows = (PlannedRow(live.request_id, live.slot, live.cached_tokens, 1) for live in decoding)
            return StepPlan("decode", tuple(rows))
        return None

    def advance(self, request_id: int, tokens: int) -> bool:
        """Record that ``tokens`` more tokens of a request are cached; True once its whole prompt is."""
        live = self._live[request_id]
        live.cached_tokens += tokens
        return live.decoding

    def remove(self, request_id: int, *, failed: bool = False) -> None:
        """Forget a request, waiting or live; its slot is free at once. An unknown request is no error.

        failed: what the slot holds cannot be relied on.
        """
        live = self._live.pop(request_id, None)
        if live is None:
            self._waiting.pop(request_id, None)
            return
        self._slots.free(live.slot)
        self._occupants[live.slot] = None
        if self._prefixes is not None and failed:
            self._prefixes.forget(live.slot)
        elif self._prefixes is not None:
            self._prefixes.note(request_id, live.slot, live.cached_tokens)
            self._prefixes.leave(live.slot)

    def _admit(self) -> None:
        if not self._continuous and self._live:
            return
        if self._waiting and self._slots.free_count:
            self._note_live()
        while self._waiting and self._slots.free_count:
            request_id, prompt_tokens = self._waiting.popitem(last=False)
            slot, kept = None, 0
            if self._prefixes is not None:
                slot, kept = self._prefixes.choose(request_id, prompt_tokens, self._slots.free_slots)
            live = LiveRequest(request_id, self._slots.allocate(slot), prompt_tokens, kept)
            self._live[request_id] = self._occupants[live.slot] = live

    def _prefill(self, prefilling: list[LiveRequest]) -> StepPlan:
        chosen = prefilling[:1] if self._continuous else sorted(prefilling, key=lambda live: live.slot)
        copies = tuple(copy for live in chosen if (copy := self._begin(live)) is not None)
        return StepPlan("prefill", tuple(self._chunk(live) for live in chosen), copies)

    def _begin(self, live: LiveRequest) -> SlotCopy | None:
        """The copy to make before the first chunk of a request."""
        began, live.began = live.began, True
        if began or self._prefixes is None:
            return None
        self._note_live()
        copy = self._prefixes.copy(live.request_id, live.prompt_tokens, live.slot, live.cached_tokens)
        if copy is not None:
            live.cached_tokens = copy.positions
        return copy

    def _note_live(self) -> None:
        if self._prefixes is not None:
            for live in self._live.values():
                self._prefixes.note(live.request_id, live.slot, live.cached_tokens)

    def _chunk(self, live: LiveRequest) -> PlannedRow:
        count = min(self._prefill_seq_len, live.prompt_tokens - live.cached_tokens)
        return PlannedRow(live.request_id, live.slot, live.cached_tokens, count)
