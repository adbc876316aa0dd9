"""The command as a process: start-up, exit codes, streams."""

import re
import signal
import subprocess
import sys
import time
import warnings
from importlib.metadata import version

import pytest
import typer

from polybatch.cli.group import one_line_warnings

COMMAND = [sys.executable, "-c", "from polybatch.cli import main; main()"]


def execute(*args, **options):
    command = [*COMMAND, *[str(arg) for arg in args]]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, **options)


def test_version(run):
    assert run("--version").stdout == f"polybatch {version('polybatch')}\n"


def test_without_a_command_it_shows_the_help(run):
    result = run()
    assert result.exit_code == 0
    for command in ("compile", "inspect", "generate", "serve", "chat"):
        assert re.search(rf"^  {command} ", result.stdout, re.MULTILINE)


def test_help_and_option_errors_import_neither_torch_nor_transformers():
    code = (
        "import sys\n"
        "from polybatch.cli import app\n"
        "for args in (['--help'], ['compile', '--help'], ['compile', 'm', '--batch-size', '0']):\n"
        "    app(args, standalone_mode=False)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_unknown_command_is_one_line(run):
    result = run("frobnicate")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback(run, monkeypatch, program_dir):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("polybatch.cli.report.report_program", fail)
    assert isinstance(run("inspect", program_dir).exception, RuntimeError)


def test_warnings_are_one_line_each_and_shown_once(capsys):
    with one_line_warnings():
        for _ in range(2):
            warnings.warn("look\n   here", UserWarning, stacklevel=1)
        warnings.warn("for developers", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: look here\n"


def test_a_user_error_of_the_process_is_exit_code_2_and_one_line(tmp_path):
    result = execute("generate", tmp_path / "nothing", "-p", "x")
    assert result.returncode == 2
    assert result.stdout == ""
    assert re.fullmatch(r"error: there is no program at .*\n", result.stderr)


def test_a_run_of_the_process_writes_answers_to_stdout_and_no_chatter(program_dir):
    result = execute("generate", program_dir, "-p", "Hello", "-p", "you", "--max-tokens", "3", env=None)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("> Hello\n")
    allowed = re.compile(r"loading the program|generating|specialization |─+|(prefill|decode) b=|\d+ prompt tokens|$")
    assert [line for line in result.stderr.splitlines() if not allowed.match(line)] == []


def test_ctrl_c_ends_the_process_with_130(program_dir):
    args = ["generate", str(program_dir), *["-p", "Hello"] * 400, "--max-tokens", "250"]
    with subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line == "generating\n":
                break
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=30)
    assert process.returncode == 130
    assert rest == "interrupted\n"


def test_a_reader_that_leaves_is_no_error_message(program_dir):
    with subprocess.Popen(
        [*COMMAND, "inspect", str(program_dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("text", ["1.5 KiB", "0 B", "2.0 GiB"])
def test_sizes_are_readable(text):
    from polybatch.cli.tables import format_bytes

    number, unit = text.split()
    factor = {"B": 1, "KiB": 1 << 10, "GiB": 1 << 30}[unit]
    assert format_bytes(float(number) * factor) == text


def test_lists_and_ints_are_told_apart():
    from polybatch.cli.options import parse_int_or_list

    assert parse_int_or_list("--x", "4") == 4
    assert parse_int_or_list("--x", "1,4") == [1, 4]
    with pytest.raises(typer.BadParameter, match="1,2,4"):
        parse_int_or_list("--x", "four")
