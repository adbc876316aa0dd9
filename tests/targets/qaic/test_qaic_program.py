"""A program of target qaic: the directory, and the engine over a double of the device's runtime."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from qaic_double import driver
from steps import decode, prefill
from targets.qaic.conftest import SHAPES
from typer.testing import CliRunner

from polybatch import (
    AutoModelForCausalLM,
    DeviceBufferError,
    DeviceError,
    DeviceExecutionError,
    DeviceOpenError,
    DeviceOutputError,
    DeviceQueueError,
    DeviceRuntimeMissingError,
    Engine,
    NoMatchingSpecializationError,
    Program,
    ProgramError,
    PromptLookup,
    QaicOptions,
    SamplingParams,
)
from polybatch.cli import app
from polybatch.program import ProgramWriter

PROMPTS = [[1, 2, 3, 1, 2, 3, 1], list(range(40, 61)), [9], [7, 7, 7, 7, 7]]
GREEDY = SamplingParams(max_tokens=12)


@pytest.fixture(scope="session")
def eager(llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    model = AutoModelForCausalLM.from_pretrained(llama_dir)
    with pytest.warns(UserWarning, match="largest batch_size"):
        return model.compile(tmp_path_factory.mktemp("qaic") / "eager.poly", target="eager", **SHAPES)


@pytest.fixture(scope="module")
def finished(exported: Program, sdk_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The exported program, moved and finished by its script on a machine with the SDK."""
    moved = tmp_path_factory.mktemp("moved") / "llama.poly"
    shutil.copytree(exported.path, moved)
    environment = {**os.environ, "POLYBATCH_QAIC_SDK": str(sdk_dir)}
    done = subprocess.run([moved / "compile.sh"], capture_output=True, text=True, check=True, cwd="/", env=environment)
    assert str(moved) in done.stdout
    assert not (moved / "qpc.partial").exists()
    return Program.load(moved)


@pytest.fixture
def compiled(finished: Program, sdk: Path) -> Program:
    """On a machine with the SDK."""
    return finished


def test_the_engine_over_the_device_gives_the_tokens_of_the_eager_target(compiled: Program, eager: Program) -> None:
    with Engine(eager) as engine:
        expected = [answer.token_ids for answer in engine.generate(PROMPTS, GREEDY)]
    with Engine(compiled) as engine:
        assert [answer.token_ids for answer in engine.generate(PROMPTS, GREEDY)] == expected
    with Engine(compiled, PromptLookup(), fixed_k=3) as engine:
        assert [answer.token_ids for answer in engine.generate(PROMPTS, GREEDY)] == expected
    shapes = {step["input_ids"] for step in driver.steps}
    assert shapes >= {(1, 8), (4, 1), (4, 4)}
    assert not driver.live_programs, "a closed session gives the device back"


def test_padding_rows_write_nothing_on_the_device(compiled: Program) -> None:
    table = compiled.table
    with compiled.session() as session:
        for slot, tokens in ((1, [3, 4, 5]), (3, [6, 7]), (0, [8])):
            prefill(session, table, tokens, slot)
        (program,) = driver.live_programs
        before = {name: array.copy() for name, array in program.memory.items()}
        decode(session, table, {1: (9, 3), 3: (9, 2)}, batch_size=4)
        for name, after in program.memory.items():
            changed = ~((after == before[name]) | (np.isnan(after) & np.isnan(before[name])))
            assert {(slot, at) for slot, _, at, _ in np.argwhere(changed).tolist()} == {(1, 3), (3, 2)}


