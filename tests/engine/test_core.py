"""The engine without its thread, one step at a time, against the mock program."""

import numpy as np
import pytest
from engine_harness import Harness, answers
from engine_mock import mock_program, solo_tokens
from tiny_tokenizers import byte_level

from polybatch.engine.request import Delta


def test_more_requests_than_slots_all_get_their_own_answer():
    harness = Harness(mock_program())
    prompts = [[i + 1] * (3 * i + 1) for i in range(9)]
    for prompt in prompts:
        harness.add(prompt, max_tokens=6)
    assert answers(harness.finish()) == [solo_tokens(prompt, 6) for prompt in prompts]


def test_a_survivor_in_the_last_slot_goes_on_at_batch_1_and_a_newcomer_takes_slot_0():
    harness = Harness(mock_program())
    for i in range(3):
        harness.add([i + 1], max_tokens=5)
    harness.add([9, 9], max_tokens=25)
    while harness.decode_slots[-1:] != [(3,)]:
        harness.step()
    harness.step()
    assert (harness.session.steps[-1].batch_size, harness.session.steps[-1].slots) == (1, (3,))
    harness.add([5], max_tokens=4)
    harness.step(2)
    assert (harness.session.steps[-1].batch_size, harness.session.steps[-1].slots) == (2, (0, 3))
    expected = [solo_tokens([i + 1], 5) for i in range(3)] + [solo_tokens([9, 9], 25), solo_tokens([5], 4)]
    assert answers(harness.finish()) == expected


@pytest.mark.parametrize(("live", "batch"), [(1, 1), (2, 2), (3, 4), (4, 4)])
def test_live_rows_run_at_the_smallest_batch_that_holds_them(live, batch):
    harness = Harness(mock_program())
    for i in range(live):
        harness.add([i], max_tokens=12)
    harness.finish()
    full = [step for step in harness.session.steps if len(step.slots) == live and step.phase == "decode"]
    assert full
    assert {step.batch_size for step in full} == {batch}


def test_no_live_rows_means_no_step():
    harness = Harness(mock_program())
    assert harness.core.step() is False
    assert harness.session.steps == []


def test_more_live_rows_than_the_largest_batch_run_as_several_steps():
    harness = Harness(mock_program([1, 2], full_batch_size=5))
    prompts = [[i] for i in range(5)]
    for prompt in prompts:
        harness.add(prompt, max_tokens=12)
    assert answers(harness.finish()) == [solo_tokens(prompt, 12) for prompt in prompts]
    assert all(slots in harness.decode_slots for slots in [(0, 1), (2, 3), (4,)])


def test_measured_times_choose_the_cover():
    program = mock_program([1, 4, 8], full_batch_size=8)
    rows = {row.batch_size: row for row in program.table.decode}
    program.step_ms = {rows[1]: 1.0, rows[4]: 2.0, rows[8]: 10.0}
    harness = Harness(program)
    for i in range(5):
        harness.add([i], max_tokens=12)
    harness.finish()
    assert (0, 1, 2, 3) in harness.decode_slots
    assert (4,) in harness.decode_slots
    assert not any(step.batch_size == 8 for step in harness.session.steps)


def test_a_step_is_not_split_where_padding_costs_nothing():
    program = mock_program([1, 4, 8], full_batch_size=8)
    rows = {row.batch_size: row for row in program.table.decode}
    program.step_ms = {rows[1]: 1.0, rows[4]: 2.0, rows[8]: 10.0}
    harness = Harness(program)
    harness.session.skips_padding = True
    for i in range(5):
        harness.add([i], max_tokens=12)
    harness.finish()
    assert (0, 1, 2, 3, 4) in harness.decode_slots


def test_the_end_of_the_context_is_length():
    harness = Harness(mock_program(ctx_len=64))
    harness.add([1] * 63, max_tokens=100)
    harness.add([2] * 60, max_tokens=100)
    harness.add([3] * 62, max_tokens=None)
    completions = harness.finish()
    assert [len(completion.token_ids) for completion in completions] == [1, 4, 2]
    assert {completion.finish_reason for completion in completions} == {"length"}


def test_eos_ends_a_request_and_is_its_last_token():
    prompt = [3, 1, 4]
    tokens, _ = solo_tokens(prompt, 20)
    eos = (tokens[4], tokens[7])
    harness = Harness(mock_program(eos_token_ids=eos))
    harness.add(prompt, max_tokens=20)
    harness.add(prompt, max_tokens=20, ignore_eos=True)
    first, second = harness.finish()
    assert (first.token_ids, first.finish_reason) == solo_tokens(prompt, 20, eos=eos)
    assert (second.token_ids, second.finish_reason) == (tokens, "length")


