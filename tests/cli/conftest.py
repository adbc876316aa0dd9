"""Fixtures of the command line's tests: a tiny model, a program of it, and a way to run commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.eager_program import compile_eager
from cli.tiny_chat_llama import save_tiny_llama
from typer.testing import CliRunner

from polybatch.cli import app

Run = Callable[..., object]


@pytest.fixture
def run() -> Run:
    """``run("inspect", path, input=...)`` in this process; the result has exit_code, stdout and stderr."""

    def invoke(*args: object, input: str | bytes | None = None) -> object:
        return CliRunner().invoke(app, [str(arg) for arg in args], input=input, prog_name="polybatch")

    return invoke


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def program_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batch sizes 1, 2 and 4 over 4 slots, target eager; tests only read it. Without step times, which are noise."""
    path = tmp_path_factory.mktemp("programs") / "tiny.poly"
    return compile_eager(model_dir, path, "--batch-size", "1,2,4")
