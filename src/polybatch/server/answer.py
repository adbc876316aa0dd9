"""From the engine's thread to the event loop: what the engine says about the choices of one HTTP request."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from polybatch.engine import Completion, Delta
from polybatch.server.metrics.latency import Latencies

Event = Delta | Completion | BaseException


class Mailbox:
    """Carries events to the loop. Those that come while it has not yet looked share one wake-up.

    A step of 64 sequences says 64 things; waking the loop for each would cost more than everything else here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[tuple[Answer, int, Event]] = deque()
        self._woken = False

    def post(self, answer: Answer, choice: int, event: Event) -> None:
        """Called on the engine's thread."""
        self._events.append((answer, choice, event))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody listens any more
                self._events.clear()

    def _deliver(self) -> None:
        self._woken = False  # before the first look, so that what comes later wakes the loop again
        while self._events:
            answer, choice, event = self._events.popleft()
            answer.put(choice, event)


class Answer:
    """The choices of one request while they are made; belongs to the event loop, but for ``sink``.

    streams: whether anybody reads single deltas; otherwise only the ends of choices are passed on.
    """

    def __init__(self, mailbox: Mailbox, latencies: Latencies, choices: int, *, streams: bool) -> None:
        self._mailbox = mailbox
        self._latencies = latencies
        self._streams = streams
        self._arrived = time.perf_counter()
        self._events: list[tuple[int, Event]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._pending = choices
        self._abort: Callable[[], None] = lambda: None
        self._on_end: Callable[[], object] = lambda: None
        self.left = False

    @property
    def done(self) -> bool:
        """Whether every choice has ended and its end has been read."""
        return self._pending == 0 and not self._events

    def started(self, abort: Callable[[], None]) -> None:
        """The engine has the request; ``abort`` ends all of its choices."""
        self._abort = abort

    def on_end(self, call: Callable[[], object]) -> None:
        """Call this once every choice has ended, which may be now."""
        self._on_end = call
        if self._pending == 0:
            call()

    def sink(self, choice: int) -> Callable[[Event], None]:
        """Where the engine puts the events of one choice, on its own thread."""
        mailbox, streams, clock = self._mailbox, self._streams, self._latencies.clock(self._arrived)

        def deliver(event: Event) -> None:
            if type(event) is Delta:
                if event.token_ids:
                    clock.tokens(len(event.token_ids))
                if not streams:
                    return
            elif type(event) is Completion:
                clock.end(event)
            mailbox.post(self, choice, event)

        return deliver

    def put(self, choice: int, event: Event) -> None:
        """An event has reached the loop."""
        self._events.append((choice, event))
        if type(event) is not Delta:
            self._pending -= 1
            if self._pending == 0:
                self._on_end()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def events(self) -> Sequence[tuple[int, Event]]:
        """What has come since the last call, waiting for at least one event. For one reader."""
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._events = self._events, []
        return events

    def leave(self) -> None:
        """Nobody wants the rest."""
        self.left = True
        if self._pending:
            self._abort()
