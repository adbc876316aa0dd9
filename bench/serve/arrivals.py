"""When requests come: at random, or in bursts."""

from __future__ import annotations

import math
import random


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Arrival times of a Poisson process of ``rate`` requests per second."""
    rng, at, times = random.Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        times.append(at)
    return times


def bursts(rate: float, seconds: float, size: int) -> list[float]:
    """``size`` requests at once, as often as makes ``rate`` requests per second."""
    period = size / rate
    return [burst * period for burst in range(math.ceil(seconds / period)) for _ in range(size)]


ARRIVALS = ("poisson", "burst")


def times(kind: str, rate: float, seconds: float, seed: int, burst: int) -> list[float]:
    """Arrival times of the named kind."""
    return poisson(rate, seconds, seed) if kind == "poisson" else bursts(rate, seconds, burst)
