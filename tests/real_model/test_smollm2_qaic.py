"""SmolLM2-135M-Instruct on target qaic: every specialization's logits, and the engine over the device's double."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from qaic_double.sdk import install_sdk
from real_model.smollm2 import load_model
from targets.qaic.graph_runs import assert_equal_steps

from polybatch import Engine, PromptLookup, SamplingParams
from polybatch.kv_layout import CacheSpec, LayerKV
from polybatch.session import InferenceSession, open_session
from polybatch.targets.qaic.target import TARGET

pytestmark = pytest.mark.real_model

SHAPES = {
    "batch_size": [1, 2, 4],
    "continuous_batching": True,
    "full_batch_size": 4,
    "ctx_len": 512,
    "num_speculative_tokens": [0, 3],
}
PROMPTS = (Path(__file__).parents[2] / "examples" / "prompts.txt").read_text().splitlines()
PARAMS = SamplingParams(max_tokens=96)


@pytest.fixture(autouse=True)
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("POLYBATCH_QAIC_SDK", str(install_sdk(tmp_path / "sdk")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    for name in ("qaicrt", "QAicApi_pb2"):
        sys.modules.pop(name, None)
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_every_specialization_gives_the_logits_of_the_eager_target(tmp_path: Path) -> None:
    model = load_model("float32")
    program = model.compile(tmp_path / "qaic.poly", target="qaic", **SHAPES)
    eager = model.compile(tmp_path / "eager.poly", target="eager", **SHAPES)
    layers = tuple(LayerKV(kv.kv_heads, kv.key_dim, kv.value_dim) for kv in program.manifest.kv_cache.layers)
    runner = TARGET.open_for_check(program.path, CacheSpec(layers, "float32", 512, 4), 2)
    with InferenceSession(program.table, runner, program.vocab_size) as exported, open_session(eager) as oracle:
        assert_equal_steps(exported, oracle, program.table, rounds=2)


def test_the_demos_prompts_get_the_tokens_of_the_cpu_program(tmp_path: Path) -> None:
    model = load_model("float32")
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS if prompt]
    assert len(chats) == 8
    with Engine(model.compile(tmp_path / "cpu.poly", target="cpu", **SHAPES)) as engine:
        expected = [answer.token_ids for answer in engine.generate(chats, PARAMS)]
    program = model.compile(tmp_path / "qaic.poly", target="qaic", **SHAPES)
    for options in ({}, {"speculation": PromptLookup()}):
        with Engine(program, **options) as engine:
            assert [answer.token_ids for answer in engine.generate(chats, PARAMS)] == expected
