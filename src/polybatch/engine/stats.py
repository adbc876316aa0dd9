"""What the engine has done: steps per specialization, requests, tokens. Times are milliseconds of wall clock."""

from __future__ import annotations

import statistics
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from polybatch.engine.speculation.stats import SpeculationStats, SpeculationTally

_RECENT_STEPS = 1024  # step times kept per specialization, so that a long-lived engine does not grow


@dataclass(frozen=True)
class SpecializationStats:
    """Steps of one row of the table. ``step_ms`` holds the most recent steps (at most 1024), oldest first."""

    name: str
    steps: int
    live_rows: int
    padding_rows: int
    total_ms: float
    step_ms: tuple[float, ...]

    def percentile_ms(self, percent: float) -> float | None:
        """Nearest-rank percentile of ``step_ms``, 0 < percent <= 100; None before the first step."""
        if not 0 < percent <= 100:
            raise ValueError(f"percent={percent} is not allowed; give a number above 0 and at most 100")
        ordered = sorted(self.step_ms)
        return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)] if ordered else None

    @property
    def p50_ms(self) -> float | None:
        """Median of ``step_ms``; None before the first step."""
        return statistics.median(self.step_ms) if self.step_ms else None


@dataclass(frozen=True)
class EngineStats:
    """A snapshot.

    specializations: by name, in order of first use. finished: requests by finish reason, "error" for failed ones.
    prompt_tokens: tokens prefilled. generated_tokens: tokens sampled. live: requests that hold a slot.
    waiting: requests queued. failed_steps: steps that raised. speculation: what was drafted and accepted; None in an
    engine without speculation.
    """

    specializations: Mapping[str, SpecializationStats]
    finished: Mapping[str, int]
    prompt_tokens: int
    generated_tokens: int
    live: int
    waiting: int
    failed_steps: int
    speculation: SpeculationStats | None = None

    @property
    def steps(self) -> int:
        return sum(row.steps for row in self.specializations.values())

    @property
    def requests_finished(self) -> int:
        return sum(self.finished.values())


@dataclass
class _Counts:
    steps: int = 0
    live_rows: int = 0
    padding_rows: int = 0
    total_ms: float = 0.0
    recent_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))


class StatsCollector:
    """Counts on the engine thread; ``snapshot`` may be called from any thread."""

    def __init__(self, speculation: SpeculationTally | None = None) -> None:
        self._speculation = speculation
        self._lock = threading.Lock()
        self._rows: dict[str, _Counts] = {}
        self._finished: Counter[str] = Counter()
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._failed_steps = 0
        self._live = 0
        self._waiting = 0

    def step(self, name: str, live_rows: int, padding_rows: int, step_ms: float) -> None:
        with self._lock:
            counts = self._rows.setdefault(name, _Counts())
            counts.steps += 1
            counts.live_rows += live_rows
            counts.padding_rows += padding_rows
            counts.total_ms += step_ms
            counts.recent_ms.append(step_ms)

    def failed_step(self) -> None:
        with self._lock:
            self._failed_steps += 1

    def tokens(self, *, prompt: int = 0, generated: int = 0) -> None:
        with self._lock:
            self._prompt_tokens += prompt
            self._generated_tokens += generated

    def finished(self, reason: str) -> None:
        with self._lock:
            self._finished[reason] += 1

    def load(self, live: int, waiting: int) -> None:
        with self._lock:
            self._live, self._waiting = live, waiting

    def snapshot(self) -> EngineStats:
        with self._lock:
            rows = {
                name: SpecializationStats(
                    name, row.steps, row.live_rows, row.padding_rows, row.total_ms, tuple(row.recent_ms)
                )
                for name, row in self._rows.items()
            }
            return EngineStats(
                rows,
                dict(self._finished),
                self._prompt_tokens,
                self._generated_tokens,
                self._live,
                self._waiting,
                self._failed_steps,
                None if self._speculation is None else self._speculation.snapshot(),
            )
