"""/v1/chat/completions as the openai client sees it."""

import json

import openai
import pytest
from server.live_server import NAME
from server.scripted_program import chat_prompt

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "What the weather is like.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "news")
]
SHOWN = "weather;news;"
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
ROME = '{"name": "news", "arguments": {"city": "Rome"}}'


@pytest.fixture(scope="module")
def wide():
    """Room for prompts with tools."""
    from server.live_server import LiveServer
    from server.scripted_program import ScriptedProgram

    with LiveServer(ScriptedProgram(ctx_len=512)) as server:
        yield server.ready()


@pytest.fixture
def ask(wide):
    def create(text, **options):
        options = {"temperature": 0, "max_tokens": 200, **options}
        return wide.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": text}], **options)

    return create


@pytest.fixture
def say(wide):
    """``say(text, answer)``: what the model answers to a user's text, without and with the tools."""

    def script(text, answer):
        wide.program.script(chat_prompt(text), answer)
        wide.program.script(chat_prompt(text, SHOWN), answer)

    return script


def test_an_answer_is_a_message(ask, say):
    say("hello", "hi there")
    reply = ask("hello")
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == "hi there"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == 9


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(ask, say):
    say("hello", "hi there")
    chunks = list(ask("hello", stream=True, stream_options={"include_usage": True}))
    assert chunks[0].object == "chat.completion.chunk"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "hi there"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == 9


def test_n_choices_stream_side_by_side(ask):
    options = {"n": 3, "seed": 1, "temperature": 1.5, "max_tokens": 6}
    whole = [choice.message.content for choice in ask("x", **options).choices]
    texts = ["", "", ""]
    for chunk in ask("x", stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == whole
    assert len(set(whole)) == 3


def test_both_names_of_the_token_limit_hold(ask):
    assert ask("x", max_tokens=3).usage.completion_tokens == 3
    assert ask("x", max_tokens=openai.omit, max_completion_tokens=3).usage.completion_tokens == 3


def test_parts_of_content_and_the_developer_role_are_understood(wide):
    wide.program.script("<s>system:be brief<s>user:hi there<s>assistant:", "ok")
    reply = wide.client.chat.completions.create(
        model=NAME,
        temperature=0,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi "}, {"type": "text", "text": "there"}]},
        ],
    )
    assert reply.choices[0].message.content == "ok"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_tokens_and_their_bytes(ask, say, stream):
    say("hello", "hé")
    reply = ask("hello", logprobs=True, top_logprobs=2, stream=stream)
    chunks = list(reply) if stream else [reply]
    content = [entry for chunk in chunks if (found := chunk.choices[0].logprobs) for entry in found.content]
    assert [entry.bytes for entry in content][:3] == [[0x68], [0xC3], [0xA9]]
    assert content[0].token == "h"
    assert [len(entry.top_logprobs) for entry in content] == [2] * len(content)
    assert content[0].top_logprobs[0].logprob >= content[0].logprob


def test_a_json_schema_holds_the_answer_to_its_form(ask):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    assert json.loads(ask("x", response_format=form, stop=None).choices[0].message.content)["a"] in (1, 2)


@pytest.mark.parametrize(
    ("written", "text", "calls"),
    [
        (f"<tool_call>\n{OSLO}\n</tool_call>", None, [("weather", "Oslo")]),
        (f"Let me see.\n<tool_call>{OSLO}</tool_call>\n<tool_call>{ROME}</tool_call>", "Let me see.\n",
         [("weather", "Oslo"), ("news", "Rome")]),
        (OSLO, None, [("weather", "Oslo")]),
        (OSLO.replace("arguments", "parameters"), None, [("weather", "Oslo")]),
        (f"[{OSLO}, {ROME}]", None, [("weather", "Oslo"), ("news", "Rome")]),
        (f"<tool_call>{OSLO}", None, [("weather", "Oslo")]),
        ('{"answer": 42}', '{"answer": 42}', []),
        ("<tool_call>{not json}</tool_call> hm", "<tool_call>{not json}</tool_call> hm", []),
        ('<tool_call>{"name": "other", "arguments": {}}</tool_call>',
         '<tool_call>{"name": "other", "arguments": {}}</tool_call>', []),
        ("a < b <tool", "a < b <tool", []),
    ],
    ids=["tagged", "text and two", "bare", "parameters", "list", "no end", "JSON", "broken", "unknown", "half a tag"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_read_out_of_what_the_model_wrote(ask, say, written, text, calls, stream):
    say("weather?", written)
    got_text, got_calls, reason = _collect(ask("weather?", tools=TOOLS, stream=stream), stream)
    assert (got_text or None) == text
    assert got_calls == calls
    assert reason == ("tool_calls" if calls else "stop")


def _collect(reply, stream):
    if not stream:
        (choice,) = reply.choices
        message = choice.message
        assert len({call.id for call in message.tool_calls or []}) == len(message.tool_calls or [])
        return message.content, [_call(call) for call in message.tool_calls or []], choice.finish_reason
    chunks = [chunk.choices[0] for chunk in reply]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert [call.index for call in calls] == list(range(len(calls)))
    text = "".join(chunk.delta.content or "" for chunk in chunks)
    return text, [_call(call) for call in calls], chunks[-1].finish_reason


def _call(call):
    return call.function.name, json.loads(call.function.arguments)["city"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "news"}}])
def test_a_call_can_be_forced(ask, choice, stream):
    text, calls, reason = _collect(ask("x", tools=TOOLS, tool_choice=choice, stream=stream), stream)
    assert not text
    assert reason == "tool_calls"
    assert len(calls) == 1
    assert calls[0][0] in (("weather", "news") if choice == "required" else ("news",))


def test_tool_choice_none_neither_shows_nor_reads_tools(ask, say, wide):
    say("weather?", OSLO)
    wide.program.script(chat_prompt("weather?", SHOWN), "shown")
    reply = ask("weather?", tools=TOOLS, tool_choice="none").choices[0]
    assert (reply.message.content, reply.message.tool_calls) == (OSLO, None)


def test_at_most_one_call_without_parallel_calls(ask, say):
    say("both?", f"[{OSLO}, {ROME}]")
    assert len(ask("both?", tools=TOOLS, parallel_tool_calls=False).choices[0].message.tool_calls) == 1


def test_an_answer_and_its_tool_result_can_be_sent_back(wide, say):
    say("weather?", OSLO)
    client, user = wide.client.chat.completions, {"role": "user", "content": "weather?"}
    first = client.create(model=NAME, messages=[user], tools=TOOLS, temperature=0).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
    wide.program.script(f"{SHOWN}<s>user:weather?<s>assistant:[weather Oslo]<s>tool:rain<s>assistant:", "It rains.")
    last = client.create(model=NAME, messages=[user, first, result], tools=TOOLS, temperature=0)
    assert last.choices[0].message.content == "It rains."
