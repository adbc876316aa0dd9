"""Who gets in, and with what."""

import http.client
import socket
import time

import openai
import pytest
from server.live_server import NAME, LiveServer
from server.scripted_program import ScriptedProgram

from polybatch.server.security import check_bind, is_loopback, read_keys

KEY = "sk-of-the-test"


@pytest.fixture(scope="module")
def guarded():
    with LiveServer(ScriptedProgram(), api_keys=("another", KEY), max_body_bytes=2000) as server:
        yield server.ready()


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/v1/completions", "/metrics", "/slots", "/state", "/openapi.json", "/version", "/x"],
)
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer ", KEY, "Bearer \xe9"]
)
def test_without_a_key_nobody_gets_in(guarded, path, header):
    status, reply, headers = guarded.call(path, headers={} if header is None else {"Authorization": header})
    assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
    assert headers["WWW-Authenticate"] == "Bearer"


def test_with_any_of_the_keys_everything_works(guarded):
    for key in ("another", KEY):
        with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0) as client:
            assert client.completions.create(model=NAME, prompt="x", max_tokens=1).choices
    with pytest.raises(openai.AuthenticationError):
        guarded.client.models.list()


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/static/app.js", "/static/style.css"])
def test_the_page_and_health_need_no_key(guarded, path):
    assert guarded.call(path)[0] == 200


def test_a_body_that_is_too_large_is_413(guarded):
    body = {"prompt": "x" * 2000}
    status, reply, _ = guarded.call("/v1/completions", body, headers={"Authorization": f"Bearer {KEY}"})
    assert (status, reply["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /health HTTP/1.1\r\nX-Endless: ",
        b"GET /",
        b"POST /v1/models HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Trailer: ",
    ],
    ids=["header", "path", "trailer"],
)
def test_a_head_without_an_end_is_cut_off(guarded, begin):
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(begin)
        try:
            for _ in range(2000):  # 2 MB, of which a small part is taken in
                connection.sendall(b"x" * 1000)
        except OSError:
            return
        pytest.fail("the server took it all in")


def test_a_long_head_is_no_hindrance(guarded):
    assert guarded.call("/health", headers={"X-Long": "x" * 30_000})[0] == 200


def test_a_client_that_goes_on_sending_too_much_hears_of_it(guarded):
    def chunks():
        for chunk in (b'{"prompt": "', *[b"x" * 500] * 6, b'"}'):
            time.sleep(0.03)
            yield chunk

    connection = http.client.HTTPConnection(guarded.url.removeprefix("http://"), timeout=10)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", chunks(), headers, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    assert b"body_too_large" in response.read()
    connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_key(host):
    assert is_loopback(host)
    check_bind(host, (), allow_unauthenticated=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_addresses_need_a_key_or_a_word(host):
    with pytest.raises(ValueError, match="--api-key-file"):
        check_bind(host, (), allow_unauthenticated=False)
    check_bind(host, ("key",), allow_unauthenticated=False)
    check_bind(host, (), allow_unauthenticated=True)


def test_a_key_file_has_one_key_per_line(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# of the team\none\n\n  two \n")
    assert read_keys(path) == ("one", "two")
    path.write_text("# none\n")
    with pytest.raises(ValueError, match="no API key"):
        read_keys(path)


def test_a_template_cannot_reach_out_of_its_sandbox(live):
    tokenizer = live.service.model.tokenizer
    kept = tokenizer.chat_template
    tokenizer.chat_template = "{{ messages.__class__.__mro__ }}"
    try:
        status, reply, _ = live.call("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
    finally:
        tokenizer.chat_template = kept
    assert status == 400
    assert "unsafe" in reply["error"]["message"]
