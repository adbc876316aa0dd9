"""``polybatch chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import typer

from polybatch.cli.options import (
    MaxTokens,
    ProgramDir,
    Seed,
    Stop,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    require_utf8,
    sampling_params,
)
from polybatch.cli.speculate import FixedK, Speculate, load_speculation
from polybatch.cli.stages import Stages

if TYPE_CHECKING:
    from polybatch.engine import Engine, SamplingParams
    from polybatch.program import Program

_HELP = "/reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def chat(
    directory: ProgramDir,
    system: System = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = None,
    stop: Stop = None,
    threads: Threads = None,
    speculate: Speculate = None,
    fixed_k: FixedK = None,
) -> None:
    """Talk with a program whose tokenizer has a chat template.

    /reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer.
    """
    from polybatch.program import Program

    params = sampling_params(max_tokens, temperature, top_p, top_k, seed, stop)
    program = Program.load(directory)
    with Stages() as stages:
        stages("loading the program")
        _require_chat_template(program)
        from polybatch.engine import Engine

        engine = Engine(program, load_speculation(speculate, fixed_k), fixed_k=fixed_k, threads=threads)
    with engine:
        typer.echo(_HELP, err=True)
        Conversation(engine, params, system).run()


def _require_chat_template(program: Program) -> None:
    if not program.tokenizer().chat_template:
        raise ValueError(
            f"the tokenizer of {program.path} has no chat template; use polybatch generate, "
            "or compile a model that was trained to chat"
        )


class Conversation:
    """The messages so far, and the loop that adds to them."""

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None = None) -> None:
        self._engine = engine
        self._params = params
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._first)

    def run(self) -> None:
        """Read lines and answer them until /exit or the end of the input."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  input() then has line editing and a history
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:
                typer.echo(f"\n({_HELP})", err=True)
                continue
            if line == "/exit":
                return
            if line:
                self._take(line)

    def _take(self, line: str) -> None:
        if line == "/reset":
            self.messages = list(self._first)
            typer.echo("(the conversation is empty again)", err=True)
        elif line.startswith("/"):
            typer.echo(f"there is no command {line}; {_HELP}", err=True)
        else:
            self.answer(line)

    def answer(self, text: str) -> None:
        """Stream the answer to ``text``; both join the messages. A message that cannot be run is left out."""
        asked = [*self.messages, {"role": "user", "content": text}]
        try:
            require_utf8(text)
            handle = self._engine.stream(asked, self._params)
        except (ValueError, typer.BadParameter) as error:
            typer.echo(f"error: {error}; /reset starts over", err=True)
            return
        pieces = []
        try:
            for delta in handle:
                pieces.append(delta.text)
                typer.echo(delta.text, nl=False)
        except KeyboardInterrupt:
            handle.close()
            typer.echo(" (stopped)", err=True, nl=False)
        typer.echo()
        self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]
