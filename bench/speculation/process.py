"""An engine in a process of its own.

Two engines in one process disturb each other even while one of them waits: once OpenMP has more threads than the
machine has cores, its threads sleep between the parallel regions of a step instead of spinning for a moment.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.speculation.measure import Chat, Sample, total
from polybatch import Engine, Program, SamplingParams
from polybatch.engine import EngineStats

Prompts = Sequence[Chat | list[int]]
Tokens = list[tuple[tuple[int, ...], tuple[int, ...]]]
"""Prompt and answer of each completion."""


@dataclass(frozen=True)
class EngineSpec:
    """What ``Engine`` is given. speculation: PromptLookup(), an Oracle or None; it goes to another process."""

    program: Path
    speculation: Any
    fixed_k: int | None
    threads: int | None


class EngineProcess:
    """Opens an engine and answers groups of prompts, one at a time. Close it, or use it as a context manager."""

    def __init__(self, name: str, spec: EngineSpec) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, group: int, prompts: Prompts, params: SamplingParams) -> tuple[Sample, Tokens]:
        """All the prompts at once; EOFError when the process died."""
        self._pipe.send((prompts, params))
        measured, tokens = self._pipe.recv()
        return Sample(group, self.name, **measured), tokens

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, spec: EngineSpec) -> None:
    program = Program.load(spec.program)
    with Engine(program, spec.speculation, fixed_k=spec.fixed_k, threads=spec.threads, prefix_cache=False) as engine:
        while True:
            try:
                prompts, params = pipe.recv()
            except EOFError:
                return
            pipe.send(_answer(engine, prompts, params))


def _answer(engine: Engine, prompts: Prompts, params: SamplingParams) -> tuple[dict[str, Any], Tokens]:
    before, started = engine.stats, time.perf_counter()
    completions = engine.generate(prompts, params)
    seconds = time.perf_counter() - started
    counted = [one.speculation for one in completions if one.speculation is not None]
    measured = {
        "seconds": seconds,
        "prefill_s": (_prefill_ms(engine.stats) - _prefill_ms(before)) / 1e3,
        "tokens": sum(len(one.token_ids) for one in completions),
        "drafted_at": total([stats.drafted_at for stats in counted]),
        "accepted_at": total([stats.accepted_at for stats in counted]),
    }
    return measured, [(one.prompt_token_ids, one.token_ids) for one in completions]


def _prefill_ms(stats: EngineStats) -> float:
    return sum(row.total_ms for name, row in stats.specializations.items() if name.startswith("prefill"))
