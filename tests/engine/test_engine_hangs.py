"""Whatever goes wrong on the engine's thread, or takes that thread away, every caller hears of it."""

import gc
import json
import os
import signal
import threading
import time

import pytest
from engine_harness import answers, engine_threads, greedy, wait_until
from engine_mock import MockProgram, mock_program, solo_tokens
from tiny_tokenizers import byte_level

from polybatch.engine import Engine
from polybatch.errors import EngineClosedError, ProgramCorruptError, ProgramError, RequestFailedError


class DamagedProgram(MockProgram):
    """Its eos_token_ids, read late, is what kills a worker."""

    @property
    def eos_token_ids(self):
        raise ProgramCorruptError("generation_config.json is damaged")

    @eos_token_ids.setter
    def eos_token_ids(self, _value):
        pass


def error_of(handle):
    """What ``result`` raises, or a failure if it is still waiting after a few seconds."""
    caught = []

    def wait():
        try:
            handle.result()
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(5)
    assert caught, "the request got no event"
    return caught[0]


def test_a_damaged_program_is_an_error_of_the_constructor():
    program = DamagedProgram(mock_program().table)
    with pytest.raises(ProgramCorruptError, match="generation_config"):
        Engine(program)
    assert all(session.close_calls == 1 for session in program.sessions)
    assert engine_threads() == []


@pytest.mark.parametrize("ids", [("2",), "2", (2.0,), (None,), (True,)])
def test_eos_ids_that_are_no_ints_are_an_error_of_the_constructor(ids):
    with pytest.raises(ProgramError, match="eos_token_ids"):
        Engine(mock_program(eos_token_ids=ids))


def test_eos_ids_outside_the_vocabulary_are_never_chosen():
    with Engine(mock_program(eos_token_ids=(-1, 10**6))) as engine:
        completions = engine.generate([[1]], greedy(4, min_tokens=2))
    assert answers(completions) == [solo_tokens([1], 4)]


def test_a_damaged_tokenizer_is_an_error_of_the_constructor(monkeypatch):
    def damaged(_program):
        raise ProgramCorruptError("tokenizer.json is damaged")

    monkeypatch.setattr(MockProgram, "tokenizer", damaged)
    with pytest.raises(ProgramCorruptError, match=r"tokenizer\.json"):
        Engine(mock_program())


def test_an_error_while_adding_reaches_every_request_of_the_submit_and_no_other(monkeypatch):
    with Engine(mock_program()) as engine:
        scheduler = engine._worker._core.scheduler
        add = scheduler.add

        def broken(request_id, prompt_tokens):
            if prompt_tokens == 2:
                raise LookupError("cannot add")
            add(request_id, prompt_tokens)

        monkeypatch.setattr(scheduler, "add", broken)
        with pytest.raises(RequestFailedError, match="cannot add"):
            engine.generate([[1], [1, 2], [3]], greedy(3))
        wait_until(lambda: engine.stats.finished == {"error": 3})
        assert (engine.stats.live, engine.stats.waiting) == (0, 0)
        assert answers(engine.generate([4], greedy(3))) == [solo_tokens([4], 3)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_death_while_adding_is_told_to_all_queued_behind_it_too(monkeypatch):
    program = mock_program()
    with Engine(program) as engine:
        gate = threading.Event()
        engine._worker._inbox.put(gate.wait)  # everything below is queued before any of it is added

        def dies(_request_id, _prompt_tokens):
            raise SystemExit("unexpected")

        monkeypatch.setattr(engine._worker._core.scheduler, "add", dies)
        handles = [engine.add_request([i + 1], greedy(3)) for i in range(3)]
        gate.set()
        errors = [error_of(handle) for handle in handles]
        assert all(isinstance(error, (RequestFailedError, EngineClosedError)) for error in errors)
        assert all("unexpected" in str(error) for error in errors)
        with pytest.raises(EngineClosedError, match="internal error"):
            engine.generate([1])
    assert program.last_session.close_calls == 1


def test_an_error_while_freeing_does_not_keep_the_others_waiting(monkeypatch):
    with Engine(mock_program()) as engine:
        gate = threading.Event()
        engine._worker._inbox.put(gate.wait)
        scheduler = engine._worker._core.scheduler
        monkeypatch.setattr(scheduler, "plan", lambda: 1 / 0)
        monkeypatch.setattr(scheduler, "remove", lambda _id: 1 / 0)
        handles = [engine.add_request([i + 1], greedy(3)) for i in range(3)]
        gate.set()
        assert [type(error_of(handle)) for handle in handles] == [EngineClosedError] * 3


def test_a_tokenizer_error_while_aborting_is_that_requests_alone(monkeypatch):
    program = mock_program(text_tokenizer=byte_level())
    with Engine(program) as engine:
        gate = threading.Event()
        engine._worker._inbox.put(gate.wait)
        bad, good = engine.add_request([1], greedy(60)), engine.add_request([2], greedy(3))
        bad.abort()
        with monkeypatch.context() as patch:
            patch.setattr("polybatch.engine.detokenizer.Detokenizer.finish", lambda _self: 1 / 0)
            gate.set()
            assert isinstance(error_of(bad).__cause__, ZeroDivisionError)
        assert good.request_id == 1
        assert answers(engine.generate([[4]], greedy(3))) == [solo_tokens([4], 3)]


def test_closing_many_waiting_requests_takes_linear_time():
    program = mock_program()
    engine = Engine(program)
    program.last_session.delay_s = 0.001
    handles = [engine.add_request([1], greedy(60)) for _ in range(30_000)]
    wait_until(lambda: engine.stats.live + engine.stats.waiting > 29_000, timeout_s=20)
    started = time.perf_counter()
    engine.close()
    assert time.perf_counter() - started < 2
    with pytest.raises(EngineClosedError):
        handles[-1].result()


def in_a_fork(run):
    """What ``run()`` returns in a forked child, as JSON; a child that hangs is killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        try:
            os.write(writer, json.dumps(run()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, "the child hung"
    return json.loads(text)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_is_told_that_it_has_no_engine():
    program = mock_program(text_tokenizer=byte_level())
    with Engine(program) as engine:
        program.last_session.delay_s = 0.002
        handle, dropped = engine.add_request([1], greedy(40)), [engine.add_request([2], greedy(40))]
        uses = {
            "generate": lambda: engine.generate("a"),
            "stream": lambda: engine.stream("a"),
            "agenerate": lambda: engine.agenerate("a").send(None),
            "astream": lambda: engine.astream("a"),
            "abort": lambda: engine.abort(0),
            "stats": lambda: engine.stats,
            "next": lambda: next(handle),
            "result": handle.result,
            "abort a handle": handle.abort,
        }

        def run():
            said = {}
            for name, use in uses.items():
                try:
                    use()
                except EngineClosedError as error:
                    said[name] = str(error)
            dropped.clear()
            gc.collect()
            handle.close()
            engine.close()
            return said

        # Locks that other threads hold at the fork stay held in the child.
        with engine._intake._prompts._lock, engine._worker._lock:
            said = in_a_fork(run)
        assert said.keys() == uses.keys()
        for message in said.values():
            assert f"belongs to process {os.getpid()} " in message
            assert "open an engine in each process" in message
        assert answers([handle.result()]) == [solo_tokens([1], 40)]
    assert program.last_session.close_calls == 1
