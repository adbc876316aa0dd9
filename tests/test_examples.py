"""The scripts in examples/ and the code in README.md run as they stand, on a tiny model."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from cli.tiny_chat_llama import save_tiny_llama

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="module")
def program_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that the first example writes; the others run it."""
    path = tmp_path_factory.mktemp("programs") / "tiny.poly"
    with pytest.MonkeyPatch.context() as patch:
        run_example(patch, "compile_and_generate.py", model_dir, path, "eager")
    return path


def run_example(patch: pytest.MonkeyPatch, name: str, *args: object) -> None:
    patch.setattr(sys, "argv", [name, *[str(arg) for arg in args]])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_is_run_here():
    tested = {"compile_and_generate.py", "low_level_session.py", "streaming.py", "sampling.py", "speculation.py"}
    tested |= {"structured.py"}
    tested |= {"openai_client.py"}  # in tests/server
    tested |= {"cloud_ai_100.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_compile_and_generate(monkeypatch, capsys, model_dir, tmp_path):
    run_example(monkeypatch, "compile_and_generate.py", model_dir, tmp_path / "tiny.poly", "eager")
    out = capsys.readouterr().out
    assert "'The capital of France is' -> " in out
    assert "decode b=4: " in out


def test_low_level_session(monkeypatch, capsys, program_dir):
    run_example(monkeypatch, "low_level_session.py", program_dir)
    out = capsys.readouterr().out
    assert "the step ran as decode b=2" in out
    assert "slot 3: 'The capital of France is' -> " in out


def test_streaming(monkeypatch, capsys, program_dir):
    run_example(monkeypatch, "streaming.py", program_dir, "Hello")
    assert "meanwhile: " in capsys.readouterr().out


def test_structured(monkeypatch, capsys, program_dir):
    run_example(monkeypatch, "structured.py", program_dir)
    out = capsys.readouterr().out
    assert re.search("one of two:  (yes|no)$", out, re.MULTILINE)
    assert re.search("a date:  [A-Z][a-z]+ [0-9]+, [0-9]{4}$", out, re.MULTILINE)
    assert re.search("legs: [0-8]$", out, re.MULTILINE)


def test_sampling(monkeypatch, capsys, program_dir):
    run_example(monkeypatch, "sampling.py", program_dir)
    assert "seed 42 alone gives the same tokens: True" in capsys.readouterr().out


def test_speculation(monkeypatch, capsys, model_dir, tmp_path):
    run_example(monkeypatch, "speculation.py", model_dir, tmp_path / "speculative.poly", "eager")
    out = capsys.readouterr().out
    assert "the same tokens: True" in out
    assert "steps by (batch, K): {(1, " in out


def test_cloud_ai_100(monkeypatch, capsys, model_dir, tmp_path):
    monkeypatch.delenv("POLYBATCH_QAIC_SDK", raising=False)
    with pytest.warns(UserWarning, match=r"run compile\.sh"):
        run_example(monkeypatch, "cloud_ai_100.py", model_dir, tmp_path / "device.poly")
    out = capsys.readouterr().out
    assert "compile.sh, custom_io.yaml" in out
    assert "-mdp-load-partition-config=mdp_ts_2.json" in out


def test_the_example_of_the_readme(monkeypatch, capsys, model_dir, tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    assert len(code[1].strip().splitlines()) <= 8
    text = code[1].replace("path/to/SmolLM2-135M-Instruct", str(model_dir))
    text = text.replace("full_batch_size=4)", 'full_batch_size=4, target="eager")')
    assert "eager" in text
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "README.md", "exec"), {})
    assert (tmp_path / "smollm2.poly").is_dir()
    assert len(capsys.readouterr().out.splitlines()) >= 2
