"""What an engine says about itself: by specialization, by slot, and about its queue."""

from engine_harness import Harness, greedy, wait_until
from engine_mock import mock_program, solo_tokens

from polybatch.engine import Engine


def test_steps_rows_padding_and_seconds_by_specialization():
    table_options = {"num_speculative_tokens": [0, 3]}
    harness = Harness(mock_program([1, 4], prefill_seq_len=9, table_options=table_options))
    for i in range(3):
        harness.add([i + 1], max_tokens=5)
    harness.finish()
    rows = {
        (row.phase, row.batch_size, row.num_speculative_tokens): row
        for row in harness.stats.snapshot().specializations.values()
    }
    prefill, decode = rows["prefill", 1, 0], rows["decode", 4, 0]
    assert (prefill.steps, prefill.live_rows, prefill.padding_rows) == (3, 3, 0)
    assert (decode.live_rows, decode.padding_rows) == (
        12 - rows["decode", 1, 0].steps,
        4 * decode.steps - decode.live_rows,
    )
    assert decode.seconds == decode.total_ms / 1e3 > 0
    assert decode.comp_ctx_length is None


def test_the_length_that_attention_reads_tells_steps_apart():
    table_options = {"comp_ctx_lengths_decode": [16, 64], "comp_ctx_lengths_prefill": [32]}
    harness = Harness(mock_program(1, full_batch_size=2, table_options=table_options))
    harness.add([1], max_tokens=30)
    harness.finish()
    rows = {(row.phase, row.comp_ctx_length): row.steps for row in harness.stats.snapshot().specializations.values()}
    assert rows == {("prefill", 32): 1, ("decode", 16): 15, ("decode", 64): 14}


def test_queue_running_and_free_slots():
    harness = Harness(mock_program([1, 2], full_batch_size=2))
    for i in range(3):
        harness.add([i + 1], max_tokens=5)
    harness.step()
    stats = harness.stats.snapshot()
    assert (stats.live, stats.waiting, stats.free_slots) == (2, 1, 0)
    harness.finish()
    stats = harness.stats.snapshot()
    assert (stats.live, stats.waiting, stats.free_slots) == (0, 0, 2)


def test_slots_say_whose_they_are_how_far_and_how_fast():
    harness = Harness(mock_program([1, 2], full_batch_size=2), prefix_cache=True)
    clock = [0.0]
    harness.core._clock = lambda: clock[0]
    harness.add([1] * 10, max_tokens=9)
    assert [slot.request_id for slot in harness.core.slots()] == [None, None]
    harness.step()
    first, second = harness.core.slots()
    assert (first.request_id, first.position, first.prompt_tokens, first.generated_tokens) == (0, 8, 10, 0)
    assert (first.tokens_per_s, second.request_id, second.position) == (None, None, 0)
    harness.step(5)
    clock[0] = 2.0
    first, _ = harness.core.slots()
    assert (first.position, first.generated_tokens, first.tokens_per_s) == (14, 5, 2.0)
    harness.finish()
    first, _ = harness.core.slots()
    assert (first.request_id, first.position) == (None, 18)


def test_slots_can_be_asked_for_while_the_engine_runs():
    program = mock_program()
    with Engine(program) as engine:
        program.last_session.delay_s = 0.001
        handles = [engine.add_request([i + 1], greedy(40)) for i in range(8)]
        wait_until(lambda: any(slot.generated_tokens > 1 for slot in engine.slots()))
        seen = {slot.request_id for _ in range(200) for slot in engine.slots()}
        assert seen & {handle.request_id for handle in handles}
        assert [handle.result().token_ids for handle in handles] == [solo_tokens([i + 1], 40)[0] for i in range(8)]
