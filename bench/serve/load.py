"""Sends a schedule of requests to a server, or all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.peers.protocol import Load
from bench.serve.client import Ask, Outcome, complete
from bench.serve.served import MODEL

VOCABULARY = 30000


def asks(load: Load, *, stream: bool = True) -> list[Ask]:
    """The end-to-end work that all peers are measured with, as requests."""
    return [Ask(prompt, load.new_tokens, stream) for prompt in load.prompts(VOCABULARY)]


def send(port: int, requests: Sequence[Ask], at: Sequence[float]) -> list[Outcome]:
    """Each request at its time, in seconds from now; returns when all have been answered."""

    async def one(request: Ask, delay: float) -> Outcome:
        await asyncio.sleep(delay)
        return await complete("127.0.0.1", port, MODEL, request)

    async def everything() -> list[Outcome]:
        return await asyncio.gather(*(one(request, delay) for request, delay in zip(requests, at, strict=True)))

    return asyncio.run(everything())


def send_at_once(port: int, requests: Sequence[Ask]) -> list[Outcome]:
    """Saturation: the queue is never empty."""
    return send(port, requests, [0.0] * len(requests))
