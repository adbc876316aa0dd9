"""What HTTP and asyncio cost: the same work through ``Engine`` in a process of its own, and through a server."""

from __future__ import annotations

import os
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.peers.protocol import Load
from bench.serve.load import VOCABULARY, asks, send_at_once
from bench.serve.served import Served
from bench.speculation.process import EngineProcess, EngineSpec
from polybatch import SamplingParams
from polybatch.cli.app import SPIN_COUNT

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
    """The ways take turns in random order, so that a slow minute of the machine hits all of them.

    Each round has processes of its own: they differ, by what memory they get, by more than what is to be measured. The
    engine's gets the spin count that the command sets for the server (``polybatch.cli.app``), which is not HTTP's cost.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    warm_up = Load(load.requests, load.prompt_tokens, 1)
    order = random.Random(0)
    for _ in range(rounds):
        with (
            Served(program, threads) as served,
            EngineProcess("engine", EngineSpec(program, None, None, threads)) as engine,
        ):
            for way in WAYS:
                _seconds(way, served, engine, warm_up)
            for way in order.sample(WAYS, len(WAYS)):
                seconds[way].append(_seconds(way, served, engine, load))
    return Overhead(seconds)


def _seconds(way: str, served: Served, engine: EngineProcess, load: Load) -> float:
    if way == "engine":
        sample, _ = engine.run(0, load.prompts(VOCABULARY), SamplingParams(load.new_tokens, ignore_eos=True))
        return sample.seconds
    started = time.perf_counter()
    outcomes = send_at_once(served.port, asks(load, stream=way == "stream"))
    assert all(outcome.ok for outcome in outcomes)
    return time.perf_counter() - started
