"""Fixtures of the qaic tests: models exported once, and an SDK made of doubles."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from qaic_double import driver
from qaic_double.sdk import install_sdk

from polybatch import AutoModelForCausalLM, Program

SHAPES = {
    "batch_size": [1, 2, 4],
    "continuous_batching": True,
    "full_batch_size": 5,
    "num_speculative_tokens": [0, 3],
    "ctx_len": 64,
    "prefill_seq_len": 8,
}


@pytest.fixture(autouse=True)
def no_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No SDK of this machine, and a cache that no other test has."""
    monkeypatch.delenv("POLYBATCH_QAIC_SDK", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def sdk_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_sdk(tmp_path_factory.mktemp("sdk"))


@pytest.fixture
def sdk(sdk_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The doubles, installed; no call fails at first."""
    monkeypatch.setenv("POLYBATCH_QAIC_SDK", str(sdk_dir))
    driver.fail_at.clear()
    driver.steps.clear()
    driver.opened.clear()
    yield sdk_dir
    driver.fail_at.clear()
    for name in ("qaicrt", "QAicApi_pb2"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def exported(llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A tiny llama for batch [1, 2, 4] x K [0, 3] over 5 slots, exported where there is no SDK."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.delenv("POLYBATCH_QAIC_SDK", raising=False)
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(llama_dir)
        return model.compile(tmp_path_factory.mktemp("qaic") / "llama.poly", target="qaic", **SHAPES)
