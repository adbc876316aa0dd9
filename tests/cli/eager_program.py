"""Compiles a small program by the command line."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from polybatch.cli import app


def compile_eager(model: Path, path: Path, *options: str) -> Path:
    """A program of target eager with 256 positions and chunks of 32 tokens, without step times."""
    shape = ["--ctx-len", "256", "--prefill-seq-len", "32", "--target", "eager", "--no-profile"]
    result = CliRunner().invoke(app, ["compile", str(model), "-o", str(path), *shape, *options])
    assert result.exit_code == 0, result.output
    return path
