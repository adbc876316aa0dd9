"""Running the application under uvicorn, with a shutdown that lets requests finish."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from polybatch.server.app import create_app
from polybatch.server.config import ServerConfig
from polybatch.server.metrics.responses import CountResponses
from polybatch.server.model import ServedModel
from polybatch.server.protocol import BoundedHttp
from polybatch.server.service import Service

_SLOW_READERS_S = 5  # for what is left to be sent once the engine is done


class DrainingServer(uvicorn.Server):
    """Drains before it stops listening: /health then says so, and late requests get a 503 instead of no connection."""

    def __init__(self, service: Service, on_listening: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                CountResponses(create_app(service), service.responses),  # outside: answers to our own bugs count
                http=BoundedHttp,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_SLOW_READERS_S,
            )
        )
        service.on_failure = self.stop
        self._on_listening = on_listening
        self._service = service
        self._draining: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._on_listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second stops at once. The process then ends with 0, not with the signal."""
        if self._draining is None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._drain)
        else:
            self.should_exit = self.force_exit = True

    def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._service.drain())
            self._draining.add_done_callback(lambda _: self.stop())

    def stop(self) -> None:
        self.should_exit = True


def serve(
    config: ServerConfig,
    load: Callable[[], ServedModel],
    *,
    host: str,
    port: int,
    on_listening: Callable[[str], None] = lambda url: None,
) -> None:
    """Listen, load, and answer until SIGTERM or Ctrl-C. Raises OSError for a taken port, and what loading raised.

    on_listening: called with the URL once connections are taken and signals are handled; port 0 takes any free one.
    """
    service = Service(config, load)
    with listen(host, port) as listener:
        DrainingServer(service, lambda: on_listening(url_of(listener))).run(sockets=[listener])
    if service.failure is not None:
        raise service.failure


def url_of(listener: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