def test_a_reset_session_has_a_new_cache(compiled: Program) -> None:
    with compiled.session() as session:
        first = prefill(session, compiled.table, [3, 4, 5], 0)
        session.reset()
        (program,) = driver.live_programs
        assert all(np.isnan(array).all() for array in program.memory.values())
        np.testing.assert_array_equal(prefill(session, compiled.table, [3, 4, 5], 0), first)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("setData", DeviceBufferError),
        ("enqueue", DeviceQueueError),
        ("waitForCompletion", DeviceExecutionError),
        ("getData", DeviceOutputError),
    ],
)
def test_each_failing_call_of_a_step_has_an_error_of_its_own(
    compiled: Program, call: str, error: type[DeviceError]
) -> None:
    with compiled.session() as session:
        driver.fail_at.add(call)
        with pytest.raises(error, match="QS_ERROR"):
            prefill(session, compiled.table, [1, 2], 0)
        driver.fail_at.clear()
        assert np.isfinite(prefill(session, compiled.table, [1, 2], 0)).all()


@pytest.mark.parametrize("call", ["Qpc", "getIoDescriptor", "load", "activate"])
def test_a_program_that_does_not_open_says_so(compiled: Program, call: str) -> None:
    driver.fail_at.add(call)
    with pytest.raises(DeviceOpenError):
        compiled.session()


def test_a_device_program_of_another_table_is_refused_before_anything_is_sent(compiled: Program) -> None:
    session = compiled.session()
    descriptor = session._runner._device.descriptor
    object.__setattr__(descriptor, "allowed_shapes", descriptor.allowed_shapes[:1])
    with pytest.raises(NoMatchingSpecializationError, match=r"\[1, 1, 256\].*compiled: .*\[1, 8\]"):
        decode(session, compiled.table, {0: (1, 0)})
    assert driver.steps == []
    session.close()


def test_devices_are_chosen_by_id(compiled: Program) -> None:
    compiled.on_devices([3]).session().close()
    compiled.session().close()
    assert driver.opened == [((3,), None), (None, None)]
    with pytest.raises(ValueError, match="num_devices=1, not for 2"):
        compiled.on_devices([0, 1]).session()
    for ids in ([], [-1], [2, 2]):
        with pytest.raises(ValueError, match="device_ids"):
            compiled.on_devices(ids)


def test_only_programs_for_devices_are_opened_on_them(eager: Program) -> None:
    with pytest.raises(ValueError, match="eager runs on no devices"):
        eager.on_devices([0]).session()


def test_the_cache_cannot_be_reached(compiled: Program) -> None:
    with compiled.session() as session:
        with pytest.raises(RuntimeError, match="stays on the device"):
            session.read_slot(0)
        assert not session.copies_slots
        with pytest.raises(RuntimeError, match="cannot copy positions"):
            session.copy_slot(0, 1, 1)


def test_a_program_that_is_not_compiled_for_the_device_says_how(exported: Program) -> None:
    with pytest.raises(ProgramError, match=r"run compile\.sh in it on a machine with the SDK"):
        exported.session()


