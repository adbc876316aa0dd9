"""Speculation changes how many steps an answer takes, and nothing of the answer; drafts follow a script."""

import pytest
from engine_harness import Harness, answers
from engine_mock import mock_program, solo_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from request_mixes import BATCHES
from scripted import Scripted
from speculation.mixes import REQUESTS, check_any_mix
from speculation.mock_scripts import always_right, always_wrong, continuation, nothing, wrong_at

from polybatch.engine.request import Delta
from polybatch.engine.speculation.proposal import Proposal

K = 3


def speculative_program(batch_size=(1, 2, 4), lengths=(0, K), prefill_seq_len=9, **options):
    table_options = {"num_speculative_tokens": list(lengths)}
    return mock_program(batch_size, prefill_seq_len=prefill_seq_len, table_options=table_options, **options)


def run(script, prompts=([5],), max_tokens=20, fixed_k=K, program=None, **params):
    harness = Harness(program or speculative_program(), Scripted(script), fixed_k)
    for prompt in prompts:
        harness.add(prompt, max_tokens=max_tokens, **params)
    return harness, harness.finish()


@pytest.mark.parametrize("wrong", range(K + 1))
def test_a_step_gives_the_accepted_tokens_and_one_more(wrong):
    """Case 5: drafts wrong at position j; j = K is never wrong."""
    harness, outcomes = run(wrong_at(wrong), max_tokens=1 + 4 * (wrong + 1))
    assert answers(outcomes) == [solo_tokens([5], 1 + 4 * (wrong + 1))]
    deltas = [event for event in harness.events[0] if isinstance(event, Delta)]
    assert [len(delta.token_ids) for delta in deltas] == [1] + [wrong + 1] * 4


def test_rows_of_one_batch_may_accept_different_numbers():
    def script(step, tokens, limit):
        return wrong_at(tokens[0])(step, tokens, limit)

    harness, outcomes = run(script, prompts=[[0], [1], [2]], max_tokens=24)
    assert answers(outcomes) == [solo_tokens([wrong], 24) for wrong in range(3)]
    per_step = [[len(e.token_ids) for e in events if isinstance(e, Delta)][1:-1] for events in harness.events]
    assert [set(counts) for counts in per_step] == [{1}, {2}, {3}]


def test_a_row_may_propose_one_token_and_then_three():
    """Case 6: unfilled columns are padding and the next step starts after what was accepted."""
    harness, outcomes = run(lambda step, tokens, limit: always_right(step, tokens, min(limit, 1 + 2 * (step % 2))))
    assert answers(outcomes) == [solo_tokens([5], 20)]
    decode = [step.positions[0] for step in harness.session.steps if step.phase == "decode"]
    assert decode[:4] == [(1, 2), (3, 4, 5, 6), (7, 8), (9, 10, 11, 12)]


@pytest.mark.parametrize("script", [always_right, always_wrong, wrong_at(1)])
def test_the_end_of_the_context_trims_the_proposal(script):
    """Case 7, with a neighbour that is far from its end."""
    program = speculative_program(lengths=(0, 7), ctx_len=64, prefill_seq_len=16)
    harness, outcomes = run(script, prompts=[[1] * 60, [2]], max_tokens=100, fixed_k=7, program=program)
    assert answers(outcomes) == [solo_tokens([1] * 60, 100), solo_tokens([2], 100)]
    assert len(outcomes[0].token_ids) == 4
    assert max(max(positions) for step in harness.session.steps for positions in step.positions) <= 62


def test_nothing_proposed_runs_at_k_0():
    harness, outcomes = run(nothing)
    assert answers(outcomes) == [solo_tokens([5], 20)]
    assert harness.stats.snapshot().specializations.keys() == {"prefill b=1 s=9", "decode b=1 K=0"}


def test_without_k_0_in_the_table_every_step_pays():
    _, outcomes = run(nothing, program=speculative_program(lengths=(K,)))
    assert answers(outcomes) == [solo_tokens([5], 20)]


def test_the_smallest_k_that_holds_the_proposals_runs():
    harness, _ = run(wrong_at(9, length=2), program=speculative_program(lengths=(0, 1, 3, 7)), fixed_k=7)
    decode = [name for name in harness.stats.snapshot().specializations if name.startswith("decode")]
    assert decode[0] == "decode b=1 K=3"


def test_an_engine_without_speculation_runs_a_speculative_program():
    harness = Harness(speculative_program())
    harness.add([5], max_tokens=20)
    assert answers(harness.finish()) == [solo_tokens([5], 20)]


def test_scalar_k_with_compute_context_lengths():
    options = {"num_speculative_tokens": 3, "comp_ctx_lengths_prefill": [8, 32], "comp_ctx_lengths_decode": [16, 64]}
    program = mock_program(2, full_batch_size=2, table_options=options)
    _, outcomes = run(always_right, prompts=[[1] * 10, [2] * 3], max_tokens=30, program=program)
    assert answers(outcomes) == [solo_tokens([1] * 10, 30), solo_tokens([2] * 3, 30)]


