"""Many clients at once: well-behaved ones, ones that leave midway, and ones that send nonsense."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

BAD_BODIES: tuple[Any, ...] = (
    {"prompt": "x", "temperature": 9},
    {"prompt": []},
    {"prompt": "x", "stop": [""]},
    {"prompt": "x" * 5000},
    {"prompt": [10**7]},
    {"unknown": 1},
    "{",
)


@dataclass(frozen=True)
class Ask:
    """kind: "whole", "stream", "leave" (after some chunks, or at once) or "bad"."""

    kind: str
    prompt: tuple[int, ...]
    max_tokens: int
    chunks: int = 0


@dataclass
class Report:
    """statuses: of all responses. wrong: asks whose answer was not the solo one. progress: called per finished ask."""

    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    compared: int = 0
    wrong: list[Ask] = field(default_factory=list)


def mix(count: int, *, tokens: int, longest_prompt: int, longest_answer: int, seed: int = 0) -> list[Ask]:
    """Random asks: 20% leave midway, 5% are bad."""
    rng = random.Random(seed)
    asks = []
    for _ in range(count):
        prompt = tuple(rng.randrange(tokens) for _ in range(rng.randint(1, longest_prompt)))
        kind = rng.choices(["leave", "bad", "stream", "whole"], [20, 5, 40, 35])[0]
        asks.append(Ask(kind, prompt, rng.randint(1, longest_answer), rng.randint(0, 4)))
    return asks


async def run(
    port: int,
    asks: Sequence[Ask],
    solo: Callable[[Ask], str],
    *,
    clients: int = 64,
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Send all asks, ``clients`` at a time; each answer is compared with ``solo(ask)``."""
    report, waiting, done = Report(), iter(asks), 0

    async def client() -> None:
        nonlocal done
        for ask in waiting:
            await _one(port, ask, solo, report)
            done += 1
            progress(done)

    await asyncio.gather(*(client() for _ in range(clients)))
    return report


async def _one(port: int, ask: Ask, solo: Callable[[Ask], str], report: Report) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_request(ask))
        if ask.kind == "leave":
            report.left += 1
            for _ in range(ask.chunks):
                await reader.readline()
            return
        status, body = await _response(reader)
    finally:
        writer.close()
    report.statuses[status] += 1
    if ask.kind in ("whole", "stream"):
        report.compared += 1
        text = _text(body, ask.kind == "stream") if status == 200 else None
        if text != solo(ask):
            report.wrong.append(ask)


def _request(ask: Ask) -> bytes:
    if ask.kind == "bad":
        body = BAD_BODIES[len(ask.prompt) % len(BAD_BODIES)]
    else:
        body = {"prompt": list(ask.prompt), "max_tokens": ask.max_tokens, "temperature": 0}
        body |= {"stream": ask.kind == "stream" or (ask.kind == "leave" and ask.chunks % 2 == 0)}
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode() + data


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.read(-1)
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    return int(head.split(b" ", 2)[1]), body


def _unchunked(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        data = rest[length + 2 :]
    return b"".join(parts)


def _text(body: bytes, stream: bool) -> str:
    if not stream:
        return str(json.loads(body)["choices"][0]["text"])
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])
