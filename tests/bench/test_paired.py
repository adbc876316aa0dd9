from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.paired import Delta, Effort, paired_delta, percentiles, run_in_turn

TIMES = st.lists(st.floats(0.1, 1e3), min_size=1, max_size=40)


def noisy_pairs(count: int, factor: float) -> tuple[list[float], list[float]]:
    """A machine that slows down to half its speed, and a variant ``factor`` as slow as its base with 2% noise."""
    rng = np.random.default_rng(7)
    drift = np.linspace(1.0, 2.0, count)
    noise = rng.normal(1.0, 0.02, (2, count))
    return list(drift * noise[0]), list(drift * noise[1] * factor)


def test_percentiles_of_one_to_a_hundred() -> None:
    found = percentiles(list(range(1, 102)))
    assert (found.p50, found.p90, found.p95) == (51, 91, 96)


def test_drift_cancels_in_a_paired_delta() -> None:
    delta = paired_delta(*noisy_pairs(500, 1.03))
    assert delta.low < 0.03 < delta.high
    assert delta.median == pytest.approx(0.03, abs=0.004)
    assert delta.high - delta.low < 0.01


def test_the_interval_leaves_out_zero_when_the_variant_is_slower() -> None:
    assert paired_delta(*noisy_pairs(500, 1.03)).low > 0.0
    same = paired_delta(*noisy_pairs(500, 1.0))
    assert same.low < 0.0 < same.high


def test_blocks_that_differ_widen_the_interval() -> None:
    base = [1.0] * 100
    lucky = [0.95] * 50 + [1.05] * 50
    delta = paired_delta(base, lucky, blocks=2)
    assert (delta.low, delta.high) == (pytest.approx(-0.05), pytest.approx(0.05))


@given(TIMES)
def test_a_delta_against_itself_is_zero(times: list[float]) -> None:
    assert paired_delta(times, times) == Delta(0.0, 0.0, 0.0)


@given(TIMES, st.floats(0.5, 2.0))
def test_a_constant_factor_is_found_exactly(times: list[float], factor: float) -> None:
    delta = paired_delta(times, [time * factor for time in times])
    assert (delta.low, delta.median, delta.high) == pytest.approx((factor - 1.0,) * 3, abs=1e-9)


@pytest.mark.parametrize(
    ("base", "variant", "blocks"), [([], [], 1), ([1.0], [1.0, 2.0], 1), ([1.0] * 3, [1.0] * 3, 2)]
)
def test_samples_that_make_no_pairs_or_blocks_are_refused(base: list[float], variant: list[float], blocks: int) -> None:
    with pytest.raises(ValueError, match="blocks of pairs"):
        paired_delta(base, variant, blocks)


def test_a_slow_step_gets_as_long_as_a_fast_one_but_a_fewest_number_of_samples() -> None:
    full = Effort(warm_ups=50, samples=500)
    assert full.within(step_ms=80.0, slow_ms=100.0, fewest=60) == full
    assert full.within(step_ms=200.0, slow_ms=100.0, fewest=60) == Effort(25, 250)
    assert full.within(step_ms=5000.0, slow_ms=100.0, fewest=60) == Effort(6, 60)
    assert Effort(1, 20).within(step_ms=5000.0, slow_ms=100.0, fewest=60) == Effort(1, 20)


def test_parts_of_an_effort_add_up_to_all_of_it() -> None:
    assert Effort(50, 500).part(5) == Effort(10, 100)
    assert Effort(6, 61).part(5) == Effort(2, 13)


def test_steps_take_turns_in_changing_order_and_warm_ups_are_not_kept() -> None:
    ran: list[str] = []
    ticks = itertools.count()
    steps = {name: lambda name=name: ran.append(name) for name in "ab"}
    times = run_in_turn(steps, Effort(warm_ups=2, samples=20), clock=lambda: float(next(ticks)))
    assert {name: len(kept) for name, kept in times.items()} == {"a": 20, "b": 20}
    rounds = ["".join(ran[i : i + 2]) for i in range(0, len(ran), 2)]
    assert len(rounds) == 22 and set(rounds) == {"ab", "ba"}
    assert set(times["a"] + times["b"]) == {1000.0}
