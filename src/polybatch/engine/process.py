"""Which process an engine belongs to: fork() copies its objects and locks, but not its thread."""

from __future__ import annotations

import os

from polybatch.errors import EngineClosedError


class OwnerProcess:
    """The process that made this object. Ask before taking any lock: a forked copy may be locked for ever."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise EngineClosedError in any other process."""
        if not self.is_current:
            raise EngineClosedError(
                f"this engine belongs to process {self._pid} and does not run in process {os.getpid()}, "
                "a fork of it; open an engine in each process"
            )
