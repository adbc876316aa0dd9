"""Faults of other servers, on both endpoints: prompts that are too long, stop strings, UTF-8, clients that leave."""

import http.client
import json

import pytest
from server.conftest import ENDPOINTS
from server.live_server import Both, LiveServer, wait_until
from server.scripted_program import ScriptedProgram

CTX_LEN = 64


def fill(endpoint, tokens):
    """A text whose prompt has so many tokens."""
    template = len(endpoint.prompt("").replace("<s>", "."))
    return "x" * (tokens - template)


def test_a_prompt_of_all_but_one_position_gets_one_token(endpoint):
    status, reply, _ = endpoint.server.call(endpoint.path, endpoint.body(fill(endpoint, CTX_LEN - 1)))
    assert status == 200
    assert reply["usage"]["prompt_tokens"] == CTX_LEN - 1
    assert reply["usage"]["completion_tokens"] == 1
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("tokens", [CTX_LEN, CTX_LEN + 1])
def test_a_longer_prompt_is_refused_with_both_numbers(endpoint, tokens):
    status, reply, _ = endpoint.server.call(endpoint.path, endpoint.body(fill(endpoint, tokens)))
    assert status == 400
    assert str(tokens) in reply["error"]["message"]
    assert str(CTX_LEN - 1) in reply["error"]["message"]
    assert reply["error"]["code"] == "context_length_exceeded"


def test_a_stop_string_across_tokens_never_shows(endpoint):
    endpoint.server.program.script(endpoint.prompt("stop?"), ["al", "ph", "a b", "et"])
    pieces, reason = endpoint.streamed("stop?", stop="a be")
    assert ("".join(pieces), reason) == ("alph", "stop")
    assert endpoint.whole("stop?", stop=["zzz", "a be"]) == ("alph", "stop")


def test_what_only_looked_like_a_stop_string_is_not_lost(endpoint):
    endpoint.server.program.script(endpoint.prompt("stop?"), ["al", "ph", "a b", "et"])
    pieces, reason = endpoint.streamed("stop?", stop=["a bex", "bet!"])
    assert ("".join(pieces), reason) == ("alpha bet", "stop")
    assert endpoint.whole("stop?", stop="a bex") == ("alpha bet", "stop")


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_stop_string_inside_accepted_drafts(name):
    from polybatch.engine import PromptLookup

    program = ScriptedProgram(table_options={"num_speculative_tokens": [0, 3]})
    with LiveServer(program, speculation=PromptLookup()) as server:
        endpoint = Both(server.ready(), name)
        prompt = "alphabet alphabet al"
        program.script(endpoint.prompt(prompt), list("phabet alphabet"))
        pieces, reason = endpoint.streamed(prompt, stop="t al")
        assert ("".join(pieces), reason) == ("phabe", "stop")
        assert server.stats.speculation.accepted > 0


def test_a_character_of_four_tokens_comes_in_one_piece(endpoint):
    endpoint.server.program.script(endpoint.prompt("emoji"), "a\U0001f600b")
    pieces, _ = endpoint.streamed("emoji")
    assert "".join(pieces) == "a\U0001f600b" == endpoint.whole("emoji")[0]
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.fixture(scope="module")
def slow():
    """Two slots, two milliseconds a step."""
    with LiveServer(ScriptedProgram(slots=2, ctx_len=512, delay_s=0.002), max_queue=8) as server:
        yield server.ready()


def open_request(server, path, body):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


@pytest.mark.parametrize("name", ENDPOINTS)
def test_streams_that_are_dropped_free_their_slots(slow, name):
    endpoint = Both(slow, name)
    body = endpoint.body("x", max_tokens=400, stream=True, ignore_eos=True)
    for _ in range(25):
        both = [open_request(slow, endpoint.path, body) for _ in range(2)]
        for connection in both:
            response = connection.getresponse()
            assert response.readline().startswith(b"data: ")
            response.close()
            connection.close()
        steps = len(slow.session.steps)
        wait_until(lambda: slow.stats.live == 0)
        assert len(slow.session.steps) - steps < 30  # 60 ms; most of it is for the news to travel
    assert [endpoint.whole("y", max_tokens=4)[1] for _ in range(2)] == ["length"] * 2


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_before_their_first_token_are_forgotten(slow, name, stream):
    endpoint = Both(slow, name)
    long = endpoint.body("z" * 300, max_tokens=200, stream=stream, ignore_eos=True)
    for _ in range(5):
        waiting = [open_request(slow, endpoint.path, long) for _ in range(5)]  # two are prefilled, three queued
        wait_until(lambda: slow.stats.live == 2 and slow.stats.waiting == 3)
        for connection in waiting:
            connection.close()
        wait_until(lambda: slow.stats.live == 0 and slow.stats.waiting == 0)
    assert endpoint.whole("y", max_tokens=4)[1] == "length"


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_seed_does_not_depend_on_neighbours(live, name):
    from concurrent.futures import ThreadPoolExecutor

    endpoint = Both(live, name)
    seeded = {"seed": 42, "temperature": 0.8, "max_tokens": 20}
    alone = endpoint.whole("seed", **seeded)
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(endpoint.whole, f"other {i}", temperature=1.0, max_tokens=30) for i in range(6)]
        among = [pool.submit(endpoint.whole, "seed", **seeded) for _ in range(2)]
        assert [one.result() for one in among] == [alone] * 2
        assert all(one.result() for one in others)
