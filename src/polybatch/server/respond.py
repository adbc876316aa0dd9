"""Reading an answer to its end, for as long as its client is there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from starlette.responses import Response

from polybatch.engine import Completion, Delta
from polybatch.errors import EngineClosedError
from polybatch.server import errors
from polybatch.server.answer import Answer, Event
from polybatch.server.json_text import dumps

_LOG = logging.getLogger("polybatch.server")
_DONE = b"data: [DONE]\n\n"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientLeftError(Exception):
    """The client closed its connection; nobody reads what is sent now."""


class StreamWriter(Protocol):
    """Turns events into the bytes of ``data:`` lines; b"" where there is nothing to say yet."""

    def delta(self, choice: int, delta: Delta) -> bytes: ...
    def end(self, choice: int, completion: Completion) -> bytes: ...
    def close(self) -> bytes: ...


@contextlib.asynccontextmanager
async def watching(receive: Receive, answer: Answer) -> AsyncIterator[None]:
    """Abort the answer when the client leaves, and when the block is left early."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        answer.leave()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        answer.leave()


async def completions(receive: Receive, answer: Answer, choices: int, timeout_s: float | None) -> list[Completion]:
    """Every choice, complete. Raises ApiError when one failed or timed out, ClientLeftError when the client left."""
    ended: dict[int, Completion] = {}
    async with watching(receive, answer):
        while not answer.done:
            for choice, event in await answer.events():
                if isinstance(event, Completion):
                    ended[choice] = _complete(event, timeout_s)
                elif isinstance(event, BaseException):
                    raise _failure(event)
        if answer.left:
            raise ClientLeftError
    return [ended[choice] for choice in range(choices)]


def _complete(completion: Completion, timeout_s: float | None) -> Completion:
    if completion.finish_reason == "timeout":
        raise errors.timed_out(timeout_s or 0.0)
    return completion


def _failure(error: BaseException) -> errors.ApiError:
    if isinstance(error, EngineClosedError):
        return errors.unavailable("this server has shut down before the request was done", "shutting_down", 5)
    _LOG.error("a request failed in the engine", exc_info=error)
    return errors.failed()


class EventStream(Response):
    """Server-sent events. What goes wrong before the first token is an HTTP error; later it is an event."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, writer: StreamWriter, timeout_s: float | None) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answer = answer
        self._writer = writer
        self._timeout_s = timeout_s
        self._begun = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        answer = self._answer
        async with watching(receive, answer):
            try:
                while not answer.done and not answer.left:
                    await self._send(send, b"".join([self._bytes(*item) for item in await answer.events()]))
                await self._send(send, self._writer.close() + _DONE, more=False)
            except errors.ApiError as error:
                if not self._begun:
                    await error.response()(scope, receive, send)
                else:
                    await self._send(send, b"data: " + dumps(error.body) + b"\n\n" + _DONE, more=False)
            except OSError:  # the connection broke while it was written to
                pass

    def _bytes(self, choice: int, event: Event) -> bytes:
        if type(event) is Delta:
            return b"" if event.finish_reason == "timeout" else self._writer.delta(choice, event)
        if isinstance(event, Completion):
            return self._writer.end(choice, _complete(event, self._timeout_s))
        assert isinstance(event, BaseException)
        raise _failure(event)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        elif not body:
            return
        await send({"type": "http.response.body", "body": body, "more_body": more})
