"""A lean HTTP client of streamed completions: it shares the machine with the server that it measures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_DATA = b"data: "
_DONE = b"data: [DONE]"


@dataclass(frozen=True)
class Ask:
    """One request: token ids, and how many tokens to generate whatever they are."""

    prompt: Sequence[int]
    new_tokens: int
    stream: bool = True

    def body(self, model: str) -> bytes:
        fields = {"model": model, "prompt": list(self.prompt), "max_tokens": self.new_tokens, "temperature": 0}
        return json.dumps(fields | {"ignore_eos": True, "stream": self.stream}).encode()


@dataclass
class Outcome:
    """What came back. Times are ``time.perf_counter`` seconds; arrivals: of each read with tokens in it."""

    sent: float
    status: int = 0
    arrivals: list[float] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    ended: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def first_s(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0] - self.sent

    def gaps(self) -> list[float]:
        """Seconds between tokens; those that came in one read share the time since the one before."""
        gaps = []
        for before, after, count in zip(self.arrivals, self.arrivals[1:], self.chunks[1:], strict=False):
            gaps += [(after - before) / count] * count
        return gaps


async def complete(host: str, port: int, model: str, ask: Ask) -> Outcome:
    """Send one request on a connection of its own and read the answer to its end."""
    body = ask.body(model)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    outcome = Outcome(time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode() + body)
        await _read(reader, outcome)
    finally:
        writer.close()
    outcome.ended = time.perf_counter()
    return outcome


async def _read(reader: asyncio.StreamReader, outcome: Outcome) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    outcome.status = int(head.split(b" ", 2)[1])
    while data := await reader.read(1 << 16):
        if count := data.count(_DATA) - data.count(_DONE):
            outcome.arrivals.append(time.perf_counter())
            outcome.chunks.append(count)
