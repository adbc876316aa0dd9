"""The engine's thread: takes commands between steps and runs steps while there is work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from polybatch.engine.admission import Admission
from polybatch.engine.core import EngineCore
from polybatch.engine.process import OwnerProcess
from polybatch.engine.request import Request
from polybatch.errors import EngineClosedError

_Command = Callable[[], None]


class Worker:
    """Owns the thread that owns the core. Every method may be called from any thread.

    ``abort`` takes no lock (a SimpleQueue may be used inside ``__del__``), so a dropped handle can call it.
    """

    def __init__(self, core: EngineCore, on_exit: Callable[[], None], admission: Admission) -> None:
        self._core = core
        self._admission = admission
        self._on_exit = on_exit
        self._owner = OwnerProcess()
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed: EngineClosedError | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="polybatch-engine", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests next to each other. Raises EngineClosedError, EngineDrainingError or QueueFullError."""
        self._owner.check()
        with self._lock:
            if self._closed is not None:
                raise EngineClosedError(str(self._closed)) from self._closed.__cause__
            self._admission.enter(len(requests))
            self._inbox.put(lambda: self._core.add(requests))

    def abort(self, request_id: int) -> None:
        """Ask for a request to end; takes effect before the next step."""
        self._inbox.put(lambda: self._core.abort(request_id))

    def close(self) -> None:
        """Finish the current step, fail what is pending with EngineClosedError and join the thread.

        In a fork there is no thread to stop, and the session is the parent's: nothing happens.
        """
        if not self._owner.is_current:
            return
        with self._lock:
            if self._closed is None:
                self._closed = EngineClosedError("the engine is closed; create a new Engine to run more requests")
                self._inbox.put(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            busy = False
            while not self._stopping:
                self._take_commands(wait=not busy)
                busy = not self._stopping and self._core.step()
        except BaseException as error:  # a bug in the engine: callers must hear of it rather than wait for ever
            failure = error
        finally:
            self._shut_down(failure)

    def _take_commands(self, *, wait: bool) -> None:
        """Run every queued command; with ``wait``, sleep until there is one."""
        while not self._stopping and (wait or not self._inbox.empty()):  # nobody else takes from it
            self._inbox.get()()
            wait = False

    def _shut_down(self, failure: BaseException | None) -> None:
        with self._lock:
            if failure is not None:
                self._closed = EngineClosedError(f"the engine stopped on an internal error: {failure!r}")
                self._closed.__cause__ = failure
            closed = self._closed or EngineClosedError("the engine is closed")
        try:
            while not self._inbox.empty():  # nothing is submitted once _closed is set; aborts may still come
                with contextlib.suppress(BaseException):  # the core has told the requests of a failed command
                    self._inbox.get()()
            self._core.fail_all(closed)
        finally:
            self._admission.close()
            self._on_exit()
