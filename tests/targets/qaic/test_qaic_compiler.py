"""A device compiler that misbehaves: one clear error each, and nothing left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from qaic_double.sdk import install_compiler

from polybatch import AutoModelForCausalLM, CompilerError, Program, QaicOptions
from polybatch.targets.qaic import build, device_compiler
from polybatch.targets.qaic.device_compiler import run_compiler
from polybatch.targets.qaic.qpc_cache import QpcCache, compile_key
from polybatch.targets.qaic.sdk import find_sdk

WRITES = "mkdir qpc; echo binary > qpc/programqpc.bin; echo done"


def _script(body: str) -> str:
    return f"#!/bin/sh\n{body}\n"


@pytest.fixture
def compile_with(llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exported: Program) -> Any:
    """``compile_with(shell)``: a compile whose device compiler is that shell text; the graph is not exported again."""

    def copy_graph(*args: Any, plain: bool) -> None:
        for name in ("model.onnx", "model.onnx.data"):
            (args[3] / name).write_bytes((exported.path / name).read_bytes())

    monkeypatch.setattr(build, "export_onnx", copy_graph)
    shapes = {"continuous_batching": True, "num_speculative_tokens": [0, 3], "ctx_len": 64, "prefill_seq_len": 8}
    model = AutoModelForCausalLM.from_pretrained(llama_dir)

    def run(shell: str, name: str = "sdk", version: str = "1.20", **options: Any) -> Program:
        root = tmp_path / name
        if not root.exists():
            install_compiler(root, _script(shell), version)
        monkeypatch.setenv("POLYBATCH_QAIC_SDK", str(root))
        return model.compile(
            tmp_path / "out.poly", target="qaic", full_batch_size=1, qaic=QaicOptions(**options), **shapes
        )

    return run


def _left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if path.name not in ("cache", "sdk"))


def test_a_compiler_that_fails(compile_with: Any, tmp_path: Path) -> None:
    with pytest.raises(CompilerError) as caught:
        compile_with("echo on the way; mkdir qpc; echo 'no such op: Foo' >&2; exit 7")
    text = str(caught.value)
    assert "failed with exit code 7: no such op: Foo" in text
    log = Path(text.rpartition("(log: ")[2].rstrip(")"))
    assert log.read_text() == "on the way\nno such op: Foo\n"
    assert _left(tmp_path) == []


def test_a_compiler_that_writes_nothing(compile_with: Any, tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"without an error and without writing qpc/programqpc\.bin"):
        compile_with("mkdir qpc; : > qpc/programqpc.bin")
    assert _left(tmp_path) == []


def test_a_compiler_that_is_killed(compile_with: Any, tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="ended by SIGKILL, perhaps for lack of memory"):
        compile_with("kill -9 $$")
    assert _left(tmp_path) == []


def test_ctrl_c_ends_a_compiler_that_hangs_and_what_it_has_started(
    compile_with: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_compiler, "_GRACE_SECONDS", 0.2)
    pids = tmp_path / "cache" / "pids"
    pids.parent.mkdir()

    def interrupt() -> None:
        while not pids.exists() or len(pids.read_text().split()) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        compile_with(f"trap '' INT TERM; mkdir qpc; sleep 300 & echo $! $$ >> {pids}; wait; sleep 300")
    thread.join()
    assert _left(tmp_path) == []
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_older_program_survives_a_failure(compile_with: Any, tmp_path: Path) -> None:
    program = compile_with(WRITES)
    before = program.manifest
    with pytest.raises(CompilerError):
        compile_with("exit 1", "other", version="2")
    assert Program.load(tmp_path / "out.poly", verify=True).manifest == before
    assert (program.path / "qpc" / "programqpc.bin").read_text() == "binary\n"


def test_the_same_inputs_are_compiled_once_per_version_of_the_sdk(compile_with: Any, tmp_path: Path) -> None:
    count = tmp_path / "cache" / "count"
    count.parent.mkdir()
    shell = f"echo x >> {count}; {WRITES}"
    for _ in range(2):
        compile_with(shell)
    assert count.read_text() == "x\n"
    compile_with(shell, mos=1)
    assert count.read_text() == "x\nx\n"
    compile_with(shell, "newer", version="1.21")
    assert count.read_text() == "x\nx\nx\n"


def test_a_place_without_an_sdk_that_was_named_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYBATCH_QAIC_SDK", str(tmp_path))
    with pytest.raises(CompilerError, match="has no executable exec/qaic-compile"):
        find_sdk()


def test_a_compiler_that_cannot_be_run(tmp_path: Path) -> None:
    sdk = install_compiler(tmp_path, "#!/no/such/shell\n")
    with pytest.raises(CompilerError, match="cannot run"):
        run_compiler([str(sdk / "exec" / "qaic-compile")], tmp_path, tmp_path / "a.log")


def test_a_cache_entry_without_its_binary_is_none(tmp_path: Path) -> None:
    cache = QpcCache(tmp_path / "cache")
    (tmp_path / "qpc").mkdir()
    (tmp_path / "qpc" / "programqpc.bin").write_text("")
    cache.store("key", tmp_path)
    (tmp_path / "other").mkdir()
    assert not cache.fetch("key", tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_the_key_knows_contents_arguments_and_version_but_no_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    key = compile_key(tmp_path, ["a"], ["/one/qaic-compile", "-x"], "1.0")
    assert key == compile_key(tmp_path, ["a"], ["/two/qaic-compile", "-x"], "1.0")
    assert key != compile_key(tmp_path, ["a"], ["/one/qaic-compile", "-y"], "1.0")
    assert key != compile_key(tmp_path, ["a"], ["/one/qaic-compile", "-x"], "1.1")
    (tmp_path / "a").write_text("2")
    assert key != compile_key(tmp_path, ["a"], ["/one/qaic-compile", "-x"], "1.0")
