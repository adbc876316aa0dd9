import asyncio
import time

import pytest
from engine_mock import mock_program, solo_tokens

from polybatch.engine import Engine, SamplingParams
from polybatch.errors import EngineClosedError, RequestFailedError


def greedy(max_tokens):
    return SamplingParams(max_tokens=max_tokens)


def run(scenario, **options):
    """Run ``scenario(engine, session)`` on a fresh engine and event loop."""
    program = mock_program(**options)
    with Engine(program) as engine:
        return asyncio.run(scenario(engine, program.last_session))


async def until(condition):
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition did not come true")


def test_agenerate_returns_results_in_the_order_given():
    async def scenario(engine, _session):
        many = [engine.agenerate([[i], [i, i]], greedy(6)) for i in range(5)]
        return await asyncio.gather(*many)

    for i, completions in enumerate(run(scenario)):
        assert [c.token_ids for c in completions] == [solo_tokens([i], 6)[0], solo_tokens([i, i], 6)[0]]


def test_astream_gives_every_delta():
    async def scenario(engine, _session):
        return [delta async for delta in engine.astream([4], greedy(9))]

    deltas = run(scenario)
    assert tuple(token for delta in deltas for token in delta.token_ids) == solo_tokens([4], 9)[0]
    assert deltas[-1].finish_reason == "length"


@pytest.mark.parametrize("form", ["agenerate", "astream"])
def test_cancelling_aborts_the_requests(form):
    async def read(engine):
        if form == "agenerate":
            await engine.agenerate([[1], [2], [3]], greedy(60))
        else:
            async for _ in engine.astream([1], greedy(60)):
                pass

    async def scenario(engine, session):
        session.delay_s = 0.002
        task = asyncio.create_task(read(engine))
        await until(lambda: engine.stats.live > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: engine.stats.live == engine.stats.waiting == 0)
        return engine.stats.finished

    assert run(scenario) == {"abort": 3 if form == "agenerate" else 1}


def test_closing_an_async_stream_aborts_and_ends_it():
    async def scenario(engine, session):
        session.delay_s = 0.002
        stream = engine.astream([1], greedy(60))
        await anext(stream)
        await stream.aclose()
        await until(lambda: engine.stats.finished == {"abort": 1})
        return [delta async for delta in stream]

    assert run(scenario) == []


def test_a_failed_step_is_raised_to_the_awaiting_caller():
    async def scenario(engine, session):
        def fault(_inputs, _step):
            raise OSError("boom")

        session.fault = fault
        with pytest.raises(RequestFailedError, match="boom"):
            await engine.agenerate([1], greedy(3))
        session.fault = None
        return await engine.agenerate([1], greedy(3))

    assert run(scenario)[0].token_ids == solo_tokens([1], 3)[0]


def test_close_reaches_an_async_reader():
    async def scenario(engine, session):
        session.delay_s = 0.002
        stream = engine.astream([1], greedy(60))
        await anext(stream)
        await asyncio.get_running_loop().run_in_executor(None, engine.close)
        with pytest.raises(EngineClosedError):
            await stream.result()

    run(scenario)


def test_a_loop_that_closes_does_not_stop_the_engine():
    program = mock_program()

    async def leave(engine):
        return engine.astream([1], greedy(60))

    with Engine(program) as engine:
        program.last_session.delay_s = 0.002
        stream = asyncio.run(leave(engine))
        deadline = time.monotonic() + 5
        while engine.stats.finished != {"abort": 1}:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert engine.generate([5], greedy(3))[0].token_ids == solo_tokens([5], 3)[0]
        del stream


def test_bad_prompts_raise_at_the_call():
    async def scenario(engine, _session):
        with pytest.raises(ValueError, match="empty"):
            engine.astream([], greedy(3))
        with pytest.raises(ValueError, match="empty"):
            await engine.agenerate([[1], []], greedy(3))

    run(scenario)
