"""``polybatch chat``."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from cli.tiny_chat_llama import save_tiny_llama

from polybatch import Delta, SamplingParams
from polybatch.cli.chat import Conversation


@dataclass
class FakeHandle:
    """Streams ``pieces``; a KeyboardInterrupt among them is raised, as Ctrl-C would be."""

    pieces: list[object]
    closed: bool = False

    def __iter__(self) -> Iterator[Delta]:
        for piece in self.pieces:
            if piece is KeyboardInterrupt:
                raise KeyboardInterrupt
            yield Delta(0, str(piece), (1,))

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeEngine:
    """Answers with ``pieces`` and keeps what it was asked; an exception among its answers is raised."""

    pieces: list[object]
    asked: list[object] = field(default_factory=list)
    handles: list[FakeHandle] = field(default_factory=list)

    def stream(self, prompt: object, params: object) -> FakeHandle:
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Exception):
            raise self.pieces[0]
        self.asked.append(prompt)
        self.handles.append(FakeHandle(self.pieces))
        return self.handles[-1]


def test_each_question_carries_the_conversation_so_far(capsys):
    engine = FakeEngine(["Good ", "day"])
    conversation = Conversation(engine, SamplingParams(), "Be kind")
    conversation.answer("Hello")
    conversation.answer("Again")
    roles = [message["role"] for message in engine.asked[1]]
    assert roles == ["system", "user", "assistant", "user"]
    assert engine.asked[1][2]["content"] == "Good day"
    assert capsys.readouterr().out == "Good day\nGood day\n"


def test_a_line_that_is_no_utf8_is_left_out(capsys):
    conversation = Conversation(FakeEngine(["Good"]), SamplingParams())
    conversation.answer("\udcff")
    assert conversation.messages == []
    assert capsys.readouterr().err == "error: '\\udcff' is not valid UTF-8 text; /reset starts over\n"


def test_ctrl_c_stops_the_answer_and_keeps_what_was_shown(capsys):
    engine = FakeEngine(["So far", KeyboardInterrupt, "never"])
    conversation = Conversation(engine, SamplingParams())
    conversation.answer("Hello")
    assert engine.handles[0].closed
    assert conversation.messages[-1] == {"role": "assistant", "content": "So far"}
    assert capsys.readouterr().out == "So far\n"


def test_a_conversation_that_is_too_long_is_an_error_that_says_how_to_go_on(capsys):
    conversation = Conversation(FakeEngine([ValueError("the prompt has 300 tokens")]), SamplingParams())
    conversation.answer("Hello")
    assert conversation.messages == []
    assert capsys.readouterr().err == "error: the prompt has 300 tokens; /reset starts over\n"


def test_reset_forgets_everything_but_the_system_message(monkeypatch):
    engine = FakeEngine(["yes"])
    lines = iter(["Hello", "/reset", "Again", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    Conversation(engine, SamplingParams(), "Be kind").run()
    assert [message["content"] for message in engine.asked[1]] == ["Be kind", "Again"]


def test_ctrl_c_at_the_prompt_does_not_leave(monkeypatch):
    engine = FakeEngine(["yes"])
    lines = iter([KeyboardInterrupt(), "Hello", EOFError()])

    def read(prompt: str) -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    Conversation(engine, SamplingParams()).run()
    assert len(engine.asked) == 1


def test_an_unknown_command_is_not_sent_to_the_model(monkeypatch, capsys):
    engine = FakeEngine(["yes"])
    lines = iter(["/rest", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    Conversation(engine, SamplingParams()).run()
    assert engine.asked == []
    assert "there is no command /rest" in capsys.readouterr().err


def test_it_talks_until_the_input_ends(run, program_dir):
    result = run("chat", program_dir, "--max-tokens", "4", input="Hello\nAgain\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") >= 2
    assert "error" not in result.stderr


def test_exit_leaves(run, program_dir):
    result = run("chat", program_dir, input="/exit\nHello\n")
    assert result.exit_code == 0
    assert result.stdout == ""


def test_a_model_without_a_chat_template_is_refused_clearly(run, tmp_path):
    model = save_tiny_llama(tmp_path / "plain", chat=False)
    options = ("--ctx-len", "64", "--prefill-seq-len", "16", "--target", "eager")
    assert run("compile", model, "-o", tmp_path / "plain.poly", *options).exit_code == 0
    result = run("chat", tmp_path / "plain.poly", input="Hello\n")
    assert result.exit_code == 2
    assert "has no chat template; use polybatch generate" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("option", [("--max-tokens", "0"), ("--top-k", "-1")])
def test_bad_sampling_options_are_one_line(run, program_dir, option):
    result = run("chat", program_dir, *option)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
