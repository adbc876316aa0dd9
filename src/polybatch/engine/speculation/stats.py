"""Counts of speculative decoding, of one request or of a whole engine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SpeculationStats:
    """A snapshot.

    drafted_at, accepted_at: by position in the proposal, how many drafted tokens were verified, and how many of them
        became part of an answer.
    steps: decode steps by (batch_size, K) of the specialization that ran; of a request, those it took part in.
    """

    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    steps: Mapping[tuple[int, int], int]

    @property
    def drafted(self) -> int:
        """Drafted tokens verified."""
        return sum(self.drafted_at)

    @property
    def accepted(self) -> int:
        """Drafted tokens that became part of an answer."""
        return sum(self.accepted_at)

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_at(self) -> tuple[float, ...]:
        """Accepted over drafted by position in the proposal."""
        return tuple(accepted / drafted for accepted, drafted in zip(self.accepted_at, self.drafted_at, strict=True))


class SpeculationTally:
    """Counts on the engine thread; ``snapshot`` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drafted: list[int] = []
        self._accepted: list[int] = []
        self._steps: Counter[tuple[int, int]] = Counter()

    def step(self, batch_size: int, drafted_tokens: int) -> None:
        """A decode step ran at (batch_size, K)."""
        with self._lock:
            self._steps[batch_size, drafted_tokens] += 1

    def proposal(self, drafted: int, accepted: int) -> None:
        """The first ``accepted`` of ``drafted`` tokens were accepted."""
        with self._lock:
            missing = drafted - len(self._drafted)
            self._drafted += [0] * missing
            self._accepted += [0] * missing
            for position in range(drafted):
                self._drafted[position] += 1
                self._accepted[position] += position < accepted

    def snapshot(self) -> SpeculationStats:
        with self._lock:
            return SpeculationStats(tuple(self._drafted), tuple(self._accepted), dict(self._steps))
