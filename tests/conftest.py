"""Fixtures shared by all tests. Nothing here reaches a network."""

from __future__ import annotations

import os
import signal
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from architectures import SUPPORTED, save_model


def pytest_sessionstart() -> None:
    """Listen to Ctrl-C: a job that a shell script puts in the background does not, nor do the processes it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama without a tokenizer."""
    return save_model(SUPPORTED["llama"], tmp_path_factory.mktemp("llama"))
