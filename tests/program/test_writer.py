"""Writing a program: whole or not at all, whatever happens in between."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_program import make_manifest, write_cpu_files, write_program

from polybatch.errors import ProgramError
from polybatch.program import SCHEMA_VERSION, Program, ProgramWriter, files, writer
from polybatch.program.sibling import clean_stale_siblings, new_sibling
from polybatch.specialization import to_qaic_specializations
from polybatch.weights import map_safetensors, write_safetensors


def weight(directory: Path) -> float:
    Program.load(directory, verify=True)
    return float(map_safetensors(directory / "weights.safetensors")["weight"][0, 0])


def test_the_manifest_lists_every_file_with_size_and_sum(program_dir):
    manifest = Program.load(program_dir).manifest
    assert sorted(manifest.files) == [
        "generation_config.json",
        "graph.so",
        "kernels.so",
        "specializations.json",
        "weights.safetensors",
    ]
    for name, entry in manifest.files.items():
        assert entry.size == (program_dir / name).stat().st_size
        assert entry.sha256 == files.sha256_of(program_dir / name)


def test_specializations_json_is_the_table(program_dir):
    stored = json.loads((program_dir / "specializations.json").read_text())
    assert stored == to_qaic_specializations(Program.load(program_dir).table)


def test_the_same_program_written_twice_has_the_same_bytes(tmp_path):
    first, second = write_program(tmp_path / "a.poly"), write_program(tmp_path / "b.poly")
    for name in files.list_files(first):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_files_in_folders_are_part_of_the_program(tmp_path):
    with ProgramWriter(tmp_path / "a.poly") as out:
        write_safetensors(out.path / "weights.safetensors", {})
        write_cpu_files(out.path)
        (out.path / "qpc").mkdir()
        (out.path / "qpc" / "programqpc.bin").write_bytes(b"x")
        manifest = out.commit(make_manifest())
    assert "qpc/programqpc.bin" in manifest.files
    Program.load(tmp_path / "a.poly", verify=True)


def test_parents_of_the_output_directory_are_made(tmp_path):
    assert weight(write_program(tmp_path / "deep" / "er" / "a.poly", 1.0)) == 1.0


def test_nothing_appears_before_the_commit(tmp_path, siblings):
    with ProgramWriter(tmp_path / "a.poly") as out:
        (out.path / "graph.so").write_bytes(b"x")
        assert out.path.parent == tmp_path and out.path.name.startswith(".a.poly.")
        assert not (tmp_path / "a.poly").exists()
    assert siblings() == []


def test_a_writer_takes_nothing_after_the_commit(tmp_path):
    with ProgramWriter(tmp_path / "a.poly") as out:
        out.commit(make_manifest())
        with pytest.raises(ProgramError, match="before commit"):
            out.commit(make_manifest())


def test_a_program_is_replaced(program_dir, siblings):
    write_program(program_dir, 2.0)
    assert weight(program_dir) == 2.0
    assert siblings() == ["tiny.poly"]


def test_an_empty_directory_is_replaced(tmp_path):
    (tmp_path / "a.poly").mkdir()
    assert weight(write_program(tmp_path / "a.poly", 1.0)) == 1.0


def test_a_program_is_replaced_where_directories_cannot_be_exchanged(program_dir, siblings, monkeypatch):
    monkeypatch.setattr(writer, "exchange", lambda first, second: False)
    write_program(program_dir, 2.0)
    assert weight(program_dir) == 2.0
    assert siblings() == ["tiny.poly"]


def test_an_older_program_comes_back_when_the_second_rename_fails(tmp_path):
    (tmp_path / "current").mkdir()
    with pytest.raises(FileNotFoundError):
        files.swap_by_renames(tmp_path / "missing", tmp_path / "current", tmp_path / "aside")
    assert [path.name for path in tmp_path.iterdir()] == ["current"]


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is of Linux")
def test_a_replaced_program_is_never_absent(program_dir, monkeypatch):
    seen = []

    def watch(first: Path, second: Path) -> bool:
        before = weight(second)
        swapped = files.exchange(first, second)
        seen.append((before, swapped, weight(second), weight(first)))
        return swapped

    monkeypatch.setattr(writer, "exchange", watch)
    monkeypatch.setattr(writer, "swap_by_renames", None)
    write_program(program_dir, 2.0)
    assert seen == [(0.0, True, 2.0, 0.0)]


def test_a_directory_of_other_files_is_refused_before_any_work(tmp_path, siblings):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("precious")
    with pytest.raises(ProgramError, match="neither empty nor a polybatch program"):
        ProgramWriter(tmp_path / "thesis")
    assert siblings() == ["thesis"]


def test_somebody_elses_manifest_is_refused(tmp_path):
    (tmp_path / "extension").mkdir()
    (tmp_path / "extension" / "manifest.json").write_text('{"manifest_version": 3}')
    with pytest.raises(ProgramError, match="neither empty nor a polybatch program"):
        ProgramWriter(tmp_path / "extension")


def test_a_program_that_somebody_put_files_into_is_refused(program_dir):
    (program_dir / "notes.txt").write_text("precious")
    with pytest.raises(ProgramError, match=r"holds notes\.txt, which is not part of the program"):
        ProgramWriter(program_dir)


def test_a_program_of_another_schema_version_may_be_replaced(program_dir):
    manifest = program_dir / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 1'))
    assert weight(write_program(program_dir, 3.0)) == 3.0


def test_a_manifest_that_is_nested_too_deeply_is_not_a_program_to_replace(tmp_path):
    (tmp_path / "a.poly").mkdir()
    (tmp_path / "a.poly" / "manifest.json").write_text("[" * 200_000)
    with pytest.raises(ProgramError, match="neither empty nor a polybatch program"):
        ProgramWriter(tmp_path / "a.poly")


@pytest.mark.parametrize("below", ["file/a.poly", "file/deep/a.poly"])
def test_an_output_below_a_file_is_refused_before_any_work(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(ProgramError, match=r"cannot be made: .*file is not a directory"):
        ProgramWriter(tmp_path / below)


@pytest.mark.parametrize("below", ["loop", "loop/a.poly"])
def test_a_loop_of_links_is_refused_before_any_work(tmp_path, below):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ProgramError, match=r"cannot be used: .*choose another") as error:
        ProgramWriter(tmp_path / below)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["x" * 300, "~no-such-user-9/a.poly", "a\0b"])
def test_an_impossible_path_is_refused_in_one_line_when_written_and_when_loaded(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for use in (ProgramWriter, Program.load):
        with pytest.raises(ProgramError, match=r"the path .* cannot be used: ") as error:
            use(name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["x" * 240, "x" * 255, "\u00e4" * 120])
def test_a_long_name_is_no_obstacle(tmp_path, siblings, name):
    write_program(tmp_path / name, 1.0)
    assert weight(write_program(tmp_path / name, 2.0)) == 2.0
    assert siblings() == [name]


def test_siblings_of_long_names_belong_to_one_program(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    paths = [tmp_path / ("x" * 239 + last) for last in "ab"]
    left = []
    for path in paths:
        parts = new_sibling(path).name.split(".")
        parts[-3] = dead.stdout.decode().strip()
        left.append(tmp_path / ".".join(parts))
        left[-1].mkdir()
    assert all(len(path.name) <= 143 for path in left)
    clean_stale_siblings(paths[0])
    assert [path.exists() for path in left] == [False, True]


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "a.poly").write_text("")
    with pytest.raises(ProgramError, match="is not a directory"):
        ProgramWriter(tmp_path / "a.poly")


def test_a_symbolic_link_in_a_program_is_refused(tmp_path, siblings):
    with pytest.raises(ProgramError, match="symbolic link"), ProgramWriter(tmp_path / "a.poly") as out:
        (out.path / "link").symlink_to("/etc/hostname")
        out.commit(make_manifest())
    assert siblings() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_interrupted_write_leaves_the_older_program(program_dir, siblings, error):
    with pytest.raises(error), ProgramWriter(program_dir) as out:
        (out.path / "graph.so").write_bytes(b"half")
        raise error
    assert weight(program_dir) == 0.0
    assert siblings() == ["tiny.poly"]


def test_an_interrupted_commit_leaves_the_older_program(program_dir, siblings, monkeypatch):
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "sync_tree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_program(program_dir, 2.0)
    assert weight(program_dir) == 0.0
    assert siblings() == ["tiny.poly"]


def test_an_interrupt_after_the_exchange_leaves_the_new_program(program_dir, siblings, monkeypatch):
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "sync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_program(program_dir, 2.0)
    assert weight(program_dir) == 2.0
    assert siblings() == ["tiny.poly"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_so_and_leaves_the_older_program(program_dir, siblings, monkeypatch, code):
    def fill(self: Path, text: str, encoding: str) -> None:
        raise OSError(code, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fill)
        refused = pytest.raises(ProgramError, match=r"disk full: writing .* had written 1024 bytes and \d+ are free")
        with refused, ProgramWriter(program_dir) as out:
            (out.path / "graph.so").write_bytes(bytes(1024))
            out.commit(make_manifest())
    assert weight(program_dir) == 0.0
    assert siblings() == ["tiny.poly"]


def test_another_io_error_stays_what_it_is(tmp_path, siblings):
    with pytest.raises(PermissionError), ProgramWriter(tmp_path / "a.poly"):
        raise PermissionError(errno.EACCES, "no")
    assert siblings() == []


def test_a_reservation_larger_than_the_disk_is_refused_at_once(tmp_path, siblings):
    with (
        pytest.raises(ProgramError, match=f"disk full: .* needs {1 << 60} bytes"),
        ProgramWriter(tmp_path / "a") as out,
    ):
        out.reserve(1 << 60)
    assert siblings() == []


KILLED = """
import os, signal, sys
from polybatch.program import ProgramWriter
with ProgramWriter(sys.argv[1]) as writer:
    (writer.path / "weights.safetensors").write_bytes(bytes(100))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_write_leaves_the_older_program_and_the_next_one_clears_up(program_dir, siblings):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(program_dir)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(siblings()) == 2
    assert weight(program_dir) == 0.0
    write_program(program_dir, 2.0)
    assert weight(program_dir) == 2.0
    assert siblings() == ["tiny.poly"]