def tokens_with_neighbours(batch_size, neighbours, **params):
    program = mock_program(batch_size, full_batch_size=4)
    harness = Harness(program)
    for i in range(neighbours):
        harness.add([i + 1] * (i + 1), max_tokens=10, temperature=1.0)
    request_id = harness.add([8, 8], max_tokens=20, **params)
    for i in range(neighbours):
        harness.add([i + 50], max_tokens=10, temperature=1.0)
    return harness.finish()[request_id].token_ids


@pytest.mark.parametrize("batch_size", [[1], [2], [4], [1, 2, 4]])
def test_a_seed_does_not_depend_on_neighbours_or_batch_size(batch_size):
    params = {"temperature": 0.8, "seed": 42, "top_p": 0.9, "top_k": 20}
    expected = tokens_with_neighbours([1], 0, **params)
    assert len(set(expected)) > 3
    assert {tokens_with_neighbours(batch_size, count, **params) for count in (0, 1, 3, 7)} == {expected}


def scripted(texts, **params):
    """Run a request whose tokens spell ``texts``, one token each; returns (deltas, completion)."""
    tokenizer = byte_level(*texts)

    def logits_after(tokens):
        return np.eye(len(tokenizer), dtype=np.float32)[256 + min(len(tokens), len(texts)) - 1]

    program = mock_program(
        [1], full_batch_size=1, text_tokenizer=tokenizer, vocab_size=len(tokenizer), logits_after=logits_after
    )
    harness = Harness(program)
    harness.add([1], max_tokens=len(texts), **params)
    completion = harness.finish()[0]
    return [event for event in harness.events[0] if isinstance(event, Delta)], completion


def test_a_stop_string_across_tokens_ends_the_request_just_before_it():
    deltas, completion = scripted(("al", "ph", "a b", "et", "x"), stop="a be")
    assert "".join(delta.text for delta in deltas) == completion.text == "alph"
    assert completion.finish_reason == "stop"
    assert completion.token_ids == (256, 257, 258, 259)
    assert [delta.finish_reason for delta in deltas] == [None, None, None, "stop"]


def test_held_back_text_is_released_at_the_end():
    deltas, completion = scripted(("al", "ph", "a b"), stop=("a be",))
    assert [delta.text for delta in deltas] == ["al", "ph", "a b"]
    assert (completion.text, completion.finish_reason) == ("alpha b", "length")


def test_the_prompt_is_read_in_chunks_and_counted():
    harness = Harness(mock_program())
    harness.add([1] * 20, max_tokens=3)
    harness.finish()
    assert [step.positions[0][0] for step in harness.session.steps] == [0, 8, 16, 20, 21]
    stats = harness.stats.snapshot()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.requests_finished) == (20, 3, 1)
    prefill, decode = stats.specializations.values()
    assert (prefill.name, prefill.steps, prefill.live_rows, prefill.padding_rows) == ("prefill b=1 s=8", 3, 3, 0)
    assert (decode.name, decode.steps, decode.p50_ms, decode.percentile_ms(99)) == ("decode b=1", 2, 1000.0, 1000.0)


def test_padding_rows_are_counted():
    harness = Harness(mock_program([4]))
    harness.add([1], max_tokens=3)
    harness.finish()
    decode = harness.stats.snapshot().specializations["decode b=4"]
    assert (decode.steps, decode.live_rows, decode.padding_rows) == (2, 2, 6)


def test_a_program_with_compute_context_lengths_counts_the_row_that_ran():
    options = {"comp_ctx_lengths_prefill": [8, 32], "comp_ctx_lengths_decode": [16, 64]}
    harness = Harness(mock_program(2, full_batch_size=2, table_options=options))
    harness.add([1] * 10, max_tokens=20)
    assert answers(harness.finish()) == [solo_tokens([1] * 10, 20)]
    steps = {name: row.steps for name, row in harness.stats.snapshot().specializations.items()}
    assert steps == {
        "prefill b=1 s=8 CCL=8": 1,
        "prefill b=1 s=8 CCL=32": 1,
        "decode b=2 CCL=16": 6,
        "decode b=2 CCL=64": 13,
    }


def test_static_batching_runs_batches_of_requests_in_fixed_rows():
    harness = Harness(mock_program(3, continuous_batching=False))
    prompts = [[i + 1] * (5 * i + 1) for i in range(5)]
    lengths = [9, 2, 5, 4, 3]
    for prompt, length in zip(prompts, lengths, strict=True):
        harness.add(prompt, max_tokens=length)
    expected = [solo_tokens(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    assert answers(harness.finish()) == expected
    assert harness.session.steps[0].slots == (0, 1, 2)  # one chunk for all prompts
    assert (0,) in harness.decode_slots  # the longest of the batch ends alone
