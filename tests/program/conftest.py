"""Fixtures of the program tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_program import write_program


@pytest.fixture
def program_dir(tmp_path: Path) -> Path:
    return write_program(tmp_path / "tiny.poly")


@pytest.fixture
def siblings(tmp_path: Path) -> Callable[[], list[str]]:
    """Lists what lies next to the program, temporary directories included."""
    return lambda: sorted(path.name for path in tmp_path.iterdir())
