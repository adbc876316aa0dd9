"""What is wrong with a request is said in OpenAI's shape, naming the field."""

import openai
import pytest
from server.conftest import ENDPOINTS
from server.live_server import NAME, Both, LiveServer
from server.scripted_program import ScriptedProgram

BOTH_REFUSE = [
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop": "\ud800"}, "stop"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    ({"user": 5}, "user"),
    ({"user": "x" * 257}, "user"),
    ({"no_such_field": 1}, "no_such_field"),
]
COMPLETIONS_REFUSE = [
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt.0"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt.1"),
    ({"prompt": [-1]}, "prompt.0"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"prompt": "x" * 10**6}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"echo": True, "logprobs": 1}, "logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"prompt": ["x"] * 100, "n": 2}, "n"),
    ({"messages": []}, "messages"),
]
USER = {"role": "user", "content": "x"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "no JSON"}}
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT_REFUSE = [
    ({"messages": []}, "messages"),
    ({"messages": "x"}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages.0"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages.0"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
    ({"messages": [USER, {"role": "assistant"}]}, "messages.1"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}, "messages.1.tool_calls"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"prompt": "x"}, "prompt"),
]
CASES = [(name, *case) for name in ENDPOINTS for case in BOTH_REFUSE]
CASES += [("completions", *case) for case in COMPLETIONS_REFUSE] + [("chat/completions", *case) for case in CHAT_REFUSE]


@pytest.mark.parametrize(("name", "fields", "param"), CASES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_named(live, name, fields, param, stream):
    endpoint = Both(live, name)
    body = endpoint.body("x", **({"stream": stream} if "stream" not in fields else {})) | fields
    if "stream_options" in fields and "stream" not in fields:
        body["stream"] = False
    status, reply, _ = live.call(endpoint.path, body)
    assert status == 400, reply
    error = reply["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param or error["param"].startswith(f"{param}."), error
    assert error["message"]


def test_the_client_raises_the_right_exceptions(live):
    client = live.client
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=NAME, prompt="x", temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="other", prompt="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": ' + b"[" * 100_000, b'{"a": NaN}']
)
def test_a_body_that_is_no_request_is_a_400(endpoint, body):
    status, reply, _ = endpoint.server.call(endpoint.path, body, method="POST")
    assert status == 400
    assert reply["error"]["message"]


def test_a_body_without_its_content_type_is_explained(endpoint):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    status, reply, _ = endpoint.server.call(endpoint.path, endpoint.body("x"), headers=headers)
    assert status == 400
    assert "Content-Type: application/json" in reply["error"]["message"]


def test_paths_and_methods_that_are_not_there(live):
    assert live.call("/v1/nothing")[:2] == (404, live.call("/v1/nothing")[1])
    assert live.call("/v1/nothing")[1]["error"]["code"] == "not_found"
    assert live.call("/v1/completions")[0] == 405
    assert live.call("/static/../app.py")[0] == 404
    assert live.call("/static/%2e%2e%2fapp.py")[0] == 404


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_fails_its_requests_and_nothing_else(name, stream):
    with LiveServer(ScriptedProgram()) as server:
        endpoint = Both(server.ready(), name)

        def fault(inputs, index):
            raise RuntimeError("secret of /root/model")

        server.session.fault = fault
        status, reply, _ = server.call(endpoint.path, endpoint.body("x", stream=stream))
        assert status == 500
        assert reply["error"]["type"] == "server_error"
        assert "secret" not in str(reply)
        server.session.fault = None
        assert endpoint.whole("x")[1] == "length"


def test_a_step_that_fails_in_the_middle_of_a_stream_ends_it_with_an_error():
    with LiveServer(ScriptedProgram()) as server:
        endpoint = Both(server.ready(), "completions")

        def fault(inputs, index):
            if index > 5:
                raise RuntimeError("secret")

        server.session.fault = fault
        with pytest.raises(openai.APIError, match="failed inside the engine"):
            list(server.client.completions.create(model=NAME, prompt="x", stream=True, temperature=0))
        server.session.fault = None
        assert endpoint.whole("x")[1] == "length"
        assert server.stats.live == 0
