"""An advisory lock on a file, for machines on which several benchmarks run."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path | None, *, exclusive: bool) -> Iterator[None]:
    """Hold the lock, alone while something is timed and shared during preparations; without a path, nothing."""
    if path is None:
        yield
        return
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
