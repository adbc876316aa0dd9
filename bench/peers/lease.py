"""Keeps several benchmarks on one machine out of each other's way, with an advisory lock on a file."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

LONGEST_SECONDS = 45.0


class Lease:
    """A lock held alone while something is timed, and shared with others during preparations.

    Without a path it does nothing. Waiting for the lock can take minutes where others use it, so it is kept over
    several measurements, but given up for a moment at the first opportunity after ``LONGEST_SECONDS``.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._alone = False
        self._since = 0.0

    def alone(self) -> None:
        """Hold the lock exclusively."""
        if not self._alone or time.monotonic() - self._since > LONGEST_SECONDS:
            self._take(fcntl.LOCK_EX)

    def shared(self) -> None:
        """Hold the lock together with others that share it."""
        if self._alone or self._file is None:
            self._take(fcntl.LOCK_SH)

    def release(self) -> None:
        """Hold nothing."""
        if self._file is not None:
            self._file.close()
        self._file, self._alone = None, False

    def _take(self, kind: int) -> None:
        self.release()
        if self._path is None:
            return
        self._file = self._path.open("ab")
        fcntl.flock(self._file, kind)
        self._alone, self._since = kind == fcntl.LOCK_EX, time.monotonic()
