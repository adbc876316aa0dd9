"""Responses counted by status."""

from __future__ import annotations

from collections import Counter
from typing import Any

from polybatch.server.respond import Message, Receive, Send


class CountResponses:
    """Middleware around all others."""

    def __init__(self, app: Any, counts: Counter[int]) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts[message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)
