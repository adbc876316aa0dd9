"""The choice of K from acceptance and step times."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from engine_harness import Harness
from engine_mock import mock_program
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted
from speculation.mock_scripts import always_right, always_wrong, continuation

from polybatch.engine.speculation.choice import AdaptiveLength, Chance, best_length, best_lengths
from polybatch.engine.speculation.costs import StepCosts
from polybatch.engine.speculation.estimate import AcceptanceEstimates, expected_tokens
from polybatch.engine.speculation.proposal import Proposal
from polybatch.engine.speculation.stats import SpeculationTally
from polybatch.specialization import build_table

LENGTHS = (0, 3, 7)


def table(batches=(1, 4), lengths=LENGTHS):
    return build_table(
        batch_size=list(batches),
        continuous_batching=True,
        full_batch_size=8,
        ctx_len=64,
        prefill_seq_len=16,
        num_speculative_tokens=list(lengths),
    )


def timed(rows, ms):
    """Step times by (batch, K)."""
    return {row: ms[row.batch_size, row.num_speculative_tokens] for row in rows.decode}


@pytest.mark.parametrize(("rate", "drafted", "expected"), [(0.0, 7, 1), (0.5, 1, 1.5), (0.5, 2, 1.75), (1.0, 7, 8)])
def test_expected_tokens_of_a_step(rate, drafted, expected):
    assert expected_tokens(rate, drafted) == expected


def test_the_k_with_the_most_tokens_per_millisecond():
    costs = {0: 10.0, 3: 15.0, 7: 30.0}
    assert best_length([Chance(7, 0.1)], costs) == 0  # 0.1, 0.074, 0.037 tokens/ms
    assert best_length([Chance(7, 0.7)], costs) == 3  # 0.1, 0.169, 0.105
    assert best_length([Chance(7, 0.99)], costs) == 3  # 0.1, 0.263, 0.257
    assert best_length([Chance(7, 0.99)], {0: 10.0, 3: 15.0, 7: 25.0}) == 7
    assert best_length([Chance(0, 0.99)], costs) == 0
    assert best_length([Chance(7, 0.0)], {0: 10.0, 3: 10.0}) == 0  # the smallest of equals
    assert best_length([], {}) is None


def test_rows_without_a_proposal_weigh_against_a_longer_step():
    costs = {0: 10.0, 3: 15.0}
    assert best_length([Chance(3, 0.7)], costs) == 3
    assert best_length([Chance(3, 0.7), Chance(0, 0.0), Chance(0, 0.0), Chance(0, 0.0)], costs) == 0


@given(
    st.lists(st.tuples(st.integers(0, 7), st.floats(0, 1)), min_size=1, max_size=5),
    st.lists(st.floats(1, 100), min_size=3, max_size=3),
)
def test_no_other_k_promises_more(rows, ms):
    chances = [Chance(*row) for row in rows]
    costs = dict(zip(LENGTHS, ms, strict=True))

    def speed(drafted):
        return sum(expected_tokens(c.rate, min(drafted, c.length)) for c in chances) / costs[drafted]

    assert max(speed(drafted) for drafted in LENGTHS) == speed(best_length(chances, costs))


def test_costs_come_from_the_cover_that_runs():
    rows = table()
    ms = {(1, 0): 1.0, (1, 3): 2.0, (1, 7): 4.0, (4, 0): 3.0, (4, 3): 7.0, (4, 7): 12.0}
    costs = StepCosts(rows, timed(rows, ms), LENGTHS, skips_padding=False)
    assert costs.by_length(1) == {0: 1.0, 3: 2.0, 7: 4.0}
    assert costs.by_length(5) == {0: 4.0, 3: 9.0, 7: 16.0}  # 4 + 1


def test_a_step_that_measured_slower_than_a_longer_one_is_noise():
    rows = table([1])
    costs = StepCosts(rows, timed(rows, {(1, 0): 9.0, (1, 3): 5.0, (1, 7): 6.0}), LENGTHS, skips_padding=False)
    assert costs.by_length(1) == {0: 5.0, 3: 5.0, 7: 6.0}


def test_what_was_not_measured_is_not_chosen():
    rows = table([1])
    times = timed(rows, {(1, 0): 9.0, (1, 3): 9.5, (1, 7): 9.9})
    del times[rows.decode[-1]]
    assert StepCosts(rows, times, LENGTHS, skips_padding=False).by_length(1) == {0: 9.0, 3: 9.5}


def test_without_times_a_step_costs_24_and_its_tokens():
    costs = StepCosts(table(), None, LENGTHS, skips_padding=False)
    assert not costs.measured
    assert costs.by_length(1) == {0: 25.0, 3: 28.0, 7: 32.0}
    assert costs.by_length(3) == {0: 28.0, 3: 40.0, 7: 56.0}


def test_where_padding_is_left_out_live_tokens_count():
    rows = table()
    ms = {(1, 0): 6.0, (1, 3): 7.0, (1, 7): 8.0, (4, 0): 7.5, (4, 3): 12.0, (4, 7): 20.0}
    costs = StepCosts(rows, timed(rows, ms), LENGTHS, skips_padding=True)
    assert costs.by_length(1) == {0: 6.0, 3: 7.0, 7: 8.0}
    assert costs.by_length(3) == {0: 7.0, 3: 10.5, 7: 16.0}  # 3, 12 and 24 tokens, of 1 to 4 to 16 to 32
    assert costs.by_length(5) == {0: 13.5, 3: 19.0, 7: 28.0}  # four rows, then one
    assert StepCosts(rows, None, LENGTHS, skips_padding=True).by_length(3) == {0: 27.0, 3: 36.0, 7: 48.0}


def test_more_live_tokens_than_were_measured_are_not_chosen():
    rows = table([4])
    times = timed(rows, {(4, 0): 6.0, (4, 3): 9.0, (4, 7): 20.0})
    del times[rows.decode[-1]]
    costs = StepCosts(rows, times, LENGTHS, skips_padding=True)
    assert costs.by_length(4) == {0: 6.0, 3: 9.0}
    assert costs.by_length(2) == {0: 6.0, 3: 7.0, 7: 9.0}


def test_a_batch_size_without_any_time_is_not_drafted_for():
    rows = table([1, 4], lengths=(3,))
    costs = StepCosts(rows, {rows.decode[0]: 9.0}, (3,), skips_padding=True)
    assert costs.by_length(1) == {3: 9.0}
    assert costs.by_length(4) == {}
    asks, proposals = [SimpleNamespace(request_id=i, limit=3) for i in range(4)], [Proposal((1, 2, 3))] * 4
    assert AdaptiveLength(costs, (3,)).to_verify(asks, proposals) == [0] * 4


def test_an_estimate_starts_from_what_the_engine_has_seen_of_such_evidence():
    estimates = AcceptanceEstimates()
    assert estimates.rate(1, evidence=3) == 0.5
    for _ in range(20):
        estimates.score(1, Proposal((5, 6, 7), evidence=3), [5, 6, 7, 8])
        estimates.score(1, Proposal((5, 6, 7), evidence=1), [4])
    assert estimates.rate(1, evidence=3) > 0.9
    assert estimates.rate(2, evidence=3) > 0.9
    assert estimates.rate(2, evidence=1) < 0.1
    for _ in range(20):
        estimates.score(2, Proposal((5,), evidence=3), [4])
    assert estimates.rate(2, evidence=3) < 0.3
    assert estimates.rate(1, evidence=3) > 0.7


def test_recent_text_counts_more():
    estimates = AcceptanceEstimates()
    for _ in range(100):
        estimates.score(1, Proposal((5,)), [5])
    for _ in range(100):
        estimates.score(1, Proposal((5,)), [4])
    assert estimates.rate(1, 0) < 0.25


def run(script, ms, draft_ms=0.0, max_tokens=60, fixed_k=None):
    program = mock_program(
        [1], full_batch_size=1, prefill_seq_len=16, table_options={"num_speculative_tokens": LENGTHS}
    )
    program.step_ms = {row: ms[row.num_speculative_tokens] for row in program.table.decode}
    speculation = Scripted(script, draft_ms)
    harness = Harness(program, speculation, fixed_k)
    harness.add([5], max_tokens=max_tokens)
    (outcome,) = harness.finish()
    return {k: steps for (_, k), steps in outcome.speculation.steps.items()}, speculation


def test_right_drafts_lead_to_the_largest_k_and_wrong_ones_to_none():
    ms = {0: 10.0, 3: 14.0, 7: 20.0}
    steps, _ = run(always_right, ms)
    assert steps.get(7, 0) > sum(steps.values()) - 4
    steps, _ = run(always_wrong, ms)
    assert steps[0] > sum(steps.values()) - 4


def test_fixed_k_is_kept_whatever_comes():
    steps, _ = run(always_wrong, {0: 10.0, 3: 100.0, 7: 200.0}, fixed_k=7)
    assert set(steps) <= {7, 3, 0}
    assert steps[7] > 40


def test_an_unverified_free_proposal_still_shows_when_the_text_changes():
    """Wrong for 20 steps, then right: K goes up again although K=0 ran meanwhile."""

    def script(step, tokens, limit):
        return (always_wrong if len(tokens) < 22 else always_right)(step, tokens, limit)

    steps, _ = run(script, {0: 10.0, 3: 14.0, 7: 20.0})
    assert steps.get(7, 0) + steps.get(3, 0) >= 3


def test_costly_drafts_are_not_asked_for_when_they_do_not_pay_but_tried_again_now_and_then():
    _, speculation = run(always_wrong, {0: 10.0, 3: 14.0, 7: 20.0}, draft_ms=2.0)
    wanted = [limits[0] for limits in speculation.asked]
    assert sum(limit > 0 for limit in wanted) <= 5
    assert any(limit > 0 for limit in wanted[20:])


def test_drafts_that_take_too_long_are_not_worth_it():
    _, cheap = run(always_right, {0: 10.0, 3: 11.0, 7: 12.0}, draft_ms=1.0)
    _, dear = run(always_right, {0: 10.0, 3: 11.0, 7: 12.0}, draft_ms=30.0)
    assert all(limits[0] > 0 for limits in cheap.asked)
    assert sum(limits[0] > 0 for limits in dear.asked) <= 2


def test_what_would_gain_less_than_a_tenth_is_not_verified():
    rows = table(batches=(1,))
    asks, proposals = [SimpleNamespace(request_id=0, limit=3)], [Proposal((1, 2, 3))]
    for cost, chosen in ((17.0, 3), (18.0, 0)):  # 1.875 tokens for one, at an even chance
        costs = StepCosts(rows, timed(rows, {(1, 0): 10.0, (1, 3): cost, (1, 7): 99.0}), LENGTHS, skips_padding=False)
        assert AdaptiveLength(costs, LENGTHS).to_verify(asks, proposals) == [chosen]
    for cost, chosen in ((20.5, 1), (21.5, 0)):  # 1.5 tokens for one, for a third of what is between 10 and cost
        costs = StepCosts(rows, timed(rows, {(1, 0): 10.0, (1, 3): cost, (1, 7): 99.0}), LENGTHS, skips_padding=True)
        assert AdaptiveLength(costs, LENGTHS).to_verify(asks, [Proposal((1,))]) == [chosen]


@pytest.mark.parametrize(("skips_padding", "chosen"), [(True, [3, 0, 0, 0]), (False, [0] * 4)])
def test_rows_without_a_proposal_cost_nothing_more_where_padding_is_left_out(skips_padding, chosen):
    rows = table(batches=(4,))
    times = timed(rows, {(4, 0): 10.0, (4, 3): 22.0, (4, 7): 99.0})  # of 4, 16 and 32 tokens; 7 tokens: 13
    costs = StepCosts(rows, times, LENGTHS, skips_padding=skips_padding)
    estimates = AdaptiveLength(costs, LENGTHS)
    asks = [SimpleNamespace(request_id=i, limit=3) for i in range(4)]
    for _ in range(40):
        estimates.score(0, Proposal((1, 2, 3)), 3, (1, 2, 3, 4))
    assert (costs.of_tokens(4)[7] if skips_padding else costs.by_length(4)[3]) == (13.0 if skips_padding else 22.0)
    assert estimates.to_verify(asks, [Proposal((1, 2, 3)), *[Proposal(())] * 3]) == chosen


def test_where_padding_is_left_out_every_row_has_a_length_of_its_own():
    rows = table(batches=(1, 4))
    times = timed(rows, {(1, 0): 8.0, (1, 3): 9.0, (1, 7): 11.0, (4, 0): 9.0, (4, 3): 15.0, (4, 7): 24.0})
    choice = AdaptiveLength(StepCosts(rows, times, LENGTHS, skips_padding=True), LENGTHS)
    asks = [SimpleNamespace(request_id=i, limit=7) for i in range(5)]
    for _ in range(60):
        for good in (0, 4):
            choice.score(good, Proposal((1,) * 7, evidence=3), 7, (1,) * 8)
        choice.score(1, Proposal((1,) * 7, evidence=1), 7, (2,))
    proposals = [Proposal((1,) * 7, evidence=evidence) for evidence in (3, 1, 1, 1, 3)]
    assert choice.to_verify(asks, proposals) == [7, 0, 0, 0, 7]  # four rows, then one


@pytest.mark.parametrize("skips_padding", [True, False])
def test_a_proposer_that_offers_more_than_was_asked_for_is_cut(skips_padding):
    rows = table(batches=(1,))
    times = timed(rows, {(1, 0): 10.0, (1, 3): 10.1, (1, 7): 10.2})
    choice = AdaptiveLength(StepCosts(rows, times, LENGTHS, skips_padding=skips_padding), LENGTHS)
    (verified,) = choice.to_verify([SimpleNamespace(request_id=0, limit=5)], [Proposal((1,) * 20)])
    assert min(verified, 5) == 5


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0])), min_size=1, max_size=4),
    st.lists(st.floats(0, 5), min_size=13, max_size=13),
)
def test_no_other_lengths_promise_more(rows, steps):
    chances = [Chance(*row) for row in rows]
    costs = (10.0 + np.cumsum(steps)[: 1 + sum(chance.length for chance in chances)]).tolist()

    def speed(lengths):
        pairs = zip(chances, lengths, strict=True)
        return sum(expected_tokens(chance.rate, length) for chance, length in pairs) / costs[sum(lengths)]

    others = itertools.product(*(range(chance.length + 1) for chance in chances))
    assert speed(best_lengths(chances, costs)) == pytest.approx(max(map(speed, others)))


def test_unknown_draft_times_are_a_share_of_a_step():
    _, speculation = run(lambda step, tokens, limit: continuation(tokens, limit), dict.fromkeys(LENGTHS, 10.0), None)
    assert speculation.asked[0] == {0: 3}  # at an even chance four tokens would cost more than they bring


def test_counts_by_position_and_shape():
    tally = SpeculationTally()
    assert tally.snapshot().acceptance is None
    for drafted, accepted in ((3, 3), (3, 1), (2, 0), (0, 0)):
        tally.proposal(drafted, accepted)
    for shape in ((1, 3), (1, 3), (2, 0)):
        tally.step(*shape)
    stats = tally.snapshot()
    assert (stats.drafted_at, stats.accepted_at) == ((3, 3, 2), (2, 1, 1))
    assert (stats.drafted, stats.accepted, stats.acceptance) == (8, 4, 0.5)
    assert stats.acceptance_at == (2 / 3, 1 / 3, 1 / 2)
    assert stats.steps == {(1, 3): 2, (2, 0): 1}


def test_requests_and_engine_are_counted_alike():
    program = mock_program([1, 2], full_batch_size=2, table_options={"num_speculative_tokens": [0, 3]})
    harness = Harness(program, Scripted(always_right), fixed_k=3)
    for prompt in ([1], [2]):
        harness.add(prompt, max_tokens=9)
    first, second = (outcome.speculation for outcome in harness.finish())
    total = harness.stats.snapshot().speculation
    assert (first.drafted_at, first.accepted_at) == ((2, 2, 2), (2, 2, 2))
    assert total.drafted == first.drafted + second.drafted
    names = {name: row.steps for name, row in harness.stats.snapshot().specializations.items()}
    assert {f"decode b={b} K={k}": steps for (b, k), steps in total.steps.items()}.items() <= names.items()


ASK = SimpleNamespace(request_id=0, limit=7)


def drafted(choice):
    """How many tokens are asked for in the next step, of a proposer that is free."""
    return 0 if choice.rests() else choice.to_draft([ASK], 0.0)


class KnownCosts:
    measured = True
    skips_padding = False

    def __init__(self, by_length):
        self._by_length = by_length

    def by_length(self, rows):
        return self._by_length


def test_free_drafts_that_never_pay_are_asked_for_now_and_then():
    choice = AdaptiveLength(KnownCosts({0: 1.0, 7: 50.0}), (0, 7))
    asked = []
    for _ in range(100):
        asked.append(drafted(choice))
        if asked[-1]:
            assert choice.to_verify([ASK], [Proposal((1,) * 7)]) == [0]
    assert asked[:32] == [7] * 32
    assert asked[60:68].count(7) == 2


def test_free_drafts_that_hardly_ever_pay_are_asked_for_less_too():
    choice = AdaptiveLength(KnownCosts({0: 1.0, 7: 1.1}), (0, 7))
    asked = []
    for step in range(400):
        asked.append(drafted(choice))
        if asked[-1]:
            choice.to_verify([ASK], [Proposal((1,) * 7, evidence=step)])  # an even chance: always worth it
        right = asked[-1] and step % 97 == 0
        choice.score(0, Proposal((1,) * asked[-1]), min(asked[-1], 1), (1, 2) if right else (2,))
    assert asked[200:].count(7) < 140


def test_a_free_draft_that_pays_ends_the_rest():
    choice = AdaptiveLength(KnownCosts({0: 1.0, 7: 1.1}), (0, 7))
    for _ in range(50):
        drafted(choice)  # nothing to verify
    while not drafted(choice):
        pass
    assert choice.to_verify([ASK], [Proposal((1,) * 7)]) == [7]
    assert [drafted(choice) for _ in range(5)] == [7] * 5