def test_a_killed_first_write_leaves_no_program(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a.poly")], check=False)
    with pytest.raises(ProgramError, match="there is no program"):
        Program.load(tmp_path / "a.poly")


def test_a_write_that_is_still_running_is_left_alone(tmp_path):
    with ProgramWriter(tmp_path / "a.poly") as first:
        write_safetensors(first.path / "weights.safetensors", {})
        write_cpu_files(first.path)
        (first.path / "first.txt").write_bytes(b"x")
        write_program(tmp_path / "a.poly", 1.0)
        first.commit(make_manifest())
    assert "first.txt" in Program.load(tmp_path / "a.poly").manifest.files


def test_a_program_left_aside_by_a_killed_replacement_comes_back(program_dir, tmp_path, siblings):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    name = new_sibling(program_dir, "old").name.split(".")
    name[-3] = dead.stdout.decode().strip()
    program_dir.rename(tmp_path / ".".join(name))
    with pytest.raises(RuntimeError), ProgramWriter(program_dir):
        raise RuntimeError
    assert siblings() == ["tiny.poly"]
    assert weight(program_dir) == 0.0


def test_weights_are_as_written(tmp_path):
    assert torch.equal(
        map_safetensors(write_program(tmp_path / "a.poly", 0.5) / "weights.safetensors")["weight"],
        torch.full((16, 16), 0.5),
    )


def test_no_module_of_the_package_unpickles():
    package = Path(writer.__file__).parents[1]
    for path in package.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "from pickle", "import cloudpickle", "import dill", "torch.load(", "torch.save("):
            assert word not in text, f"{path.name} uses {word}"
