"""Loading, queueing, deadlines and shutdown."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.conftest import ENDPOINTS
from server.live_server import Both, LiveServer, wait_until
from server.scripted_program import ScriptedProgram


def test_while_loading_the_server_says_so():
    program, gate = ScriptedProgram(), threading.Event()
    server = LiveServer(program, load=lambda: gate.wait(10) and server.open_model())
    with server:
        wait_until(lambda: server.call("/health")[0] == 503)
        for path, body in (("/v1/models", None), ("/v1/completions", {"prompt": "x"}), ("/slots", None)):
            status, reply, headers = server.call(path, body)
            assert (status, reply["error"]["code"]) == (503, "loading")
            assert int(headers["Retry-After"]) >= 1
        gate.set()
        wait_until(lambda: server.call("/health")[0] == 200)
        assert server.call("/v1/completions", {"prompt": "x"})[0] == 200


def test_a_program_that_cannot_be_loaded_stops_the_server():
    def load():
        raise ValueError("no such program")

    with LiveServer(load=load) as server:
        wait_until(lambda: not server._thread.is_alive())
    assert str(server.service.failure) == "no such program"


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_full_queue_is_429_with_retry_after(name):
    with (
        LiveServer(ScriptedProgram(slots=1, ctx_len=512, delay_s=0.002), max_queue=1) as server,
        ThreadPoolExecutor() as pool,
    ):
        endpoint = Both(server.ready(), name)
        held = [pool.submit(endpoint.whole, "x", max_tokens=120, ignore_eos=True) for _ in range(2)]
        wait_until(lambda: server.stats.live + server.stats.waiting == 2)
        status, reply, headers = server.call(endpoint.path, endpoint.body("y"))
        assert (status, reply["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(headers["Retry-After"]) <= 60
        assert [one.result()[1] for one in held] == ["length"] * 2
        assert endpoint.whole("y")[1] == "length"


def test_choices_that_do_not_all_fit_are_refused_together():
    program = ScriptedProgram(slots=2, ctx_len=512, delay_s=0.002)
    with LiveServer(program, max_queue=1) as server, ThreadPoolExecutor() as pool:
        endpoint = Both(server.ready(), "completions")
        held = pool.submit(endpoint.whole, "x", max_tokens=120, ignore_eos=True)
        wait_until(lambda: server.stats.live == 1)
        assert server.call("/v1/completions", {"prompt": "x", "n": 3})[0] == 429
        assert server.stats.live + server.stats.waiting == 1
        held.result()
        assert server.call("/v1/completions", {"prompt": "x", "n": 3})[0] == 200


def test_more_choices_than_the_server_ever_holds_are_no_reason_to_try_again():
    with LiveServer(ScriptedProgram(slots=2), max_queue=1) as server:
        status, reply, _ = server.ready().call("/v1/completions", {"prompt": "x", "n": 4})
        assert (status, reply["error"]["param"]) == (400, "n")


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_beyond_its_time_is_a_timeout(name, stream):
    with LiveServer(ScriptedProgram(slots=1, ctx_len=512, delay_s=0.01), request_timeout_s=0.15) as server:
        endpoint = Both(server.ready(), name)
        status, reply, headers = server.call(endpoint.path, endpoint.body("x", max_tokens=400, stream=stream))
        if stream:
            assert status == 200
            assert '"code":"request_timeout"' in reply
            assert reply.endswith("data: [DONE]\n\n")
        else:
            assert (status, reply["error"]["code"]) == (504, "request_timeout")
            assert headers["x-should-retry"] == "false"
        assert server.stats.live == 0
        assert endpoint.whole("x", max_tokens=2)[1] == "length"


def test_shutdown_lets_requests_finish_and_takes_no_more():
    with LiveServer(ScriptedProgram(ctx_len=512, delay_s=0.003)) as server, ThreadPoolExecutor() as pool:
        endpoint = Both(server.ready(), "completions")
        running = [pool.submit(endpoint.whole, f"x{i}", max_tokens=100, ignore_eos=True) for i in range(3)]
        streamed = pool.submit(endpoint.streamed, "y", max_tokens=100, ignore_eos=True)
        wait_until(lambda: server.stats.live == 4)
        server.begin_shutdown()
        wait_until(lambda: server.service.state == "draining")
        status, reply, _ = server.call("/v1/completions", {"prompt": "z"})
        assert (status, reply["error"]["code"]) == (503, "shutting_down")
        assert server.call("/health")[0] == 503
        assert [one.result()[1] for one in [*running, streamed]] == ["length"] * 4
        wait_until(lambda: not server._thread.is_alive())


def test_shutdown_ends_requests_that_take_too_long():
    with LiveServer(ScriptedProgram(ctx_len=512, delay_s=0.01), drain_s=0.1) as server, ThreadPoolExecutor() as pool:
        endpoint = Both(server.ready(), "completions")
        running = pool.submit(server.call, endpoint.path, endpoint.body("x", max_tokens=500, ignore_eos=True))
        wait_until(lambda: server.stats.live == 1)
        server.begin_shutdown()
        status, reply, _ = running.result()
        assert (status, reply["error"]["code"]) == (503, "shutting_down")
        wait_until(lambda: not server._thread.is_alive())
