"""``polybatch inspect``."""

import json
import shutil
from pathlib import Path

import pytest

from polybatch.program import Manifest


@pytest.fixture
def copy(program_dir: Path, tmp_path: Path) -> Path:
    """A program that a test may damage."""
    return shutil.copytree(program_dir, tmp_path / "copy.poly")


def edit_manifest(program: Path, **changes: object) -> None:
    """Changes the manifest and makes its checksum fit."""
    path = program / "manifest.json"
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(Manifest.model_validate_json(json.dumps(data)).seal().to_text())


def test_it_shows_table_inputs_files_and_needs(run, program_dir):
    result = run("inspect", program_dir)
    assert result.exit_code == 0, result.output
    shown = result.stdout
    for text in ("decode b=4", "batch_index", "[batch_size, seq_len]", "weights.safetensors", "255 tokens"):
        assert text in shown
    lines = {line[:16].strip(): line[16:] for line in shown.splitlines()}
    assert lines["runs here"] == "yes"
    assert lines["batch invariant"] in ("yes", "no")
    assert lines["verified"].startswith("largest relative error")
    assert lines["CPU features"] == "none needed"


def test_json_holds_the_manifest_and_what_follows_from_it(run, program_dir):
    data = json.loads(run("inspect", program_dir, "--json").stdout)
    manifest = json.loads((program_dir / "manifest.json").read_text())
    assert data["specializations"] == manifest["specializations"]
    assert data["inputs"] == manifest["inputs"]
    assert data["max_prompt_len"] == 255
    assert data["runs_here"] is True
    assert data["total_bytes"] == sum(entry["size"] for entry in manifest["files"].values())
    assert data["cache_bytes"] == 4 * manifest["kv_cache"]["bytes_per_slot"]
    assert data["cpu_features"] == {"needed": [], "present": [], "missing": []}


def test_step_times_are_shown_where_they_are_known(run, copy):
    rows = json.loads((copy / "manifest.json").read_text())["specializations"]
    rows[1]["step_ms"] = 12.345
    edit_manifest(copy, specializations=rows)
    shown = run("inspect", copy).stdout
    assert "step ms" in shown
    assert "12.35" in shown or "12.34" in shown


def test_a_program_that_this_machine_cannot_run_is_shown_with_what_is_missing(run, copy):
    edit_manifest(copy, isa="avx512", cpu_features=["avx9000"])
    result = run("inspect", copy)
    assert result.exit_code == 0, result.output
    assert "missing: avx9000" in result.stdout
    assert "runs here       no: " in result.stdout
    data = json.loads(run("inspect", copy, "--json").stdout)
    assert data["cpu_features"]["missing"] == ["avx9000"]
    assert data["runs_here"] is False


@pytest.mark.parametrize(("weights", "shown"), [(None, "float32"), ("int8-weight-only", "int8-weight-only")])
def test_the_weight_format_is_shown(run, copy, weights, shown):
    model = json.loads((copy / "manifest.json").read_text())["model"]
    edit_manifest(copy, model={**model, "weights": weights})
    lines = {line[:16].strip(): line[16:] for line in run("inspect", copy).stdout.splitlines()}
    assert lines["weights"] == shown
    assert lines["model"].endswith("layers, float32")
    assert json.loads(run("inspect", copy, "--json").stdout)["model"]["weights"] == weights


def test_a_manifest_edited_by_hand_is_one_line(run, copy):
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace('"kv_heads": 2', '"kv_heads": 1').replace("float32", "bfloat16"))
    result = run("inspect", copy)
    assert result.exit_code == 2
    assert "has been edited" in result.stderr
    assert result.stderr.count("\n") == 1


def test_verify_finds_an_edited_file_that_sizes_do_not_give_away(run, copy):
    path = copy / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert run("inspect", copy).exit_code == 0
    result = run("inspect", copy, "--verify")
    assert result.exit_code == 2
    assert "weights.safetensors (changed (sha256 differs))" in result.stderr
    assert "decode b=4" in result.stdout


def test_every_missing_or_short_file_is_named(run, copy):
    (copy / "tokenizer.json").unlink()
    (copy / "config.json").write_text("{}")
    result = run("inspect", copy, "--json")
    assert result.exit_code == 2
    files = json.loads(result.stdout)["files"]
    assert files["tokenizer.json"]["problem"] == "missing"
    assert files["config.json"]["problem"] == "has 2 bytes"
    assert files["weights.safetensors"]["problem"] is None
    assert "tokenizer.json (missing)" in result.stderr


@pytest.mark.parametrize("name", ["nothing", "."])
def test_what_is_no_program_is_one_line(run, tmp_path, name):
    result = run("inspect", tmp_path / name)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