def test_static_batching_speculates_too():
    program = speculative_program(3, continuous_batching=False)
    prompts = [[i + 1] * (5 * i + 1) for i in range(5)]
    _, outcomes = run(wrong_at(2), prompts=prompts, max_tokens=9, program=program)
    assert answers(outcomes) == [solo_tokens(prompt, 9) for prompt in prompts]


def test_eos_inside_an_accepted_run_ends_the_answer_there():
    tokens, _ = solo_tokens([3, 1], 20)
    program = speculative_program(eos_token_ids=(tokens[6],))
    _, outcomes = run(always_right, prompts=[[3, 1]], program=program)
    assert answers(outcomes) == [solo_tokens([3, 1], 20, eos=(tokens[6],))]


def test_max_tokens_is_exact_and_no_token_beyond_it_is_drafted():
    speculation = Scripted(always_right)
    harness = Harness(speculative_program(), speculation, K)
    harness.add([5], max_tokens=7)
    assert answers(harness.finish()) == [solo_tokens([5], 7)]
    assert speculation.asked == [{0: 3}, {0: 1}]


def test_a_proposer_that_says_too_much_is_cut_off():
    class Talkative(Scripted):
        def _propose(self, ask):
            return Proposal(tuple(continuation(ask.tokens(0, len(ask)), 9)))

    harness = Harness(speculative_program(), Talkative(nothing), K)
    harness.add([1] * 60, max_tokens=100)
    assert answers(harness.finish()) == [solo_tokens([1] * 60, 100)]


def test_a_request_that_ends_is_forgotten():
    speculation = Scripted(always_right)
    harness = Harness(speculative_program(), speculation, K)
    harness.add([5], max_tokens=7)
    aborted = harness.add([6], max_tokens=30)
    harness.step(5)
    harness.core.abort(aborted)
    harness.finish()
    assert sorted(speculation.forgotten) == [0, 1]


def test_an_error_of_the_proposer_fails_the_rows_it_was_asked_for_and_no_other():
    def script(step, tokens, limit):
        if step == 2:
            raise RuntimeError("no idea")
        return []

    harness = Harness(speculative_program(), Scripted(script), K)
    harness.add([5], max_tokens=20)
    assert isinstance(harness.finish()[0], RuntimeError)
    harness.add([6], max_tokens=2)
    assert answers(harness.finish()[1:]) == [solo_tokens([6], 2)]


def test_an_error_in_a_k_0_step_fails_its_rows_and_the_next_k_7_step_is_right():
    """Case 14."""
    program = speculative_program(lengths=(0, 7))
    harness = Harness(
        program, Scripted(lambda step, tokens, limit: [] if tokens[0] == 9 else continuation(tokens, limit))
    )
    harness.add([9], max_tokens=20)
    harness.step(3)

    def fault(inputs, _step):
        raise RuntimeError("boom")

    harness.session.fault = fault
    harness.step()
    harness.session.fault = None
    harness.add([5], max_tokens=20)
    failed, done = harness.finish()
    assert isinstance(failed, RuntimeError)
    assert answers([done]) == [solo_tokens([5], 20)]
    assert "decode b=1 K=7" in harness.stats.snapshot().specializations


def test_all_rows_end_in_the_same_speculative_step_and_the_engine_goes_idle():
    """Case 14."""
    harness, outcomes = run(always_right, prompts=[[1], [2], [3], [4]], max_tokens=9)
    assert answers(outcomes) == [solo_tokens([i], 9) for i in (1, 2, 3, 4)]
    assert harness.core.step() is False
    assert harness.stats.snapshot().live == 0


PLANS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(
    REQUESTS,
    st.lists(PLANS, min_size=6, max_size=6),
    BATCHES,
    st.sets(st.integers(0, 7), min_size=1).filter(any).map(sorted),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)
def test_any_drafts_give_the_answers_of_one_token_at_a_time(
    requests, plans, batches, lengths, spare, continuous, fixed
):
    check_any_mix(
        requests,
        batches,
        Planned(plans),
        lengths=lengths,
        fixed_k=lengths[-1] if fixed else None,
        spare_slots=spare,
        continuous=continuous,
    )


class Planned(Scripted):
    """Request i drafts by turns what ``plans[i]`` says: (length, position of a wrong token)."""

    def __init__(self, plans):
        super().__init__(nothing)
        self.plans = plans

    def _propose(self, ask):
        step = self.steps[ask.request_id] = self.steps.get(ask.request_id, -1) + 1
        length, wrong = self.plans[ask.request_id][step % len(self.plans[ask.request_id])]
        return Proposal(tuple(wrong_at(wrong, length)(step, ask.tokens(0, len(ask)), ask.limit)))