def test_inspect_says_what_is_missing_here(
    exported: Program, compiled: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def obstacle(program: Program) -> str:
        return json.loads(CliRunner().invoke(app, ["inspect", "--json", str(program.path)]).stdout)["obstacle"]

    assert "run compile.sh in it" in obstacle(exported)
    assert obstacle(compiled) is None
    sys.modules.pop("qaicrt")
    monkeypatch.setenv("POLYBATCH_QAIC_SDK", str(tmp_path))
    assert "cannot import qaicrt" in obstacle(compiled)


def test_a_finished_program_may_be_written_over(finished: Program) -> None:
    ProgramWriter(finished.path)
    (finished.path / "notes.txt").write_text("mine")
    with pytest.raises(ProgramError, match=r"holds notes\.txt"):
        ProgramWriter(finished.path)
    (finished.path / "notes.txt").unlink()


def test_without_the_runtime_the_error_says_what_to_install(
    compiled: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POLYBATCH_QAIC_SDK", str(tmp_path))
    with pytest.raises(DeviceRuntimeMissingError, match="platform and apps SDKs") as caught:
        compiled.session()
    assert isinstance(caught.value, ImportError)


def test_the_directory_holds_all_that_the_compiler_takes(exported: Program) -> None:
    assert sorted(path.name for path in exported.path.iterdir()) == [
        "compile.sh",
        "custom_io.yaml",
        "generation_config.json",
        "manifest.json",
        "model.onnx",
        "model.onnx.data",
        "qaic.json",
        "specializations.json",
    ]
    assert exported.target == "qaic"
    assert exported.manifest.created_by.compiler is None
    assert exported.manifest.verification.max_relative_error < 1e-5
    assert not exported.step_ms
    assert exported.manifest.kv_cache.bytes_per_slot == 64 * 2 * 2 * 2 * 16 * 2  # positions, layers, k+v, heads, dim


def test_the_script_on_a_machine_without_the_sdk(exported: Program) -> None:
    done = subprocess.run([exported.path / "compile.sh"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "POLYBATCH_QAIC_SDK" in done.stderr


def test_with_the_sdk_the_compile_goes_all_the_way(
    exported: Program, llama_dir: Path, sdk: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama_dir)
    options = QaicOptions(num_devices=2, mxint8_kv_cache=True, flat_specializations=True)
    shapes = {**SHAPES, "full_batch_size": 4}
    stages: list[str] = []
    program = model.compile(tmp_path / "a.poly", target="qaic", qaic=options, progress=stages.append, **shapes)
    assert any(stage.startswith("compiling for the device") for stage in stages)
    assert "compiled 7 specializations" in (program.path / "qaic-compile.log").read_text()
    assert program.manifest.created_by.compiler == "qaic-compile apps 1.20.2.0, platform 1.20.2.0"
    Program.load(program.path, verify=True)
    program.session().close()
    assert driver.opened == [((0, 1), "0:1")]
    graph, again = exported.path / "model.onnx", program.path / "model.onnx"
    assert graph.read_bytes() == again.read_bytes(), "the same model gives the same key of the cache"


@pytest.mark.parametrize(
    ("lists", "argument"),
    [
        ({"batch_size": [1, 2]}, "batch_size"),
        ({"batch_size": 2, "num_speculative_tokens": [0, 3]}, "num_speculative_tokens"),
    ],
)
def test_rejected_products_raise_before_any_export(
    llama_dir: Path, tmp_path: Path, lists: dict[str, object], argument: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama_dir)
    shapes = {**lists, "continuous_batching": True, "full_batch_size": 2, "ctx_len": 4096, "prefill_seq_len": 8}
    started = time.perf_counter()
    with pytest.raises(ValueError, match=f"no single input tells.*Give a single {argument}"):
        model.compile(
            tmp_path / "a.poly",
            target="qaic",
            comp_ctx_lengths_prefill=[1024, 4064],
            comp_ctx_lengths_decode=[2048, 4096],
            **shapes,
        )
    assert time.perf_counter() - started < 0.1
    assert not (tmp_path / "a.poly").exists()


def test_a_static_bfloat16_program_in_standard_operators(llama_dir: Path, tmp_path: Path) -> None:
    """On hardware that has bfloat16; the compile's own check compares rows of three lengths with the model."""
    model = AutoModelForCausalLM.from_pretrained(llama_dir, dtype="bfloat16")
    options = QaicOptions(hardware="ai200", plain_onnx=True)
    shapes = {"batch_size": 3, "ctx_len": 64, "prefill_seq_len": 8}
    with pytest.warns(UserWarning, match=r"compile\.sh"):
        program = model.compile(tmp_path / "a.poly", target="qaic", qaic=options, **shapes)
    assert b"com.qualcomm.cloud" not in (program.path / "model.onnx").read_bytes()
    assert program.manifest.model.dtype == "bfloat16"
    assert "-convert-to-fp16" not in (program.path / "compile.sh").read_text()
    assert (program.path / "model.onnx.data").stat().st_size < 250_000
    # The check runs in float32 over bfloat16 weights: nothing is rounded but the weights.
    assert program.manifest.verification.max_relative_error < 1e-5
