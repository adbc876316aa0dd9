"""Runs ``qaic-compile``, which takes minutes to hours, and keeps its log."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from polybatch.errors import CompilerError
from polybatch.targets.qaic.names import QPC_BINARY, QPC_DIR

_SHOWN_LINES = 12
_GRACE_SECONDS = 5.0


def run_compiler(argv: Sequence[str], folder: Path, log: Path) -> None:
    """Run the compiler in ``folder``, where it writes ``qpc/``; its output goes to ``log`` as it comes.

    Raises CompilerError with the exit code and the last lines; then, and on an interrupt, there is no ``qpc/``, and no
    process of the compiler is left.
    """
    shutil.rmtree(folder / QPC_DIR, ignore_errors=True)
    errors = log.with_suffix(".stderr")
    try:
        code = _run(argv, folder, log, errors)
        said = _tail(errors) or _tail(log)
        _append(log, errors)
        if code != 0:
            raise CompilerError(f"qaic-compile {_ending(code)}: {said or 'it said nothing'} (log: {log})")
        binary = folder / QPC_DIR / QPC_BINARY
        if not binary.is_file() or binary.stat().st_size == 0:
            raise CompilerError(
                f"qaic-compile ended without an error and without writing {QPC_DIR}/{QPC_BINARY}"
                f"{': ' + said if said else ''} (log: {log})"
            )
    except BaseException:
        shutil.rmtree(folder / QPC_DIR, ignore_errors=True)
        raise
    finally:
        errors.unlink(missing_ok=True)


def _run(argv: Sequence[str], folder: Path, log: Path, errors: Path) -> int:
    with log.open("wb") as out, errors.open("wb") as err:
        try:
            # A session of its own: Ctrl-C reaches us alone, and we end all of the compiler's processes.
            process = subprocess.Popen(
                argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            raise CompilerError(f"cannot run {argv[0]}: {error.strerror}; reinstall the SDK") from error
        try:
            return process.wait()
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the compiler and what it has started."""
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"failed with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}" + (", perhaps for lack of memory" if -code == signal.SIGKILL else "")


def _tail(path: Path) -> str:
    """The last lines with anything in them."""
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_SHOWN_LINES:])


def _append(log: Path, errors: Path) -> None:
    with log.open("ab") as out, errors.open("rb") as err:
        shutil.copyfileobj(err, out)
