"""The bound on the queue, deadlines, and draining."""

import random
import threading
import time

import pytest
from engine_harness import Harness, answers, greedy, wait_until
from engine_mock import mock_program, solo_tokens

from polybatch.engine import Engine
from polybatch.engine.admission import Admission
from polybatch.errors import EngineClosedError, EngineDrainingError, QueueFullError, RequestFailedError


@pytest.fixture
def held():
    """An engine of two slots and a queue of two, whose steps wait for the event."""
    program = mock_program([1, 2], full_batch_size=2)
    go = threading.Event()
    with Engine(program, max_queue=2) as engine:
        program.last_session.fault = lambda *_: go.wait(10)
        yield engine, go
        go.set()


def test_slots_and_queue_can_be_filled_and_no_more(held):
    engine, go = held
    handles = [engine.add_request([i + 1], greedy(3)) for i in range(4)]
    with pytest.raises(QueueFullError, match="max_queue=2; try again later"):
        engine.add_request([9], greedy(3))
    go.set()
    assert answers(handle.result() for handle in handles) == [solo_tokens([i + 1], 3) for i in range(4)]
    assert engine.generate([[9]], greedy(3))[0].token_ids == solo_tokens([9], 3)[0]


def test_several_prompts_are_let_in_together_or_not_at_all(held):
    engine, go = held
    with pytest.raises(QueueFullError, match="5 more requests"):
        engine.generate([[i + 1] for i in range(5)], greedy(2))
    go.set()
    assert len(engine.generate([[i + 1] for i in range(4)], greedy(2))) == 4


def test_a_request_that_ends_early_makes_room(held):
    engine, go = held
    handles = [engine.add_request([1], greedy(3)) for _ in range(4)]
    for handle in handles[2:]:
        handle.abort()
    go.set()
    wait_until(lambda: engine.stats.requests_finished == 4)
    assert len(engine.generate([[1]] * 4, greedy(2))) == 4


def test_a_request_that_fails_makes_room():
    program = mock_program([1], full_batch_size=1)
    with Engine(program, max_queue=0) as engine:
        program.last_session.fault = lambda *_: 1 / 0
        for _ in range(3):
            with pytest.raises(RequestFailedError):
                engine.generate([[1]], greedy(2))


def test_a_queue_of_none_refuses_what_cannot_run_at_once():
    admission = Admission(2, 0)
    admission.enter(2)
    with pytest.raises(QueueFullError):
        admission.enter(1)
    admission.leave()
    admission.enter(1)


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_bound_that_is_none_is_refused(value, error):
    with pytest.raises(error, match="max_queue"):
        Engine(mock_program(), max_queue=value)


def test_a_deadline_ends_a_running_request_with_what_it_has():
    harness = Harness(mock_program())
    clock = [0.0]
    harness.core._clock = lambda: clock[0]
    harness.add([1], max_tokens=40, deadline_s=5.0)
    harness.add([2], max_tokens=10, deadline_s=99.0)
    harness.step(6)
    clock[0] = 5.0
    late, other = harness.finish()
    assert late.finish_reason == "timeout"
    assert 0 < len(late.token_ids) < 10
    assert late.token_ids == solo_tokens([1], 40)[0][: len(late.token_ids)]
    assert answers([other]) == [solo_tokens([2], 10)]
    assert harness.stats.snapshot().finished == {"timeout": 1, "length": 1}
    assert harness.core.scheduler.held_slots == frozenset()


def test_a_deadline_ends_a_request_that_still_waits():
    harness = Harness(mock_program([1], full_batch_size=1))
    clock = [0.0]
    harness.core._clock = lambda: clock[0]
    harness.add([1], max_tokens=20)
    harness.add([2], max_tokens=10, deadline_s=5.0)
    harness.step(3)
    clock[0] = 6.0
    harness.step()
    completion = harness.events[1][-1]
    assert (completion.finish_reason, completion.token_ids) == ("timeout", ())
    assert answers(harness.finish()[:1]) == [solo_tokens([1], 20)]


def test_deadlines_of_requests_that_have_ended_do_not_pile_up():
    harness = Harness(mock_program())
    for i in range(300):
        harness.add([1], max_tokens=1, deadline_s=1e9 + i)
        harness.step(2)
    assert len(harness.core._deadlines) < 100


def test_a_timeout_is_counted_from_the_call():
    program = mock_program()
    with Engine(program) as engine:
        program.last_session.delay_s = 0.01
        started = time.monotonic()
        completion = engine.add_request([1], greedy(60), timeout_s=0.1).result()
        assert completion.finish_reason == "timeout"
        assert 0.08 < time.monotonic() - started < 0.5
        assert engine.add_request([1], greedy(3), timeout_s=60).result().finish_reason == "length"
        for bad in (-1, float("nan")):
            with pytest.raises(ValueError, match="timeout_s"):
                engine.add_request([1], greedy(3), timeout_s=bad)


def test_draining_finishes_what_is_there_and_takes_no_more():
    program = mock_program([1, 2], full_batch_size=2)
    with Engine(program) as engine:
        program.last_session.delay_s = 0.002
        handles = [engine.add_request([i + 1], greedy(20)) for i in range(4)]
        assert engine.drain(0) is False
        with pytest.raises(EngineDrainingError):
            engine.add_request([9], greedy(2))
        assert engine.drain(10) is True
        assert answers(handle.result() for handle in handles) == [solo_tokens([i + 1], 20) for i in range(4)]
        assert engine.drain() is True


def test_closing_ends_a_drain():
    program = mock_program()
    engine = Engine(program)
    program.last_session.delay_s = 0.01
    handle = engine.add_request([1], greedy(60))
    drained = []
    thread = threading.Thread(target=lambda: drained.append(engine.drain()))
    thread.start()
    time.sleep(0.03)
    engine.close()
    thread.join(5)
    assert drained == [True]
    handle.abort()


def test_an_engine_that_stops_on_an_error_of_its_own_ends_a_drain(monkeypatch):
    program = mock_program()
    engine = Engine(program)
    monkeypatch.setattr(engine._core.scheduler, "remove", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(engine._core.scheduler, "plan", lambda: 1 / 0)
    handle = engine.add_request([1], greedy(3))
    assert engine.drain(10) is True
    engine.close()
    with pytest.raises(EngineClosedError):
        handle.result()


def test_clients_that_come_and_leave_at_random_leave_nothing_behind():
    program = mock_program([1, 2, 4], full_batch_size=4)
    wrong: list[object] = []

    def client(engine, seed):
        rng = random.Random(seed)
        for i in range(25):
            prompt = [1, 2, 3, 4, 5, 6, 7, 8, rng.randrange(9), *[seed] * rng.randrange(9)]
            try:
                timeout_s = rng.choice([None, None, 0.002])
                handle = engine.add_request(prompt, greedy(1 + rng.randrange(20)), timeout_s=timeout_s)
            except QueueFullError:
                time.sleep(0.002)
                continue
            if i % 3 == 0:
                next(handle)
                handle.close()
                continue
            got = handle.result()
            if got.token_ids != solo_tokens(prompt, 20)[0][: len(got.token_ids)]:
                wrong.append(got)

    with Engine(program, max_queue=3) as engine:
        threads = [threading.Thread(target=client, args=(engine, seed)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        wait_until(lambda: engine.stats.live + engine.stats.waiting == 0)
        assert engine.drain(5)
        assert not wrong
        stats = engine.stats
        assert stats.failed_steps == 0 and "error" not in stats.finished
        assert (stats.free_slots, len(engine._core._sequences), engine._admission._held) == (4, 0, 0)
