"""Latencies of requests, taken on the engine's thread: a few list operations per token and no locks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

from polybatch.engine import Completion

_TO_FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_BETWEEN = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    1.0,
    2.5,
)
_WHOLE = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 600.0)
_LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Histogram:
    """Counts by bucket. Written on one thread; a reader of another may miss the observation being made."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """``count`` observations of ``value``."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def cumulative(self) -> list[tuple[str, float]]:
        """Upper bound and count of observations at or below it, as Prometheus wants them."""
        total, rows = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), list(self.counts), strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


class Latencies:
    """Histograms over all requests, in seconds and tokens."""

    def __init__(self) -> None:
        self.to_first_token = Histogram(_TO_FIRST)
        self.between_tokens = Histogram(_BETWEEN)
        self.whole_request = Histogram(_WHOLE)
        self.prompt_tokens = Histogram(_LENGTHS)
        self.generated_tokens = Histogram(_LENGTHS)

    def clock(self, arrived: float) -> ChoiceClock:
        """Times one choice of a request that arrived then (``time.perf_counter``)."""
        return ChoiceClock(self, arrived)


class ChoiceClock:
    """When the tokens of one choice came."""

    __slots__ = ("_all", "_arrived", "_last")

    def __init__(self, latencies: Latencies, arrived: float) -> None:
        self._all = latencies
        self._arrived = arrived
        self._last = 0.0

    def tokens(self, count: int) -> None:
        """A step gave ``count`` tokens; the time since the last step is shared by them, as they come together."""
        now = time.perf_counter()
        if self._last:
            self._all.between_tokens.observe((now - self._last) / count, count)
        else:
            self._all.to_first_token.observe(now - self._arrived)
        self._last = now

    def end(self, completion: Completion) -> None:
        """The choice is complete."""
        self._all.whole_request.observe(time.perf_counter() - self._arrived)
        self._all.prompt_tokens.observe(len(completion.prompt_token_ids))
        self._all.generated_tokens.observe(len(completion.token_ids))
