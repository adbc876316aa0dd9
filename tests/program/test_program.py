"""Loading a program: what is checked, what it says when something is wrong."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError
from tiny_program import write_program

from polybatch.errors import ProgramCorruptError, ProgramError, ProgramIncompatibleError, ProgramVersionError
from polybatch.program import SCHEMA_VERSION, Manifest, Program
from polybatch.weights import map_safetensors

DEEP = pytest.param("[" * 200_000, id="deep lists")


def edit_manifest(directory: Path, **changes: object) -> None:
    """Changes the manifest and makes its checksum fit, as a compiler with a fault would."""
    path = directory / "manifest.json"
    data = {**json.loads(path.read_text()), **changes}
    with contextlib.suppress(ValidationError):
        data = json.loads(Manifest.model_validate_json(json.dumps(data)).seal().to_text())
    path.write_text(json.dumps(data))


def forget_file(directory: Path, name: str) -> None:
    files = json.loads((directory / "manifest.json").read_text())["files"]
    edit_manifest(directory, files={key: entry for key, entry in files.items() if key != name})


def test_a_program_has_the_table_it_was_written_with(program_dir):
    program = Program.load(program_dir, verify=True)
    assert [row.name for row in program.specializations] == ["prefill b=1 s=16", "decode b=1", "decode b=4"]
    assert (program.ctx_len, program.full_batch_size, program.prefill_seq_len) == (64, 4, 16)
    assert (program.max_prompt_len, program.target) == (63, "cpu")


def test_step_times_belong_to_their_rows(program_dir):
    program = Program.load(program_dir)
    assert program.step_ms == {program.table.decode[0]: 1.5}


def test_a_program_can_be_moved(program_dir, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = program_dir.rename(tmp_path / "elsewhere" / "other.poly")
    program = Program.load(moved, verify=True)
    assert program.path == moved.resolve()
    assert map_safetensors(program.path / "weights.safetensors")["weight"].shape == (16, 16)


def test_no_file_of_a_program_holds_an_absolute_path(program_dir, tmp_path):
    for path in program_dir.rglob("*"):
        assert str(tmp_path).encode() not in path.read_bytes()


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ProgramError, match="there is no program at"):
        Program.load(tmp_path / "nothing")


def test_a_directory_without_manifest_is_no_program(tmp_path):
    with pytest.raises(ProgramCorruptError, match="is not a polybatch program"):
        Program.load(tmp_path)


def test_a_missing_file_is_named(program_dir):
    (program_dir / "weights.safetensors").unlink()
    with pytest.raises(ProgramCorruptError, match=r"weights\.safetensors is missing"):
        Program.load(program_dir)


def test_a_truncated_file_is_found_without_verify(program_dir):
    path = program_dir / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ProgramCorruptError, match=r"weights\.safetensors has 5119 bytes instead of 5120"):
        Program.load(program_dir)


def test_an_edited_byte_is_found_with_verify(program_dir):
    path = program_dir / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    Program.load(program_dir)
    with pytest.raises(ProgramCorruptError, match=r"weights\.safetensors has changed"):
        Program.load(program_dir, verify=True)


def test_another_schema_version_is_named_before_anything_else(program_dir):
    newer = SCHEMA_VERSION + 1
    (program_dir / "manifest.json").write_text(f'{{"schema_version": {newer}, "something": "new"}}')
    with pytest.raises(ProgramVersionError, match=f"version {newer}, this polybatch reads {SCHEMA_VERSION}; recompile"):
        Program.load(program_dir)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '"x"', "\udcff", DEEP, pytest.param('{"a":' * 200_000, id="deep objects")]
)
def test_a_manifest_that_cannot_be_read_is_corrupt(program_dir, text):
    (program_dir / "manifest.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ProgramCorruptError) as error:
        Program.load(program_dir)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"batching": None}, "batching"),
        ({"target": "tpu"}, "target"),
        ({"surprise": 1}, "surprise"),
        ({"files": {"../outside": {"size": 1, "sha256": ""}}}, r"files"),
        ({"files": {"/etc/passwd": {"size": 1, "sha256": ""}}}, r"files"),
    ],
)
def test_a_damaged_manifest_names_the_place_in_one_line(program_dir, changes, place):
    edit_manifest(program_dir, **changes)
    with pytest.raises(ProgramCorruptError, match=f"is damaged at {place}") as error:
        Program.load(program_dir)
    assert "\n" not in str(error.value)


def test_an_unknown_weight_format_is_named(program_dir):
    model = json.loads((program_dir / "manifest.json").read_text())["model"]
    edit_manifest(program_dir, model={**model, "weights": "int4"})
    with pytest.raises(ProgramCorruptError, match=r"is damaged at model\.weights"):
        Program.load(program_dir)


@pytest.mark.parametrize("version", [True, 2.0, "2", [2], {"x": "\n"}])
def test_a_schema_version_that_is_no_int_is_corrupt(program_dir, version):
    path = program_dir / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
    with pytest.raises(ProgramCorruptError, match=r"is damaged at schema_version: a .*, not an int") as error:
        Program.load(program_dir)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_program_of_an_earlier_schema_version_must_be_recompiled(program_dir, version):
    edit_manifest(program_dir, schema_version=version)
    with pytest.raises(
        ProgramVersionError, match=f"version {version}, this polybatch reads {SCHEMA_VERSION}; recompile"
    ):
        Program.load(program_dir)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("kv_cache", "layers", 0, "kv_heads"), 1),
        (("kv_cache", "layers", 0, "key_dim"), 16),
        (("model", "dtype"), "bfloat16"),
        (("model", "vocab_size"), 16),
        (("specializations", 1, "step_ms"), 2.5),
        (("created",), "2026-02-01"),
        (("target",), "eager"),
        (("target",), "qaic"),
        (("files",), {}),
        (("checksum",), ""),
    ],
)
def test_a_manifest_edited_by_hand_is_corrupt(program_dir, place, value):
    path = program_dir / "manifest.json"
    data = json.loads(path.read_text())
    record = data
    for key in place[:-1]:
        record = record[key]
    record[place[-1]] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ProgramCorruptError, match=r"manifest\.json has been edited"):
        Program.load(program_dir)


def test_a_manifest_without_checksum_is_corrupt_and_layout_does_not_matter(program_dir):
    path = program_dir / "manifest.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(data.items()))))
    assert Program.load(program_dir).manifest.checksum == data.pop("checksum")
    path.write_text(json.dumps(data))
    with pytest.raises(ProgramCorruptError, match="has been edited"):
        Program.load(program_dir)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("cpu", "graph.so"),
        ("cpu", "kernels.so"),
        ("cpu", "weights.safetensors"),
        ("eager", "config.json"),
        ("eager", "weights.safetensors"),
    ],
)
def test_the_manifest_lists_the_files_that_the_target_needs(program_dir, target, name):
    files = json.loads((program_dir / "manifest.json").read_text())["files"]
    files["config.json"] = files["graph.so"]
    del files[name]
    edit_manifest(program_dir, target=target, files=files)
    with pytest.raises(ProgramCorruptError, match=f"is damaged at files: a program of target {target} has {name}"):
        Program.load(program_dir)


def test_a_program_that_lacks_the_files_of_its_target_is_corrupt(program_dir):
    edit_manifest(program_dir, target="qaic")
    with pytest.raises(ProgramCorruptError, match=r"a program of target qaic has model\.onnx"):
        Program.load(program_dir)


def test_a_manifest_without_a_key_is_corrupt(program_dir):
    path = program_dir / "manifest.json"
    data = json.loads(path.read_text())
    del data["model"]["vocab_size"]
    path.write_text(json.dumps(data))
    with pytest.raises(ProgramCorruptError, match=r"is damaged at model\.vocab_size: Field required"):
        Program.load(program_dir)


def test_rows_that_are_not_those_of_the_request_are_corrupt(program_dir):
    rows = json.loads((program_dir / "manifest.json").read_text())["specializations"]
    rows[1]["batch_size"] = 3
    edit_manifest(program_dir, specializations=rows)
    with pytest.raises(ProgramCorruptError, match="impossible table"):
        Program.load(program_dir)


def test_a_request_that_breaks_a_rule_is_corrupt(program_dir):
    batching = json.loads((program_dir / "manifest.json").read_text())["batching"]
    edit_manifest(program_dir, batching={**batching, "batch_sizes": []})
    with pytest.raises(ProgramCorruptError, match="impossible table"):
        Program.load(program_dir)


def test_a_missing_cpu_feature_is_named(tmp_path):
    path = write_program(tmp_path / "tiny.poly", cpu_features=("quantum9",), isa="native")
    with pytest.raises(ProgramIncompatibleError, match=r"lacks quantum9; recompile here, or with --isa portable"):
        Program.load(path)


def test_another_torch_version_is_refused_for_the_cpu_target_only(program_dir):
    edit_manifest(program_dir, created_by={"polybatch": "0.1.0", "torch": "1.0.0", "transformers": "5.24.0"})
    with pytest.raises(ProgramIncompatibleError, match=r"compiled with torch 1\.0\.0 and torch .* is installed"):
        Program.load(program_dir)
    (program_dir / "config.json").write_bytes(b"x")
    files = json.loads((program_dir / "manifest.json").read_text())["files"]
    edit_manifest(program_dir, target="eager", files={**files, "config.json": files["graph.so"]})
    assert Program.load(program_dir).target == "eager"


@pytest.mark.parametrize(
    ("text", "ids"), [('{"eos_token_id": 2}', (2,)), ('{"eos_token_id": [2, 7]}', (2, 7)), ("{}", ()), (None, ())]
)
def test_eos_token_ids_come_from_the_generation_config(program_dir, text, ids):
    forget_file(program_dir, "generation_config.json")
    path = program_dir / "generation_config.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert Program.load(program_dir).eos_token_ids == ids


@pytest.mark.parametrize("text", ['{"eos_token_id": "two"}', "[]", "{", DEEP])
def test_a_damaged_generation_config_is_named(program_dir, text):
    forget_file(program_dir, "generation_config.json")
    (program_dir / "generation_config.json").write_text(text)
    with pytest.raises(ProgramCorruptError, match=r"generation_config\.json"):
        _ = Program.load(program_dir).eos_token_ids


def test_a_program_without_tokenizer_says_so(program_dir):
    with pytest.raises(ProgramError, match="carries no tokenizer; pass token ids"):
        Program.load(program_dir).tokenizer()


def test_the_tokenizer_is_the_one_stored_and_loaded_once(program_dir):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"<unk>": 0, "hello": 1, "world": 2}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(program_dir / "tokenizer.json"))
    (program_dir / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    program = Program.load(program_dir)
    assert program.tokenizer()("hello world")["input_ids"] == [1, 2]
    assert program.tokenizer() is program.tokenizer()


def test_each_session_is_a_new_one_on_this_program(program_dir, monkeypatch):
    opened = []
    monkeypatch.setattr("polybatch.session.open_session", lambda program, threads: opened.append((program, threads)))
    program = Program.load(program_dir)
    program.session()
    program.session(threads=3)
    assert opened == [(program, None), (program, 3)]


def test_loading_imports_neither_torch_nor_transformers(program_dir):
    code = (
        "import sys; from polybatch.program import Program; Program.load(sys.argv[1], verify=True); "
        "assert not {'torch', 'transformers', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, str(program_dir)], check=True)


def test_loading_takes_milliseconds(program_dir):
    Program.load(program_dir)
    begin = time.perf_counter()
    Program.load(program_dir)
    assert time.perf_counter() - begin < 0.05
