"""``polybatch serve`` as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

MODEL = "benched"
CTX_LEN = 512
"""Of every program that is served."""


class Served:
    """A server of one program on a free port; use it as a context manager.

    steps: "live", or one of those of ``bench.serve.padded``.
    """

    def __init__(self, program: Path, threads: int, *, steps: str = "live") -> None:
        whole = ["-m", "bench.serve.padded", steps]
        code = ["-c", "from polybatch.cli import main; main()"] if steps == "live" else whole
        command = [sys.executable, *code, "serve", str(program)]
        command += ["--port", "0", "--model-name", MODEL, "--threads", str(threads), "--no-prefix-cache"]
        self._process = subprocess.Popen([*command, "--max-queue", "100000"], stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        found = re.search(r":(\d+)$", line.strip())
        if found is None:
            raise RuntimeError(f"the server did not start: {line}{self._process.stderr.read()}")
        self.port = int(found[1])

    def __enter__(self) -> Served:
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError("the server ended while it loaded")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health") as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError:
            return False
