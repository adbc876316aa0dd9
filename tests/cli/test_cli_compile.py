"""``polybatch compile``."""

import json
import shutil
from pathlib import Path

import pytest

from polybatch import Program, ProgramError

SMALL = ("--ctx-len", "64", "--prefill-seq-len", "16", "--target", "eager")


def test_lists_make_a_dynamic_program_and_the_cache_gets_the_largest_batch_size(run, model_dir, tmp_path):
    result = run("compile", model_dir, "-o", tmp_path / "p.poly", "--batch-size", "1,2", *SMALL)
    assert result.exit_code == 0, result.output
    config = Program.load(tmp_path / "p.poly").table.config
    assert (config.batch_sizes, config.full_batch_size, config.continuous_batching) == ((1, 2), 2, True)


def test_it_prints_table_longest_prompt_sizes_and_place(run, model_dir, tmp_path):
    result = run("compile", model_dir, "-o", tmp_path / "p.poly", "--batch-size", "1,2", *SMALL)
    for text in ("prefill b=1 s=16", "decode b=1", "decode b=2", "63 tokens", "KiB", str(tmp_path / "p.poly")):
        assert text in result.stdout
    assert result.stderr.splitlines()[0] == "loading the model"
    assert "checking logits against the model" in result.stderr


def test_static_compiles_one_batch_size_without_slots(run, model_dir, tmp_path):
    result = run("compile", model_dir, "-o", tmp_path / "p.poly", "--static", "--batch-size", "2", *SMALL)
    assert result.exit_code == 0, result.output
    config = Program.load(tmp_path / "p.poly").table.config
    assert (config.batch_sizes, config.full_batch_size, config.continuous_batching) == ((2,), 2, False)


def test_warnings_come_once_and_as_one_line(run, model_dir, tmp_path):
    options = ("--batch-size", "1", "--full-batch-size", "2", "--num-speculative-tokens", "3")
    result = run("compile", model_dir, "-o", tmp_path / "p.poly", *options, *SMALL)
    assert result.exit_code == 0, result.output
    warned = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 2
    assert "full_batch_size=2" in warned[0]
    assert "lacks 0" in warned[1]


def test_json_is_one_object_with_the_table_the_warnings_and_the_path(run, model_dir, tmp_path):
    options = ("--full-batch-size", "2", "--comp-ctx-lengths-decode", "32,64", "--comp-ctx-lengths-prefill", "48")
    result = run("compile", model_dir, "-o", tmp_path / "p.poly", *options, *SMALL, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["path"] == str(tmp_path / "p.poly")
    assert [row["comp_ctx_length"] for row in data["specializations"]] == [48, 32, 64]
    assert data["max_prompt_len"] == 48
    assert len(data["warnings"]) == 1
    assert data["compile_seconds"] > 0


def test_without_output_the_program_is_named_after_the_model(run, model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("compile", model_dir, *SMALL)
    assert result.exit_code == 0, result.output
    assert Program.load(tmp_path / "tiny-llama.poly").full_batch_size == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batch-size", "0"), "batch_size holds 0"),
        (("--batch-size", "1,8", "--full-batch-size", "4"), "full_batch_size=8"),
        (("--prefill-seq-len", "4096"), "prefill_seq_len"),
        (("--batch-size", "1,2", "--comp-ctx-lengths-decode", "512,2048"), "no single input tells all rows"),
        (("--batch-size", "1,2", "--static"), "--static"),
        (("--batch-size", "1,two"), "'1,two' is not an int"),
        (("--batch-size", "1,"), "'1,' is not an int"),
        (("--target", "gpu"), "cpu, eager"),
        (("--isa", "neon9"), "native"),
        (("--weights", "int4"), "int8, int8-weight-only"),
        (("--weights", "int8", "--target", "eager"), "target eager"),
        (("--dtype",), "--dtype"),
        (("--ctx-len", "many"), "--ctx-len"),
        (("--frobnicate",), "--frobnicate"),
        (("--ctx-len", "1"), "ctx_len=1 has no room"),
        (("--ctx-len", "1000000000000"), "2**31 - 1"),
        (("--full-batch-size", "1000000000000"), "2**31 - 1"),
    ],
)
def test_bad_options_are_one_line_and_come_before_any_model_is_looked_for(run, tmp_path, options, words):
    result = run("compile", tmp_path / "no-such-model", *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_directory_that_is_no_program_is_refused_before_any_model_is_looked_for(run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    result = run("compile", "no-such-model", "-o", tmp_path, "--target", "eager")
    assert result.exit_code == 2
    assert "neither empty nor a polybatch program" in result.stderr


def test_an_output_that_cannot_be_made_is_refused_before_any_model_is_looked_for(run, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for output in (tmp_path / "file" / "p.poly", tmp_path / "loop", tmp_path / ("x" * 300)):
        result = run("compile", "no-such-model", "-o", output, "--target", "eager")
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert "choose another" in result.stderr


class FakeModel:
    """Keeps what it is asked to compile, and stops there."""

    asked: dict[str, object]

    @classmethod
    def from_pretrained(cls, *_: object, **__: object) -> type["FakeModel"]:
        return cls

    @classmethod
    def compile(cls, output: Path, **request: object) -> None:
        cls.asked = request
        raise ProgramError("enough")


@pytest.mark.parametrize(
    ("options", "profile"),
    [
        ((), True),
        (("--profile",), True),
        (("--no-profile",), False),
    ],
)
def test_profile_reaches_the_compiler(run, monkeypatch, options, profile):
    monkeypatch.setattr("polybatch.compiler.auto.AutoModelForCausalLM", FakeModel)
    assert "enough" in run("compile", "model", *SMALL, *options).stderr
    assert FakeModel.asked["profile"] is profile


def test_weights_reach_the_compiler(run, monkeypatch):
    monkeypatch.setattr("polybatch.compiler.auto.AutoModelForCausalLM", FakeModel)
    for options, weights in (((), None), (("--weights", "int8-weight-only"), "int8-weight-only")):
        assert "enough" in run("compile", "model", *options).stderr
        assert FakeModel.asked["weights"] == weights


def test_without_profile_no_step_times_are_stored(run, model_dir, tmp_path):
    result = run("compile", model_dir, "-o", tmp_path / "p.poly", "--no-profile", *SMALL)
    assert result.exit_code == 0, result.output
    assert Program.load(tmp_path / "p.poly").step_ms == {}


def test_a_model_name_that_is_no_utf8_is_one_line(run):
    result = run("compile", "model\udcff", *SMALL)
    assert result.exit_code == 2
    assert "is not valid UTF-8 text" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_model_is_one_line(run, tmp_path):
    result = run("compile", tmp_path / "nothing", "--target", "eager")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "is not a directory" in result.stderr


def test_a_failed_compile_leaves_the_older_program(run, model_dir, tmp_path):
    path = tmp_path / "p.poly"
    assert run("compile", model_dir, "-o", path, *SMALL).exit_code == 0
    before = (path / "manifest.json").read_text()
    broken = shutil.copytree(model_dir, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not weights")
    assert run("compile", broken, "-o", path, *SMALL).exit_code == 2
    assert (Path(path) / "manifest.json").read_text() == before
