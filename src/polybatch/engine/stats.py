"""What the engine has done: steps per specialization, requests, tokens. Times are milliseconds of wall clock."""

from __future__ import annotations

import statistics
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from polybatch.engine.protocols import SpecializationLike
from polybatch.engine.speculation.stats import SpeculationStats, SpeculationTally

_RECENT_STEPS = 1024  # step times kept per specialization, so that a long-lived engine does not grow


@dataclass(frozen=True)
class SpecializationStats:
    """Steps of one row of the table. ``step_ms`` holds the most recent steps (at most 1024), oldest first.

    phase, batch_size, num_speculative_tokens (K), comp_ctx_length (CCL; None: ctx_len): the row.
    """

    name: str
    steps: int
    live_rows: int
    padding_rows: int
    total_ms: float
    step_ms: tuple[float, ...]
    phase: str = ""
    batch_size: int = 0
    num_speculative_tokens: int = 0
    comp_ctx_length: int | None = None

    def percentile_ms(self, percent: float) -> float | None:
        """Nearest-rank percentile of ``step_ms``, 0 < percent <= 100; None before the first step."""
        if not 0 < percent <= 100:
            raise ValueError(f"percent={percent} is not allowed; give a number above 0 and at most 100")
        ordered = sorted(self.step_ms)
        return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)] if ordered else None

    @property
    def seconds(self) -> float:
        """Time of all steps."""
        return self.total_ms / 1e3

    @property
    def p50_ms(self) -> float | None:
        """Median of ``step_ms``; None before the first step."""
        return statistics.median(self.step_ms) if self.step_ms else None


@dataclass(frozen=True)
class SlotState:
    """What one slot does at a moment.

    request_id: who holds it; None: nobody. position: tokens in its cache; of a free slot, those kept for reuse.
    tokens_per_s: what the request has generated per second since its first token; None before the second.
    """

    slot: int
    request_id: int | None
    position: int
    prompt_tokens: int = 0
    generated_tokens: int = 0
    tokens_per_s: float | None = None


@dataclass(frozen=True)
class EngineStats:
    """A snapshot.

    specializations: by name, in order of first use. finished: requests by finish reason, "error" for failed ones.
    prompt_tokens: tokens prefilled. reused_tokens: prompt tokens that a slot held already, of the prefix_hits requests
    that started from such. generated_tokens: tokens sampled. live: requests that hold a slot. waiting: requests queued.
    free_slots: slots that no request holds. failed_steps: steps that raised. speculation: what was drafted and
    accepted; None in an engine without speculation.
    """

    specializations: Mapping[str, SpecializationStats]
    finished: Mapping[str, int]
    prompt_tokens: int
    generated_tokens: int
    live: int
    waiting: int
    failed_steps: int
    speculation: SpeculationStats | None = None
    reused_tokens: int = 0
    prefix_hits: int = 0
    free_slots: int = 0

    @property
    def steps(self) -> int:
        return sum(row.steps for row in self.specializations.values())

    @property
    def requests_finished(self) -> int:
        return sum(self.finished.values())


@dataclass
class _Counts:
    specialization: SpecializationLike
    steps: int = 0
    live_rows: int = 0
    padding_rows: int = 0
    total_ms: float = 0.0
    recent_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))

    def snapshot(self) -> SpecializationStats:
        row = self.specialization
        drafted = row.seq_len - 1 if row.phase == "decode" else 0
        return SpecializationStats(
            row.name,
            self.steps,
            self.live_rows,
            self.padding_rows,
            self.total_ms,
            tuple(self.recent_ms),
            row.phase,
            row.batch_size,
            drafted,
            row.comp_ctx_length,
        )


class StatsCollector:
    """Counts on the engine thread; ``snapshot`` may be called from any thread."""

    def __init__(self, speculation: SpeculationTally | None = None, slots: int = 0) -> None:
        self._slots = slots
        self._speculation = speculation
        self._lock = threading.Lock()
        self._rows: dict[str, _Counts] = {}
        self._finished: Counter[str] = Counter()
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._reused_tokens = 0
        self._prefix_hits = 0
        self._failed_steps = 0
        self._live = 0
        self._waiting = 0

    def step(self, specialization: SpecializationLike, live_rows: int, padding_rows: int, step_ms: float) -> None:
        with self._lock:
            counts = self._rows.get(specialization.name)
            if counts is None:
                counts = self._rows[specialization.name] = _Counts(specialization)
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

    def reused(self, tokens: int) -> None:
        """A request started with ``tokens`` of its prompt in its slot."""
        with self._lock:
            self._reused_tokens += tokens
            self._prefix_hits += tokens > 0

    def finished(self, reason: str) -> None:
        with self._lock:
            self._finished[reason] += 1

    def load(self, live: int, waiting: int) -> None:
        with self._lock:
            self._live, self._waiting = live, waiting

    def snapshot(self) -> EngineStats:
        with self._lock:
            return EngineStats(
                {name: row.snapshot() for name, row in self._rows.items()},
                dict(self._finished),
                self._prompt_tokens,
                self._generated_tokens,
                self._live,
                self._waiting,
                self._failed_steps,
                None if self._speculation is None else self._speculation.snapshot(),
                self._reused_tokens,
                self._prefix_hits,
                self._slots - self._live,
            )
