"""Requests that end early, steps that fail, and the engine that goes on."""

import pytest
from engine_harness import Harness, answers
from engine_mock import mock_program, solo_tokens

from polybatch.engine.request import Completion


def test_all_rows_end_in_the_same_step_and_the_engine_goes_idle():
    harness = Harness(mock_program(continuous_batching=False, batch_size=4))
    for i in range(4):
        harness.add([i], max_tokens=3)
    harness.finish()
    assert harness.core.step() is False
    assert harness.stats.snapshot().live == 0


def test_an_error_in_a_step_fails_only_the_requests_of_that_step():
    harness = Harness(mock_program([2], full_batch_size=4))
    prompts = [[i + 1] for i in range(4)]
    for prompt in prompts:
        harness.add(prompt, max_tokens=12)

    def fault(inputs, _step):
        if set(inputs["batch_index"][:, 0]) == {2, 3} and (inputs["position_ids"] == 6).any():
            raise RuntimeError("boom")

    harness.session.fault = fault
    outcomes = harness.finish()
    failed = [outcome for outcome in outcomes if isinstance(outcome, RuntimeError)]
    done = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, Completion)]
    assert len(failed) == 2
    assert done == [0, 1]
    assert answers(outcomes[:2]) == [solo_tokens(prompt, 12) for prompt in prompts[:2]]
    harness.session.fault = None
    harness.add([7], max_tokens=5)
    assert answers(harness.finish()[-1:]) == [solo_tokens([7], 5)]
    assert harness.stats.snapshot().failed_steps == 1


def test_an_error_in_a_prefill_chunk_fails_only_that_prompt():
    harness = Harness(mock_program())

    def fault(inputs, _step):
        if (inputs["input_ids"] == 55).any():
            raise ValueError("bad chunk")

    harness.session.fault = fault
    harness.add([1], max_tokens=4)
    harness.add([1] * 9 + [55], max_tokens=4)
    harness.add([2], max_tokens=4)
    first, second, third = harness.finish()
    assert answers([first, third]) == [solo_tokens([1], 4), solo_tokens([2], 4)]
    assert isinstance(second, ValueError)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_aborted_request_frees_its_slot_before_the_next_step(steps):
    harness = Harness(mock_program([1, 2], full_batch_size=2))
    aborted = harness.add([4] * 20, max_tokens=30)  # queued, in prefill, or decoding
    harness.add([5], max_tokens=6)
    harness.step(steps)
    harness.core.abort(aborted)
    harness.core.abort(aborted)
    assert isinstance(harness.events[aborted][-1], Completion)
    assert harness.events[aborted][-1].finish_reason == "abort"
    seen = len(harness.session.steps)
    outcomes = harness.finish()
    assert all(step.slots == (step.slots[0],) for step in harness.session.steps[seen:])
    assert answers(outcomes[1:]) == [solo_tokens([5], 6)]
    assert harness.core.scheduler.held_slots == frozenset()


def test_fifty_pairs_leave_and_two_normal_requests_complete():
    harness = Harness(mock_program([1, 2], full_batch_size=2))
    for _ in range(50):
        pair = [harness.add([1] * 10, max_tokens=40), harness.add([2], max_tokens=40)]
        harness.step(4)
        for request_id in pair:
            harness.core.abort(request_id)
        harness.step(2)
        snapshot = harness.stats.snapshot()
        assert (snapshot.live, snapshot.waiting) == (0, 0)
    harness.add([6], max_tokens=5)
    harness.add([7], max_tokens=5)
    assert answers(harness.finish()[-2:]) == [solo_tokens([6], 5), solo_tokens([7], 5)]
