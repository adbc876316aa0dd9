"""What HTTP and asyncio cost: the same work through ``Engine`` in one process, and through a server."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.peers.protocol import Load
from bench.serve.load import VOCABULARY, asks, send_at_once
from bench.serve.served import Served
from polybatch import Engine, Program, SamplingParams

WAYS = ("engine", "whole", "stream")


@dataclass(frozen=True)
class Overhead:
    """Seconds of each round, by way: through the engine, answers in one piece, every answer streamed."""

    seconds: dict[str, list[float]]

    def cost(self, way: str) -> float:
        """Median seconds over those of the engine, less one."""
        return statistics.median(self.seconds[way]) / statistics.median(self.seconds["engine"]) - 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(program: Path, load: Load, rounds: int, threads: int) -> Overhead:
    """The ways take turns, so that a slow minute of the machine hits all of them."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    params = SamplingParams(load.new_tokens, ignore_eos=True)
    with (
        Served(program, threads) as served,
        Engine(Program.load(program), threads=threads, prefix_cache=False) as engine,
    ):
        for turn in range(rounds + 1):
            for way in WAYS:
                started = time.perf_counter()
                if way == "engine":
                    engine.generate(load.prompts(VOCABULARY), params)
                else:
                    outcomes = send_at_once(served.port, asks(load, stream=way == "stream"))
                    assert all(outcome.ok for outcome in outcomes)
                if turn:  # the first one warms up
                    seconds[way].append(time.perf_counter() - started)
    return Overhead(seconds)
