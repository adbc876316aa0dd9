"""The command line itself: its commands, ``--version`` and the process-wide settings."""

from __future__ import annotations

import io
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from polybatch.cli.chat import chat
from polybatch.cli.compile import compile_command
from polybatch.cli.generate import generate
from polybatch.cli.group import OneLineErrors
from polybatch.cli.inspect import inspect_command
from polybatch.cli.serve import serve_command

SPIN_COUNT = "2000"
"""Threads that wait sleep after some microseconds, not milliseconds: beside other work they would hold the core that
the thread they wait for needs."""

app = typer.Typer(
    name="polybatch",
    cls=OneLineErrors,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="One compiled LLM program, many batch sizes, one retained KV cache.",
)
app.command("compile", short_help="Compile a model into one program for several batch sizes.")(compile_command)
app.command("inspect", short_help="Show what a program is; runs nothing.")(inspect_command)
app.command("generate", short_help="Answer prompts, many at once.")(generate)
app.command("serve", short_help="Serve a program over HTTP, in the shapes of OpenAI's API.")(serve_command)
app.command("chat", short_help="Talk with a program.")(chat)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polybatch {version('polybatch')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the ``polybatch`` script."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of libraries; ours is another
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read by libgomp when torch loads it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character must not end the answer
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="polybatch")
