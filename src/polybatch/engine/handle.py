"""The caller's end of a request: deltas, the result, and leaving early; for threads and for asyncio.

A handle that is closed, or dropped before the end, aborts its request, as closing a generator would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue

from polybatch.engine.process import OwnerProcess
from polybatch.engine.request import Completion, Delta, Event
from polybatch.errors import EngineClosedError, RequestFailedError


class _Outcome:
    """What both kinds of handle remember: the end of the request, once it is known."""

    def __init__(self, request_id: int, prompt_token_ids: tuple[int, ...], abort: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self._abort = abort
        self._owner = OwnerProcess()
        self._end: Completion | BaseException | None = None
        self._left = False

    def abort(self) -> None:
        """End the request early; what it has so far is still delivered, with finish_reason "abort"."""
        if self._end is None:
            self._abort(self.request_id)

    def _leave(self) -> None:
        self._left = True
        if self._owner.is_current:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_end", self) is None and self._owner.is_current:
            self._abort(self.request_id)

    def _take(self, event: Event) -> Delta | None:
        """The delta, or None at the end. Raises what ended the request if that was an error."""
        if isinstance(event, Delta):
            return event
        self._end = event
        self._completion()
        return None

    def _completion(self) -> Completion:
        end = self._end
        if isinstance(end, Completion):
            return end
        if isinstance(end, EngineClosedError):
            raise EngineClosedError(f"request {self.request_id} did not finish: {end}") from end
        raise RequestFailedError(f"request {self.request_id} failed: {end!r}") from end


class RequestHandle(_Outcome):
    """An iterator of deltas, for use from one thread at a time."""

    def __init__(self, request_id: int, prompt_token_ids: tuple[int, ...], abort: Callable[[int], None]) -> None:
        super().__init__(request_id, prompt_token_ids, abort)
        self._events: SimpleQueue[Event] = SimpleQueue()

    @property
    def sink(self) -> Callable[[Event], None]:
        """Where the engine puts events; holds no reference to the handle."""
        return self._events.put

    def __iter__(self) -> RequestHandle:
        return self

    def __next__(self) -> Delta:
        """The next delta; blocks. Raises EngineClosedError, or RequestFailedError from the error of a failed step."""
        if self._left or self._end is not None:
            raise StopIteration
        delta = self._take(self._next_event())
        if delta is None:
            raise StopIteration
        return delta

    def result(self) -> Completion:
        """Wait for the end and return all of it. Raises as ``__next__`` does."""
        while self._end is None:
            self._take(self._next_event())
        return self._completion()

    def close(self) -> None:
        """Leave: abort the request and end the iteration."""
        self._leave()

    def _next_event(self) -> Event:
        self._owner.check()  # no event reaches a fork
        return self._events.get()


class AsyncRequestHandle(_Outcome):
    """An async iterator of deltas; belongs to the event loop that was running when it was made.

    Cancelling a task that waits on it aborts the request.
    """

    def __init__(self, request_id: int, prompt_token_ids: tuple[int, ...], abort: Callable[[int], None]) -> None:
        super().__init__(request_id, prompt_token_ids, abort)
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    @property
    def sink(self) -> Callable[[Event], None]:
        """Where the engine puts events, from its own thread; a closed event loop aborts the request."""
        loop, put, abort, request_id = self._loop, self._events.put_nowait, self._abort, self.request_id

        def deliver(event: Event) -> None:
            try:
                loop.call_soon_threadsafe(put, event)
            except RuntimeError:  # the loop is closed, so nobody listens
                abort(request_id)

        return deliver

    def __aiter__(self) -> AsyncRequestHandle:
        return self

    async def __anext__(self) -> Delta:
        """The next delta. Raises EngineClosedError, or RequestFailedError from the error of a failed step."""
        if self._left or self._end is not None:
            raise StopAsyncIteration
        delta = self._take(await self._next_event())
        if delta is None:
            raise StopAsyncIteration
        return delta

    async def result(self) -> Completion:
        """Wait for the end and return all of it. Raises as ``__anext__`` does."""
        while self._end is None:
            self._take(await self._next_event())
        return self._completion()

    async def aclose(self) -> None:
        """Leave: abort the request and end the iteration."""
        self._leave()

    async def _next_event(self) -> Event:
        self._owner.check()  # no event reaches a fork
        try:
            return await self._events.get()
        except asyncio.CancelledError:
            self._leave()
            raise
