"""compile(weights="int8"): for several architectures, checked tightly, and refused where it means nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import SUPPORTED, make_model, save_model

from polybatch import AutoModelForCausalLM, Engine, Program, SamplingParams, VerificationError

SHAPES = {"batch_size": [1, 2], "continuous_batching": True, "full_batch_size": 2, "ctx_len": 64, "prefill_seq_len": 16}
PROMPTS = [[1, 2, 3], [*range(30, 60)]]


def compile_int8(name: str, folder: Path, weights: str) -> Program:
    model = AutoModelForCausalLM.from_pretrained(save_model(SUPPORTED[name], folder / "model"))
    return model.compile(folder / "out.poly", weights=weights, profile=False, **SHAPES)


@pytest.mark.parametrize(
    ("name", "weights"),
    [*((name, "int8") for name in ("llama", "qwen3", "gemma2", "mixtral", "gpt2")), ("llama", "int8-weight-only")],
)
def test_architectures(name: str, weights: str, tmp_path: Path) -> None:
    program = compile_int8(name, tmp_path, weights)
    manifest = program.manifest
    assert manifest.batch_invariant
    assert manifest.model.weights == weights and manifest.model.dtype == "float32"
    # Nothing is left to chance but inputs that sit on the border between two steps.
    assert manifest.verification.max_relative_error < (0.02 if weights == "int8" else 1e-5)
    assert manifest.verification.tolerance <= (0.1 if weights == "int8" else 1e-3)
    assert manifest.files["weights.safetensors"].size < 0.5 * _bytes_of_float32(name)
    with Engine(program) as engine:
        together = engine.generate(PROMPTS, SamplingParams(max_tokens=8, ignore_eos=True))
        alone = [engine.generate([prompt], SamplingParams(max_tokens=8, ignore_eos=True))[0] for prompt in PROMPTS]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]


def _bytes_of_float32(name: str) -> int:
    """Of the model's parameters, with a tied one counted twice: as embedding and as output projection."""
    return 4 * sum(value.numel() for value in make_model(SUPPORTED[name]).state_dict().values())


def test_a_wrong_attention_scale_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polybatch.targets.cpu import build

    real = build.fuse_rotary

    def spoil(graph: Any) -> int:
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.polybatch.slot_attention.default):
            node.args = (*node.args[:10], node.args[10] * 2, *node.args[11:])
        return real(graph)

    monkeypatch.setattr(build, "fuse_rotary", spoil)
    with pytest.raises(VerificationError, match="differ from the model's own"):
        compile_int8("llama", tmp_path, "int8")
    assert not (tmp_path / "out.poly").exists()


def test_the_oracle_refuses_it(llama_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="target eager runs the model as it is"):
        AutoModelForCausalLM.from_pretrained(llama_dir).compile(
            tmp_path / "out.poly", weights="int8", target="eager", **SHAPES
        )
    assert list(tmp_path.iterdir()) == []
