"""What the driver and the workers say to each other: JSON lines, and the interface that a worker implements.

A worker is ``python -m bench.peers.NAME_worker`` in the peer's own virtual environment, so this file needs nothing but
the standard library. It reads one request a line from standard input and answers each with one line:

    {"op": "open", "config": {...}}                      -> {"about": {...}}
    {"op": "prepare", "cell": {"batch": 8, "drafted": 0}}  -> {}
    {"op": "step", "warmup": 2, "count": 5}               -> {"ms": [...]}
    {"op": "prefill", "tokens": 512, "count": 3}          -> {"ms": [...]}
    {"op": "generate", "load": {...}}                     -> {"seconds": 1.0, "output_tokens": 4096, "first": [...]}
    {"op": "close"}                                       -> {}

A request that fails is answered with {"error": "...", "unsupported": bool}.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class UnsupportedError(Exception):
    """The peer cannot do this work; the message says why and becomes part of the report."""


@dataclass(frozen=True)
class Config:
    """How a worker opens a model.

    model: Hugging Face directory (bfloat16 weights). gguf: the same weights for llama.cpp, in ``precision``.
    precision: "bf16", "fp32" or "int8" (int8 weights). cache: folder for what the peer derives from the model.
    slots x ctx_len: the KV cache. position: where every live sequence of a decode cell is.
    task: "steps" (decode cells and prefill) or "generate" (end to end).
    """

    model: str
    gguf: str
    cache: str
    precision: str
    slots: int
    ctx_len: int
    position: int
    threads: int
    task: str


@dataclass(frozen=True, order=True)
class Cell:
    """One decode step: ``batch`` sequences with ``drafted`` + 1 tokens each, logits for every token."""

    batch: int
    drafted: int = 0

    @property
    def name(self) -> str:
        return f"b={self.batch}" + (f" K={self.drafted}" if self.drafted else "")


@dataclass(frozen=True)
class Load:
    """``requests`` prompts of ``prompt_tokens``, each continued greedily by exactly ``new_tokens``."""

    requests: int
    prompt_tokens: int
    new_tokens: int

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """The same token ids for every peer."""
        span = min(vocab_size, 30000) - 100
        return [
            [100 + (7919 * request + 104729 * token) % span for token in range(self.prompt_tokens)]
            for request in range(self.requests)
        ]


class Peer(ABC):
    """One engine with one open model. ``about`` describes it: version and settings."""

    about: dict[str, str]

    @abstractmethod
    def __init__(self, config: Config) -> None:
        """Open the model."""

    def prepare(self, cell: Cell) -> None:
        """Bring ``cell.batch`` sequences to the configured position; the steps that follow are of this cell."""
        raise UnsupportedError("has no decode step of its own")

    def step(self) -> None:
        """One decode step that returns the logits of every live sequence; timed."""
        raise UnsupportedError("has no decode step of its own")

    def rewind(self) -> None:  # noqa: B027  # many have nothing to undo
        """Undo what ``step`` appended, where the engine can; not timed."""

    def prefill(self, tokens: int) -> None:
        """One prompt of ``tokens`` from an empty sequence to its last logits; timed."""
        raise UnsupportedError("has no prefill of its own")

    def end_prefill(self) -> None:  # noqa: B027
        """Forget that prompt; not timed."""

    def generate(self, load: Load) -> list[list[int]]:
        """Run the load and return the new tokens of each request; timed."""
        raise UnsupportedError("has no end-to-end run")


def timed_ms(work: Callable[[], object]) -> float:
    """Milliseconds that one call takes."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


class Server:
    """Answers requests with one peer."""

    OPS: ClassVar[tuple[str, ...]] = ("open", "prepare", "step", "prefill", "generate", "close")

    def __init__(self, peer_type: type[Peer]) -> None:
        self._type = peer_type
        self._peer: Peer | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request.pop("op")
        if op not in self.OPS:
            raise ValueError(f"unknown op {op!r}; this worker answers {', '.join(self.OPS)}")
        result: dict[str, Any] = getattr(self, f"_{op}")(**request)
        return result

    @property
    def _open_peer(self) -> Peer:
        if self._peer is None:
            raise ValueError("no model is open; send the op 'open' first")
        return self._peer

    def _open(self, config: dict[str, Any]) -> dict[str, Any]:
        self._peer = self._type(Config(**config))
        return {"about": self._peer.about}

    def _prepare(self, cell: dict[str, int]) -> dict[str, Any]:
        self._open_peer.prepare(Cell(**cell))
        return {}

    def _step(self, warmup: int, count: int) -> dict[str, Any]:
        peer, kept = self._open_peer, []
        for _ in range(warmup + count):
            kept.append(timed_ms(peer.step))
            peer.rewind()
        return {"ms": kept[warmup:]}

    def _prefill(self, tokens: int, count: int) -> dict[str, Any]:
        peer, kept = self._open_peer, []
        for _ in range(count):
            kept.append(timed_ms(lambda: peer.prefill(tokens)))
            peer.end_prefill()
        return {"ms": kept}

    def _generate(self, load: dict[str, int]) -> dict[str, Any]:
        start = time.perf_counter()
        answers = self._open_peer.generate(Load(**load))
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "output_tokens": sum(map(len, answers)), "first": list(answers[0])}

    def _close(self) -> dict[str, Any]:
        self._peer = None
        return {}


def serve(peer_type: type[Peer]) -> None:
    """The main loop of a worker; whatever the engine prints goes to standard error."""
    _be_expendable()
    replies = _claim_stdout()
    server = Server(peer_type)
    for line in sys.stdin:
        request = json.loads(line)
        last = request["op"] == "close"
        try:
            reply = server.answer(request)
        except UnsupportedError as error:
            reply = {"error": str(error), "unsupported": True}
        except Exception as error:  # the driver reports whatever an engine raises
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"[:500], "unsupported": False}
        print(json.dumps(reply), file=replies, flush=True)
        if last:
            os._exit(0)  # some engines hang or crash in their own shutdown


def _be_expendable() -> None:
    """Die with the driver, which a stopped worker would outlive with its gigabytes, and first when memory runs out."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _claim_stdout() -> TextIO:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies
