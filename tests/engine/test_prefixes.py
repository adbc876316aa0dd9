"""Prompts that start from what a slot holds: whatever comes and goes, the answers are those of running every token."""

import pytest
from engine_harness import Harness, answers
from engine_mock import VOCAB, mock_program, solo_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted
from speculation.mock_scripts import wrong_at

SYSTEM = list(range(100, 120))


def harness(batches=(1, 2, 4), speculation=None, **options):
    return Harness(mock_program(batches, **options), speculation, prefix_cache=True)


def finish_one(made, prompt, max_tokens=4):
    """The completion of a request that runs alone from here on."""
    request_id = made.add(prompt, max_tokens=max_tokens)
    outcome = made.finish()[request_id]
    assert answers([outcome]) == [solo_tokens(prompt, max_tokens)]
    return outcome


def prefilled(made, since=0):
    """The positions of every prefill chunk."""
    return [step.positions[0] for step in made.session.steps[since:] if step.phase == "prefill"]


def test_the_next_turn_of_a_conversation_runs_only_what_is_new():
    made = harness()
    first = finish_one(made, SYSTEM, 6)
    prompt = [*SYSTEM, *first.token_ids, 7, 8]
    since = len(made.session.steps)
    second = finish_one(made, prompt)
    assert second.reused_tokens == 25  # the last token of an answer is never run
    assert prefilled(made, since) == [(25, 26, 27)]
    assert made.session.copies == []  # the same slot
    stats = made.stats.snapshot()
    assert (stats.reused_tokens, stats.prefix_hits, stats.prompt_tokens) == (25, 1, 20 + 3)


def test_the_last_token_of_a_prompt_is_always_run():
    made = harness()
    finish_one(made, SYSTEM, 6)
    since = len(made.session.steps)
    assert finish_one(made, SYSTEM).reused_tokens == 19
    assert prefilled(made, since) == [(19,)]
    assert finish_one(made, SYSTEM[:1]).reused_tokens == 0


def test_a_running_sequences_prefix_is_copied():
    made = harness()
    made.add([*SYSTEM, 1], max_tokens=30)
    made.step(6)
    made.add([*SYSTEM, 2], max_tokens=3)
    first, second = made.finish()
    assert answers([first, second]) == [solo_tokens([*SYSTEM, 1], 30), solo_tokens([*SYSTEM, 2], 3)]
    assert second.reused_tokens == 20
    assert made.session.copies == [(0, 1, 20)]


def test_requests_that_come_together_run_their_common_prefix_once():
    made = harness()
    for i in range(4):
        made.add([*SYSTEM, i], max_tokens=5)
    outcomes = made.finish()
    assert answers(outcomes) == [solo_tokens([*SYSTEM, i], 5) for i in range(4)]
    assert [outcome.reused_tokens for outcome in outcomes] == [0, 20, 20, 20]


def test_a_long_conversation_is_kept_when_another_shares_only_its_beginning():
    made = harness()
    long = [*SYSTEM, *range(30)]
    finish_one(made, long)
    other = finish_one(made, [*SYSTEM, 240, 241])
    assert other.reused_tokens == 20
    assert made.session.copies == [(0, 1, 20)]
    assert finish_one(made, [*long, 9]).reused_tokens >= len(long)


def test_the_slot_that_was_left_alone_for_longest_is_overwritten():
    made = harness([1, 2], full_batch_size=2)
    finish_one(made, [1] * 10)
    finish_one(made, [2] * 10)
    finish_one(made, [3] * 10)  # takes the slot of the ones
    assert finish_one(made, [*[2] * 10, 5]).reused_tokens == 10
    assert finish_one(made, [*[1] * 10, 5]).reused_tokens == 0


def test_the_only_slot_is_reused_as_far_as_it_goes():
    made = harness([1], full_batch_size=1)
    finish_one(made, [*SYSTEM, *range(30)])
    assert finish_one(made, [*SYSTEM, 99, 98]).reused_tokens == 20
    assert finish_one(made, [*SYSTEM[:3], 99]).reused_tokens == 3


def test_a_target_that_cannot_copy_starts_from_a_free_slot_or_not_at_all():
    made = harness(copies_slots=False)
    made.add([*SYSTEM, 1], max_tokens=30)
    made.step(6)
    made.add([*SYSTEM, 2], max_tokens=3)
    assert [outcome.reused_tokens for outcome in made.finish()] == [0, 0]
    assert finish_one(made, [*SYSTEM, 3]).reused_tokens == 20


@pytest.mark.parametrize("when", ["step", "copy"])
def test_what_a_failed_request_left_is_not_reused(when):
    made = harness()
    made.add([*SYSTEM, 1], max_tokens=30)
    made.step(5)

    def fault(*_):
        raise OSError("boom")

    if when == "step":
        made.session.fault = fault
        made.step()
        made.session.fault = None
        assert isinstance(made.events[0][-1], OSError)
        assert finish_one(made, [*SYSTEM, 2]).reused_tokens == 0
    else:
        made.session.copy_slot = fault
        failed = made.add([*SYSTEM, 2], max_tokens=3)
        made.step(2)
        assert isinstance(made.events[failed][-1], OSError)
        del made.session.copy_slot
        assert answers(made.finish()[:1]) == [solo_tokens([*SYSTEM, 1], 30)]
        assert finish_one(made, [*SYSTEM, 2]).reused_tokens == 20


def test_a_rejected_draft_is_not_taken_for_a_token():
    table_options = {"num_speculative_tokens": [0, 3]}
    made = harness([1], full_batch_size=1, speculation=Scripted(wrong_at(1)), table_options=table_options)
    prompt = SYSTEM[:5]
    first = finish_one(made, prompt, 9)
    assert finish_one(made, [*prompt, *first.token_ids, 3], 9).reused_tokens == 5 + 8


# Short tokens from a few, so that many prompts begin alike.
PROMPT = st.lists(st.sampled_from([1, 2, VOCAB - 1]), min_size=1, max_size=3).flatmap(
    lambda head: st.lists(st.sampled_from([1, 2]), max_size=14).map(lambda tail: [*SYSTEM[:9], *head, *tail])
)
REQUEST = st.tuples(PROMPT, st.integers(1, 12), st.integers(0, 9), st.none() | st.integers(0, 6))


@settings(max_examples=120, deadline=None)
@given(st.lists(REQUEST, min_size=2, max_size=9), st.integers(1, 4), st.booleans(), st.booleans())
def test_whatever_comes_and_goes_the_answers_are_those_without_reuse(requests, slots, copies, speculate):
    table_options = {"num_speculative_tokens": [0, 3]} if speculate else None
    speculation = Scripted(wrong_at(2)) if speculate else None
    options = {"copies_slots": copies, "full_batch_size": slots, "prefill_seq_len": 5, "table_options": table_options}
    made = harness([slots], speculation, **options)
    for prompt, max_tokens, pause, abort_after in requests:
        request_id = made.add(prompt, max_tokens=max_tokens)
        if abort_after is not None:
            made.step(abort_after)
            made.core.abort(request_id)
        made.step(pause)
    for (prompt, max_tokens, _, _), outcome in zip(requests, made.finish(), strict=True):
        expected, reason = solo_tokens(prompt, max_tokens)
        if outcome.finish_reason == "abort":
            assert outcome.token_ids == expected[: len(outcome.token_ids)]
        else:
            assert (outcome.token_ids, outcome.finish_reason) == (expected, reason)
    assert made.core.scheduler.held_slots == frozenset()
