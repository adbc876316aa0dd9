"""Callers that leave, steps that fail, and closing the engine."""

import gc
import threading

import pytest
from engine_harness import answers, engine_threads, greedy, wait_until
from engine_mock import mock_program, solo_tokens

from polybatch.engine import Engine
from polybatch.errors import EngineClosedError, RequestFailedError


@pytest.mark.parametrize("leave", ["close", "abort", "drop"])
def test_streams_that_leave_free_their_slots(leave):
    program = mock_program([1, 2], full_batch_size=2)
    with Engine(program) as engine:
        program.last_session.delay_s = 0.001
        for _ in range(10 if leave != "drop" else 50):
            streams = [engine.stream([i + 1], greedy(60)) for i in range(2)]
            queued = engine.stream([9], greedy(60))
            for stream in streams:
                next(stream)
            if leave == "drop":
                del stream, streams, queued
            else:
                for stream in [*streams, queued]:
                    stream.close() if leave == "close" else engine.abort(stream.request_id)
            steps = engine.stats.steps
            wait_until(lambda: engine.stats.live == engine.stats.waiting == 0)
            assert engine.stats.steps <= steps + 2
        completions = engine.generate([[3], [4]], greedy(4))
    assert answers(completions) == [solo_tokens([3], 4), solo_tokens([4], 4)]


def test_a_for_loop_that_breaks_aborts_its_request():
    program = mock_program()
    with Engine(program) as engine:
        program.last_session.delay_s = 0.001
        for _ in engine.stream([1], greedy(60)):
            break
        wait_until(lambda: engine.stats.finished == {"abort": 1})


def test_an_aborted_request_delivers_what_it_has():
    program = mock_program()
    with Engine(program) as engine:
        program.last_session.delay_s = 0.002
        handle = engine.add_request([1], greedy(60))
        next(handle)
        handle.abort()
        result = handle.result()
    assert result.finish_reason == "abort"
    assert result.token_ids == solo_tokens([1], 60)[0][: len(result.token_ids)]
    assert 1 <= len(result.token_ids) < 60


def test_closing_a_stream_ends_its_iteration():
    program = mock_program()
    with Engine(program) as engine:
        program.last_session.delay_s = 0.001
        stream = engine.stream([1], greedy(60))
        next(stream)
        stream.close()
        assert list(stream) == []


def test_a_failed_step_is_raised_to_its_caller_and_the_engine_goes_on():
    program = mock_program()
    with Engine(program) as engine:

        def fault(inputs, _step):
            if (inputs["input_ids"] == 55).any():
                raise OSError("boom")

        program.last_session.fault = fault
        good = engine.add_request([1], greedy(3))
        bad = engine.add_request([55], greedy(3))
        with pytest.raises(RequestFailedError, match=r"request 1 failed: OSError\('boom'\)") as caught:
            bad.result()
        assert isinstance(caught.value.__cause__, OSError)
        assert answers([good.result()]) == [solo_tokens([1], 3)]
        with pytest.raises(RequestFailedError, match="boom"):
            engine.generate([[2], [55]], greedy(3))
        assert answers(engine.generate([4], greedy(3))) == [solo_tokens([4], 3)]


def test_an_interrupt_during_generate_aborts_the_rest(monkeypatch):
    program = mock_program()
    with Engine(program) as engine:
        program.last_session.delay_s = 0.002

        def interrupted(_handle):
            raise KeyboardInterrupt

        monkeypatch.setattr("polybatch.engine.handle.RequestHandle.result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate([[1], [2], [3], [4], [5]], greedy(60))
        wait_until(lambda: engine.stats.finished == {"abort": 5})


def test_close_fails_what_is_pending_and_can_be_repeated():
    program = mock_program([1], full_batch_size=1)
    engine = Engine(program)
    program.last_session.delay_s = 0.005
    live, queued = engine.add_request([1], greedy(60)), engine.add_request([2], greedy(60))
    next(live)
    engine.close()
    engine.close()
    for handle in (live, queued):
        with pytest.raises(EngineClosedError, match="did not finish"):
            handle.result()
    with pytest.raises(EngineClosedError, match="create a new Engine"):
        engine.generate([1])
    assert program.last_session.close_calls == 1


def test_close_from_several_threads_wakes_the_waiting():
    program = mock_program()
    engine = Engine(program)
    program.last_session.delay_s = 0.005
    outcomes = []

    def run():
        try:
            engine.generate([1], greedy(60))
        except EngineClosedError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: engine.stats.live == 4)
    closers = [threading.Thread(target=engine.close) for _ in range(3)]
    for thread in closers:
        thread.start()
    for thread in threads + closers:
        thread.join(5)
    assert len(outcomes) == 4


def test_a_dropped_engine_closes_itself():
    program = mock_program()
    engine = Engine(program)
    handle = engine.add_request([1], greedy(5))
    del engine
    assert answers([handle.result()]) == [solo_tokens([1], 5)]
    del handle
    gc.collect()
    assert engine_threads() == []
    assert program.last_session.close_calls == 1


def test_an_internal_error_is_told_to_every_caller(monkeypatch):
    with Engine(mock_program()) as engine:
        monkeypatch.setattr(engine._worker._core.scheduler, "plan", lambda: 1 / 0)
        handle = engine.add_request([1], greedy(5))
        with pytest.raises(EngineClosedError, match="ZeroDivisionError"):
            handle.result()
        with pytest.raises(EngineClosedError, match="internal error"):
            engine.generate([1])
