"""The driver's end of one worker: a subprocess that is stopped whenever it is not being asked something."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


class PeerError(Exception):
    """The peer could not do what it was asked; the message belongs into the report."""


class PeerProcess:
    """One worker. Between two requests its whole process group is stopped (SIGSTOP), so that no thread pool spins."""

    def __init__(self, python: Path, module: str, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(python), "-u", "-m", module],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._buffer = b""

    def ask(self, op: str, timeout: float = 900.0, **arguments: Any) -> dict[str, Any]:
        """One request and its answer; PeerError when the worker says no, dies or takes over ``timeout`` seconds."""
        request = json.dumps({"op": op, **arguments}) + "\n"
        self._signal(signal.SIGCONT)
        try:
            self._stdin.write(request.encode())
            self._stdin.flush()
            reply: dict[str, Any] = json.loads(self._read_line(op, timeout))
        except BrokenPipeError as error:
            raise PeerError(self._death(op)) from error
        finally:
            self._signal(signal.SIGSTOP)
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ask the worker to end; kill it when it does not."""
        with contextlib.suppress(PeerError):
            self.ask("close", timeout=30.0)
        self._signal(signal.SIGKILL)
        self._process.wait()

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def _read_line(self, op: str, timeout: float) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                self._signal(signal.SIGKILL)
                raise PeerError(f"no answer to {op} within {timeout:.0f} s")
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise PeerError(self._death(op))
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death(self, op: str) -> str:
        code = self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"died with exit code {code} during {op}: {' / '.join(lines[-2:])[-300:]} (log {self._log})"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
