"""Step times of variants that are measured in turn, and what can be said about their difference."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Clock = Callable[[], float]

RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p90: float
    p95: float


@dataclass(frozen=True)
class Delta:
    """How much longer a variant takes than its base, as a fraction, with the interval that the data allow."""

    median: float
    low: float
    high: float


def percentiles(ms: Sequence[float]) -> Percentiles:
    """Linear between the closest samples."""
    p50, p90, p95 = np.percentile(np.asarray(ms, dtype=np.float64), (50, 90, 95))
    return Percentiles(float(p50), float(p90), float(p95))


def paired_delta(base: Sequence[float], variant: Sequence[float], blocks: int = 1, seed: int = 0) -> Delta:
    """Median of ``variant[i] / base[i] - 1`` and its percentile bootstrap interval (Efron 1979).

    The two samples of a pair are neighbours in time, so whatever slows the machine for longer than a pair cancels.
    The pairs come in ``blocks`` of equal size, one after the other, whose members may share some luck: whole blocks are
    resampled, then the pairs inside each.
    """
    if len(base) != len(variant) or not base or len(base) % blocks:
        raise ValueError(f"{blocks} blocks of pairs need equal samples, not {len(base)} and {len(variant)}")
    relative = np.asarray(variant, dtype=np.float64) / np.asarray(base, dtype=np.float64) - 1.0
    size = relative.size // blocks
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, blocks, (RESAMPLES, blocks, 1)) * size
    picks = (starts + rng.integers(0, size, (RESAMPLES, blocks, size))).reshape(RESAMPLES, -1)
    medians = np.median(relative[picks], axis=1)
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(medians, (tail, 100.0 - tail))
    return Delta(float(np.median(relative)), float(low), float(high))


@dataclass(frozen=True)
class Effort:
    """How often a cell is run."""

    warm_ups: int
    samples: int

    def within(self, step_ms: float, slow_ms: float, fewest: int) -> Effort:
        """For steps of over ``slow_ms`` only as much as takes the same time, but ``fewest`` samples at least."""
        share = min(1.0, slow_ms / step_ms)
        samples = max(min(fewest, self.samples), math.ceil(self.samples * share))
        return Effort(max(1, math.ceil(self.warm_ups * samples / self.samples)), samples)

    def part(self, parts: int) -> Effort:
        """One of ``parts`` equal parts, rounded up; each has all the warm-ups of its size."""
        return Effort(math.ceil(self.warm_ups / parts), math.ceil(self.samples / parts))


def run_in_turn(
    steps: Mapping[str, Callable[[], object]], effort: Effort, seed: int = 0, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Milliseconds of each step by name; sample i of all names is one round, and each round has its own random order.

    Only the call is timed: what it returns is freed afterwards. Warm-ups are rounds that are not kept.
    """
    rng = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for round_index in range(effort.warm_ups + effort.samples):
            rng.shuffle(order)
            for name in order:
                step = steps[name]
                start = clock()
                result = step()
                elapsed = clock() - start
                del result
                if round_index >= effort.warm_ups:
                    times[name].append(elapsed * 1e3)
    finally:
        if enabled:
            gc.enable()
    return times
