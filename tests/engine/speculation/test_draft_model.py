"""The draft model keeps its cache in step with the engine's sequences; its mock session checks every position."""

import numpy as np
import pytest
from engine_harness import Harness, answers
from engine_mock import VOCAB, mock_program, near_next_token, solo_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from request_mixes import BATCHES
from speculation.mixes import REQUESTS, check_any_mix
from tiny_tokenizers import byte_level, sentencepiece

from polybatch.engine import DraftModel, Engine

K = 3


def target_program(**options):
    return mock_program(prefill_seq_len=9, table_options={"num_speculative_tokens": [0, K]}, **options)


def draft_program(batch_size=(1, 2, 4), *, lengths=None, logits_after=near_next_token, **options):
    table_options = {"num_speculative_tokens": list(lengths)} if lengths else None
    options = {"prefill_seq_len": 8, **options}
    return mock_program(batch_size, table_options=table_options, logits_after=logits_after, **options)


def often_wrong(tokens):
    """As the mock's logits, but another token after every seventh."""
    return np.roll(near_next_token(tokens), 1 if len(tokens) % 7 == 0 else 0)


def run(draft, prompts=([5],), max_tokens=20, fixed_k=K, **params):
    harness = Harness(target_program(), DraftModel(draft), fixed_k)
    for prompt in prompts:
        harness.add(prompt, max_tokens=max_tokens, **params)
    return harness, harness.finish()


def draft_steps(draft, phase="decode"):
    return [step for step in draft.last_session.steps if step.phase == phase]


@pytest.mark.parametrize("logits_after", [near_next_token, often_wrong])
@pytest.mark.parametrize("lengths", [None, [0, 1], [4]])
def test_answers_are_those_of_one_token_at_a_time(logits_after, lengths):
    prompts = [[i + 1] * (5 * i + 1) for i in range(6)]
    _, outcomes = run(draft_program(logits_after=logits_after, lengths=lengths), prompts)
    assert answers(outcomes) == [solo_tokens(prompt, 20) for prompt in prompts]


def test_a_perfect_draft_is_accepted_whole_and_lacks_one_token_each_time():
    """The last draft of a full acceptance has not been run by the draft model: two tokens are pending, not one."""
    draft = draft_program([1])
    harness, outcomes = run(draft, max_tokens=1 + 3 * (K + 1))
    assert harness.stats.snapshot().speculation.acceptance == 1.0
    assert outcomes[0].speculation.steps == {(1, K): 3}
    assert [step.positions[0] for step in draft_steps(draft)] == [(i,) for i in range(12)]


def test_a_draft_program_with_rows_of_two_tokens_makes_up_in_one_step():
    draft = draft_program([1], lengths=[0, 1])
    run(draft, max_tokens=1 + 3 * (K + 1))
    runs = [step.positions[0] for step in draft_steps(draft)]
    assert runs == [(0, 1), (2,), (3,), (4, 5), (6,), (7,), (8, 9), (10,), (11,)]


def test_prompts_are_read_in_chunks_one_per_step_of_the_engine():
    draft = draft_program()
    harness = Harness(target_program(), DraftModel(draft), K)
    harness.add([1] * 30, max_tokens=12)
    harness.add([2] * 20, max_tokens=12)
    seen = []
    while harness.core.step():
        seen.append(len(draft_steps(draft, "prefill")))
    assert max(np.diff([0, *seen])) == 1
    assert [step.positions[0][0] for step in draft_steps(draft, "prefill")][:3] == [0, 8, 16]
    assert answers([events[-1] for events in harness.events]) == [
        solo_tokens([1] * 30, 12),
        solo_tokens([2] * 20, 12),
    ]


def test_sequences_that_are_caught_up_with_draft_while_another_is_read():
    draft = draft_program()
    harness = Harness(target_program(), DraftModel(draft), K)
    harness.add([1], max_tokens=40)
    harness.step(3)
    harness.add([2] * 30, max_tokens=5)
    first, _ = harness.finish()
    assert first.speculation.acceptance == 1.0
    assert first.speculation.steps.keys() <= {(1, K), (2, K)}


def test_requests_beyond_the_draft_programs_slots_go_without_until_one_is_free():
    draft = draft_program([1], full_batch_size=1)
    harness = Harness(target_program(), DraftModel(draft), K)
    harness.add([1], max_tokens=5)
    harness.add([2], max_tokens=40)
    first, second = harness.finish()
    assert answers([first, second]) == [solo_tokens([1], 5), solo_tokens([2], 40)]
    assert first.speculation.drafted > 0
    assert second.speculation.drafted > 0
    assert {slots for step in draft_steps(draft) for slots in step.slots} == {0}


