"""Whether a request is let in: the bound on the queue, and no more once the engine drains."""

from __future__ import annotations

import threading

from polybatch.engine.checks import as_float, as_int
from polybatch.errors import EngineDrainingError, QueueFullError


class Admission:
    """Counts the requests that an engine holds, queued and running. Every method may be called from any thread.

    slots: how many can run at once. max_queue: how many more may wait; None is no bound.
    """

    def __init__(self, slots: int, max_queue: int | None = None) -> None:
        self._max_queue = None if max_queue is None else as_int("max_queue", max_queue, 0)
        self._slots = slots
        self._held = 0
        self._draining = False
        self._left = threading.Condition()

    def enter(self, count: int) -> None:
        """Let ``count`` requests in together. Raises EngineDrainingError or QueueFullError, and then lets none in."""
        with self._left:
            if self._draining:
                raise EngineDrainingError("the engine finishes what it has and takes no more requests")
            if self._max_queue is not None and self._held + count > self._slots + self._max_queue:
                waiting = max(0, self._held - self._slots)
                raise QueueFullError(
                    f"{count} more requests on {waiting} that wait, and max_queue={self._max_queue}; try again later"
                )
            self._held += count

    def leave(self) -> None:
        """A request has ended."""
        with self._left:
            self._held -= 1
            if self._draining:
                self._left.notify_all()

    def close(self) -> None:
        """The engine is gone, and all requests with it: nobody need wait any longer."""
        with self._left:
            self._held = 0
            self._left.notify_all()

    def drain(self, timeout_s: float | None) -> bool:
        """Let no more in, and wait until all have left; False when some are still there after ``timeout_s``."""
        seconds = None if timeout_s is None else as_float("timeout_s", timeout_s)
        with self._left:
            self._draining = True
            return self._left.wait_for(lambda: self._held <= 0, seconds)
