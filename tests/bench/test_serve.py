"""The load tool's schedules and figures."""

import pytest

from bench.serve.arrivals import bursts, poisson
from bench.serve.client import Outcome
from bench.serve.overhead import Overhead
from bench.serve.report import overhead, runs
from bench.serve.results import Limits, Turn, percentile, summarize


def outcome(sent, first, gaps, status=200):
    arrivals = [sent + first]
    for gap in gaps:
        arrivals.append(arrivals[-1] + gap)
    return Outcome(sent, status, arrivals, [1] * len(arrivals), arrivals[-1])


def test_poisson_arrivals_have_their_rate_and_come_again():
    times = poisson(50, 100, seed=1)
    assert 4500 < len(times) < 5500
    assert times == sorted(times) == poisson(50, 100, seed=1)
    assert poisson(50, 100, seed=2) != times


def test_bursts_have_their_rate():
    assert bursts(4, 10, 8) == [0.0] * 8 + [2.0] * 8 + [4.0] * 8 + [6.0] * 8 + [8.0] * 8


def test_tokens_that_come_together_share_their_time():
    assert Outcome(0.0, 200, [1.0, 3.0], [1, 2], 3.0).gaps() == [1.0, 1.0]


def test_good_requests_keep_to_both_limits():
    outcomes = [
        outcome(0, 0.1, [0.01] * 9),
        outcome(0, 0.9, [0.01] * 9),  # late
        outcome(0, 0.1, [0.09] * 10),  # slow
        Outcome(0, 429),
    ]
    run = summarize("bf16", "dynamic", "poisson", 1.0, [Turn(1.0, outcomes)], Limits(500, 50))
    assert (run.requests, run.failed) == (4, 1)
    assert run.good == pytest.approx(1 / 1.0)
    assert run.first_p50 == pytest.approx(100)
    assert run.tokens_per_s == pytest.approx(31)


def test_turns_count_together_and_one_without_requests_counts_too():
    turns = [Turn(4.0, [outcome(0, 0.1, [0.1] * 9)]), Turn(4.0, []), Turn(2.0, [outcome(100, 0.1, [0.1] * 9)])]
    run = summarize("bf16", "dynamic", "poisson", 0.2, turns, Limits(500, 200))
    assert (run.requests, run.seconds) == (2, 10.0)
    assert run.tokens_per_s == pytest.approx(2)
    assert run.good == pytest.approx(0.2)


def test_the_report_sets_dynamic_against_fixed():
    fast = summarize("bf16", "dynamic", "poisson", 1.0, [Turn(1.0, [outcome(0, 0.1, [0.01] * 9)])], Limits(500, 50))
    slow = summarize("bf16", "fixed", "poisson", 1.0, [Turn(1.0, [outcome(0, 0.1, [0.05] * 9)])], Limits(500, 50))
    assert any("5.00 x shorter" in line for line in runs([fast, slow]))


def test_the_overhead_is_of_medians():
    measured = Overhead({"engine": [2.0, 9.0, 1.0], "whole": [2.1, 2.1, 50.0], "stream": [2.2, 2.2, 2.2]})
    assert measured.cost("whole") == pytest.approx(0.05)
    assert any("+10.0%" in line for line in overhead(measured))


def test_percentiles_are_nearest_rank():
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([3, 1, 2], 95) == 3