def test_a_shorter_draft_context_ends_the_drafts_and_not_the_answer():
    draft = draft_program(ctx_len=16)
    _, outcomes = run(draft, max_tokens=40)
    assert answers(outcomes) == [solo_tokens([5], 40)]
    assert 0 < outcomes[0].speculation.drafted <= 16
    assert max(step.positions[0][-1] for step in draft_steps(draft)) == 15


def test_a_prompt_longer_than_the_draft_programs_goes_without():
    _, outcomes = run(draft_program(ctx_len=16), prompts=[[3] * 20])
    assert answers(outcomes) == [solo_tokens([3] * 20, 20)]
    assert outcomes[0].speculation.drafted == 0


def test_a_static_draft_program_will_do():
    prompts = [[i + 1] * (5 * i + 1) for i in range(4)]
    _, outcomes = run(draft_program(4, continuous_batching=False, logits_after=often_wrong), prompts)
    assert answers(outcomes) == [solo_tokens(prompt, 20) for prompt in prompts]


def test_a_seeded_request_gets_the_tokens_of_its_seed():
    params = {"temperature": 0.9, "top_k": 20, "seed": 11}
    harness = Harness(target_program())
    harness.add([5], max_tokens=20, **params)
    (expected,) = harness.finish()
    for fixed_k in (None, K):
        _, (outcome,) = run(draft_program(), fixed_k=fixed_k, **params)
        assert outcome.token_ids == expected.token_ids
    assert outcome.speculation.accepted > 0


def test_padding_of_the_vocabulary_does_not_matter():
    """Some models pad their output layer: more ids than the tokenizer has, differently at each size."""
    tokenizer = byte_level("al")
    for theirs in (VOCAB - 20, VOCAB + 9):
        target = target_program(text_tokenizer=tokenizer)
        draft = draft_program(text_tokenizer=tokenizer, vocab_size=theirs, logits_after=padded_to(theirs))
        harness = Harness(target, DraftModel(draft), K)
        for temperature in (0.0, 0.8):
            harness.add([5, 6], max_tokens=20, temperature=temperature)
        outcomes = harness.finish()
        assert answers(outcomes[:1]) == [solo_tokens([5, 6], 20)]
        assert all(outcome.speculation.accepted > 0 for outcome in outcomes)


def padded_to(size):
    def logits(tokens):
        return np.resize(near_next_token(tokens), size)

    return logits


DRAFT_PROGRAMS = st.tuples(
    st.sampled_from([None, [0, 1], [0, 4]]),  # its K
    st.integers(1, 4),  # its slots
    st.sampled_from([20, 32]),  # its context
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, BATCHES, DRAFT_PROGRAMS, st.booleans())
def test_any_mix_of_requests_equals_the_solo_runs(requests, batches, shape, fixed):
    lengths, slots, ctx_len = shape
    draft = draft_program(
        [min(2, slots)], lengths=lengths, full_batch_size=slots, ctx_len=ctx_len, logits_after=often_wrong
    )
    check_any_mix(requests, batches, DraftModel(draft), fixed_k=7 if fixed else None)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, BATCHES, DRAFT_PROGRAMS, st.booleans())
def test_whatever_comes_and_goes_the_cache_of_a_perfect_draft_is_in_step(requests, batches, shape, fixed):
    """One wrong position in the draft program's cache and it would propose a wrong token."""
    lengths, slots, ctx_len = shape
    draft = draft_program([min(2, slots)], lengths=lengths, full_batch_size=slots, ctx_len=ctx_len)
    greedy = [(*request[:4], {}) for request in requests]
    harness = check_any_mix(greedy, batches, DraftModel(draft), fixed_k=7 if fixed else None, eos=())
    assert harness.stats.snapshot().speculation.acceptance in (None, 1.0)


def test_the_engine_closes_the_draft_session():
    draft = draft_program()
    with Engine(target_program(), DraftModel(draft)) as engine:
        engine.generate([[1]])
    assert draft.last_session.close_calls == 1


def test_another_tokenizer_is_refused():
    target = target_program(text_tokenizer=byte_level("al"))
    for tokenizer, message in (
        (byte_level("al", "ph"), r"another tokenizer: 261 tokens, not 260"),
        (byte_level("ph"), r"another tokenizer: token '.*' has the id"),
        (sentencepiece("al"), "another tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            Engine(target, DraftModel(draft_program(text_tokenizer=tokenizer)))
    with pytest.raises(ValueError, match="it has no tokenizer"):
        Engine(target, DraftModel(draft_program()))
    with pytest.raises(ValueError, match="the program that it drafts for has no tokenizer"):
        Engine(target_program(), DraftModel(draft_program(text_tokenizer=byte_level("al"))))
    with pytest.raises(ValueError, match="100 token ids and the program that it drafts for 251"):
        Engine(target_program(), DraftModel(draft_program(vocab_size=100)))
    Engine(target, DraftModel(draft_program(text_tokenizer=byte_level("al")))).close()
