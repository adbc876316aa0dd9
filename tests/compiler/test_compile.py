"""compile(): what it writes, what it refuses, and what it leaves alone when it fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from architectures import SUPPORTED, save_model

from polybatch import (
    AutoModelForCausalLM,
    CompilerError,
    Engine,
    ModelLoadError,
    Program,
    ProgramError,
    SamplingParams,
    UnsupportedModelError,
    VerificationError,
)

SHAPES = {"batch_size": [1, 2], "continuous_batching": True, "full_batch_size": 2, "ctx_len": 32, "prefill_seq_len": 8}


@pytest.fixture(scope="module")
def model(llama_dir: Path) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(llama_dir)


@pytest.fixture
def older(model: AutoModelForCausalLM, tmp_path: Path) -> Path:
    """A program that stands where the next one is to go."""
    return model.compile(tmp_path / "out.poly", target="eager", **SHAPES).path


def _hashes(program: Path) -> dict[str, str]:
    return {
        name: entry["sha256"] for name, entry in json.loads((program / "manifest.json").read_text())["files"].items()
    }


def test_the_output_directory_defaults_to_the_name_of_the_model(
    model: AutoModelForCausalLM, llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = model.compile(target="eager", **SHAPES)
    assert program.path == tmp_path / f"{llama_dir.name}.poly"


def test_a_program_can_be_moved(model: AutoModelForCausalLM, tmp_path: Path) -> None:
    program = model.compile(tmp_path / "here.poly", target="cpu", **SHAPES)
    with Engine(program) as engine:
        (before,) = engine.generate([[1, 2, 3]], SamplingParams(max_tokens=8))
    moved = shutil.move(program.path, tmp_path / "elsewhere")
    with Engine(Program.load(moved, verify=True)) as engine:
        (after,) = engine.generate([[1, 2, 3]], SamplingParams(max_tokens=8))
    assert after.token_ids == before.token_ids


def test_a_compile_replaces_an_older_program(model: AutoModelForCausalLM, older: Path) -> None:
    program = model.compile(older, target="eager", **{**SHAPES, "ctx_len": 48})
    assert program.ctx_len == 48
    assert sorted(path.name for path in older.parent.iterdir()) == ["out.poly"]


def test_a_replaced_program_runs_its_own_graph_in_the_same_process(model: AutoModelForCausalLM, tmp_path: Path) -> None:
    """The dynamic linker hands out a library again that was once loaded under the same path."""
    windowed = AutoModelForCausalLM.from_pretrained(save_model(SUPPORTED["mistral"], tmp_path / "mistral"))
    prompt = list(range(1, 25))

    def answer(of: AutoModelForCausalLM, path: Path) -> tuple[int, ...]:
        with Engine(of.compile(path, target="cpu", **SHAPES)) as engine:
            return engine.generate([prompt], SamplingParams(max_tokens=6, ignore_eos=True))[0].token_ids

    answer(model, tmp_path / "same.poly")
    replaced = answer(windowed, tmp_path / "same.poly")
    assert replaced == answer(windowed, tmp_path / "other.poly")
    assert replaced != answer(model, tmp_path / "third.poly")


def test_static_batching_takes_no_batch_index(model: AutoModelForCausalLM, tmp_path: Path) -> None:
    program = model.compile(tmp_path / "static.poly", batch_size=3, ctx_len=32, prefill_seq_len=8, target="cpu")
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19], [3]]
    with Engine(program) as engine:
        together = engine.generate(prompts, SamplingParams(max_tokens=6))
        alone = [engine.generate([prompt], SamplingParams(max_tokens=6))[0] for prompt in prompts]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert {spec.name for spec in program.specializations} == {"prefill b=3 s=8", "decode b=3"}


def test_a_bad_table_is_refused_before_any_work(model: AutoModelForCausalLM, tmp_path: Path) -> None:
    started = time.perf_counter()
    with pytest.raises(ValueError, match="prefill_seq_len"):
        model.compile(tmp_path / "out.poly", **{**SHAPES, "num_speculative_tokens": 7})
    assert time.perf_counter() - started < 1.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [{"target": "tpu"}, {"isa": "sse9"}, {"weights": "int4"}])
def test_unknown_names_list_the_valid_ones(model: AutoModelForCausalLM, older: Path, option: dict[str, str]) -> None:
    before = _hashes(older)
    with pytest.raises(ValueError, match=r"cpu, eager|avx512_bf16|int8, int8-weight-only"):
        model.compile(older, **SHAPES, **option)
    assert _hashes(older) == before


def test_wrong_logits_are_never_written(
    model: AutoModelForCausalLM, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _hashes(older)
    weights = model._loaded.model.model.layers[0].self_attn.v_proj.weight
    from polybatch.compiler import compile as compile_module

    real = compile_module._write_tokenizer

    def change_the_model_after_the_build(loaded: object, folder: Path) -> None:
        weights.data.mul_(1.5)
        real(loaded, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(compile_module, "_write_tokenizer", change_the_model_after_the_build)
    try:
        with pytest.raises(VerificationError, match="differ from the model's own"):
            model.compile(older, target="eager", **SHAPES)
    finally:
        weights.data.div_(1.5)
    assert _hashes(older) == before


def test_a_full_disk_is_one_error_and_leaves_the_older_program(
    model: AutoModelForCausalLM, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _hashes(older)

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("polybatch.targets.eager.target.write_safetensors", fail)
    with pytest.raises(ProgramError, match="disk full"):
        model.compile(older, target="eager", **SHAPES)
    assert _hashes(older) == before
    assert sorted(path.name for path in older.parent.iterdir()) == ["out.poly"]


def test_ctrl_c_during_a_compile_leaves_the_older_program(older: Path, llama_dir: Path) -> None:
    before = _hashes(older)
    script = (
        "from polybatch import AutoModelForCausalLM as M\n"
        f"M.from_pretrained({str(llama_dir)!r}).compile({str(older)!r}, batch_size=1, ctx_len=32, prefill_seq_len=8,"
        " progress=lambda stage: print(stage, flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("compiling the graph"))
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) != 0
    assert _hashes(older) == before
    assert sorted(path.name for path in older.parent.iterdir()) == ["out.poly"]


def test_a_missing_compiler_is_named(
    model: AutoModelForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompilerError, match="no-such-compiler"):
        model.compile(tmp_path / "out.poly", target="cpu", **SHAPES)
    assert list(tmp_path.iterdir()) == []


def test_an_instruction_set_that_this_machine_lacks_is_refused_up_front(
    model: AutoModelForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polybatch.targets.cpu.isa.available_features", frozenset)
    with pytest.raises(CompilerError, match=r"isa=avx2 needs .*avx2.* isa=portable"):
        model.compile(tmp_path / "out.poly", target="cpu", isa="avx2", **SHAPES)
    assert list(tmp_path.iterdir()) == []


def test_a_context_beyond_learned_positions_is_refused(tmp_path: Path) -> None:
    gpt2 = AutoModelForCausalLM.from_pretrained(save_model(SUPPORTED["gpt2"], tmp_path / "gpt2"))
    with pytest.raises(UnsupportedModelError, match="ctx_len=256 or less"):
        gpt2.compile(tmp_path / "out.poly", target="eager", ctx_len=512, prefill_seq_len=8)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_rope_whose_angles_depend_on_the_longest_sequence_is_refused_past_its_length(kind: str, tmp_path: Path) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    scaled = AutoModelForCausalLM.from_pretrained(
        save_model(SUPPORTED["llama"], tmp_path / kind, max_position_embeddings=128, rope_parameters=rope)
    )
    with pytest.raises(UnsupportedModelError, match=r"64 positions.*ctx_len=64 or less"):
        scaled.compile(tmp_path / "out.poly", target="eager", ctx_len=128, prefill_seq_len=8)
    assert scaled.compile(tmp_path / "out.poly", target="eager", ctx_len=64, prefill_seq_len=8).ctx_len == 64


def test_a_home_that_cannot_be_written_costs_only_the_kernel_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polybatch.targets.cpu.isa import resolve_isa
    from polybatch.targets.cpu.native import build_kernels

    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert build_kernels(resolve_isa("native"), tmp_path / "kernels.so").stat().st_size > 0


def test_a_model_without_a_tokenizer_takes_token_ids_only(older: Path) -> None:
    with Engine(Program.load(older)) as engine:
        (answer,) = engine.generate([[1, 2, 3]], SamplingParams(max_tokens=4))
        assert len(answer.token_ids) == 4
        with pytest.raises(ProgramError, match="carries no tokenizer"):
            engine.generate(["text"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "missing", "is not a directory"),
        (lambda folder: folder, "has no config.json"),
    ],
)
def test_an_unreadable_model_directory_is_one_error(tmp_path: Path, make: object, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        AutoModelForCausalLM.from_pretrained(make(tmp_path))  # type: ignore[operator]


def test_a_truncated_checkpoint_is_one_error(llama_dir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama_dir, tmp_path / "model"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match="cannot read the weights"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_an_encoder_decoder_and_a_vision_model_are_refused(tmp_path: Path) -> None:
    from transformers import T5Config, ViTConfig

    T5Config(d_model=32, d_ff=32, num_layers=1, num_heads=2, vocab_size=32).save_pretrained(tmp_path / "t5")
    ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2).save_pretrained(tmp_path / "vit")
    for name in ("t5", "vit"):
        with pytest.raises(UnsupportedModelError, match="not supported"):
            AutoModelForCausalLM.from_pretrained(tmp_path / name)


@pytest.mark.parametrize("dtype", ["float16", "int8", "double"])
def test_dtypes_without_kernels_are_refused(llama_dir: Path, dtype: str) -> None:
    with pytest.raises(ValueError, match="pass one of float32, bfloat16"):
        AutoModelForCausalLM.from_pretrained(llama_dir, dtype=dtype)
