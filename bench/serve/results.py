"""What one load on one server came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.serve.client import Outcome


@dataclass(frozen=True)
class Limits:
    """A request is good when its first token and the mean time between its tokens keep to these."""

    first_ms: float
    between_ms: float


@dataclass(frozen=True)
class Run:
    """Latencies in milliseconds. rate: requests per second offered; None: all at once.

    program: "dynamic", "fixed", "padded" or "static".
    good: requests per second that kept to the limits. seconds: of all turns together.
    """

    precision: str
    program: str
    arrivals: str
    rate: float | None
    requests: int
    failed: int
    first_p50: float
    first_p95: float
    between_p50: float
    between_p95: float
    good: float
    tokens_per_s: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Turn:
    """A load sent once. seconds: until the last answer, or for as long as requests were offered if that is longer."""

    seconds: float
    outcomes: Sequence[Outcome]


def summarize(
    precision: str, program: str, arrivals: str, rate: float | None, turns: Sequence[Turn], limits: Limits
) -> Run:
    """Percentiles over requests (first token) and over all tokens (time between them) of all turns."""
    outcomes = [outcome for turn in turns for outcome in turn.outcomes]
    done = [outcome for outcome in outcomes if outcome.ok and outcome.arrivals]
    seconds = sum(turn.seconds for turn in turns)
    firsts = [one.first_s * 1e3 for one in done]
    gaps = [gap * 1e3 for one in done for gap in one.gaps()]
    good = sum(_is_good(one, limits) for one in done)
    return Run(
        precision,
        program,
        arrivals,
        rate,
        len(outcomes),
        len(outcomes) - len(done),
        percentile(firsts, 50),
        percentile(firsts, 95),
        percentile(gaps, 50),
        percentile(gaps, 95),
        good / seconds,
        sum(sum(one.chunks) for one in done) / seconds,
        seconds,
    )


def _is_good(outcome: Outcome, limits: Limits) -> bool:
    gaps = outcome.gaps()
    between_ms = statistics.fmean(gaps) * 1e3 if gaps else 0.0
    return outcome.first_s * 1e3 <= limits.first_ms and between_ms <= limits.between_ms


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)] if ordered else float("nan")
