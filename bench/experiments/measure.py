"""Runs experiments: opens the sessions of one comparison at a time and measures its cells in turn."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.experiments.plan import BASELINE, Cell, Comparison, Experiment
from bench.experiments.results import CellResult, ExperimentResult
from bench.lock import held
from bench.paired import Effort, run_in_turn
from bench.peers.quiet import CpuUse
from bench.programs import ProgramSpec, Say, copy_program, separate_weights, share_weights
from bench.sequences import Sequences
from polybatch import Program

CONTROL = "baseline again"


@dataclass(frozen=True)
class Settings:
    """threads of a step; effort of a cell, less for steps of over slow_ms down to fewest samples.

    openings: a session keeps the memory pages that it got, and their luck, so the samples are spread over sessions
    that are opened anew, in another order each time. control: measure a copy of the baseline program too: its delta is
    what this machine does to identical programs. share_weights: programs with the same weights map one file of them
    (see ``bench.programs.share_weights``). lock: a file held exclusively while a cell is measured.
    """

    threads: int
    effort: Effort
    slow_ms: float
    fewest: int
    openings: int
    control: bool
    share_weights: bool
    lock: Path | None


class Runner:
    """Measures experiments over compiled programs, one comparison at a time."""

    def __init__(self, folders: Mapping[ProgramSpec, Path], settings: Settings, say: Say) -> None:
        self._folders = folders
        self._settings = settings
        self._say = say
        self._random = random.Random(0)

    def run(self, experiment: Experiment) -> ExperimentResult:
        """All cells."""
        result = ExperimentResult(experiment.name, experiment.title, experiment.limit)
        for comparison in experiment.comparisons:
            for cell in self._compare(comparison):
                result.cells.append(cell)
                self._say(f"{experiment.name} {_describe(cell)}")
        return result

    def _compare(self, comparison: Comparison) -> list[CellResult]:
        folders = {name: self._folders[spec] for name, spec in comparison.programs.items()}
        if self._settings.control and BASELINE in folders:
            folders[CONTROL] = copy_program(folders[BASELINE])
        place = share_weights if self._settings.share_weights else separate_weights
        place(folders.values())
        results: dict[Cell, CellResult] = {}
        efforts: dict[Cell, Effort] = {}
        for _ in range(self._settings.openings):
            with self._sessions(folders, comparison) as variants:
                for cell in comparison.cells:
                    found = self._measure(cell, comparison.base, variants, efforts)
                    if cell in results:
                        results[cell].add(found)
                    else:
                        results[cell] = found
        return list(results.values())

    @contextmanager
    def _sessions(self, folders: Mapping[str, Path], comparison: Comparison) -> Iterator[dict[str, Sequences]]:
        """Sessions by variant, opened and filled in random order; closed in the end."""
        order = list(folders)
        self._random.shuffle(order)
        opened: dict[str, Sequences] = {}
        try:
            with held(self._settings.lock, exclusive=False):
                for name in order:
                    sequences = Sequences(Program.load(folders[name]), self._settings.threads)
                    opened[name] = sequences
                    batch = max(cell.batch for cell in comparison.cells)
                    sequences.fill(sequences.program.full_batch_size if comparison.fill_all else batch)
            yield {name: opened[name] for name in folders}
        finally:
            for sequences in opened.values():
                sequences.close()

    def _measure(
        self, cell: Cell, base: str, variants: Mapping[str, Sequences], efforts: dict[Cell, Effort]
    ) -> CellResult:
        """One opening's part of a cell; ``efforts`` remembers what the first opening decided on."""
        settings = self._settings
        steps = {name: _Step(sequences, cell) for name, sequences in variants.items()}
        with held(settings.lock, exclusive=True):
            identical, step_ms = _first_steps(steps)
            effort = settings.effort.within(step_ms, settings.slow_ms, settings.fewest).part(settings.openings)
            effort = efforts.setdefault(cell, effort)
            before, start = CpuUse.read(os.getpid()), time.perf_counter()
            ms = run_in_turn(steps, effort, seed=self._random.randrange(1 << 30))
            share = before.foreign_share(CpuUse.read(os.getpid()), time.perf_counter() - start)
        return CellResult(cell, base, ms, effort.warm_ups, 1, identical, share)


class _Step:
    """One cell on one session, ready to run: calling it is ``session.run(inputs)`` and nothing else."""

    def __init__(self, sequences: Sequences, cell: Cell) -> None:
        self._session = sequences.session
        self._inputs = sequences.decode(cell.batch, cell.drafted)
        self._cell = cell

    def __call__(self) -> dict[str, NDArray[Any]]:
        return self._session.run(self._inputs)

    def checked(self) -> NDArray[np.float32]:
        """The logits; RuntimeError when another specialization ran than the cell's own, or they are not finite."""
        logits = self()["logits"]
        row = self._session.last_specialization
        if row is None or (row.batch_size, row.seq_len) != (self._cell.batch, self._cell.drafted + 1):
            raise RuntimeError(f"{self._cell} ran as {row}")
        if not np.isfinite(logits).all():
            raise RuntimeError(f"{self._cell} gave logits that are not finite")
        return logits


def _first_steps(steps: Mapping[str, _Step]) -> tuple[bool, float]:
    """Whether all variants give the same bits, and the milliseconds of the slowest variant (the best of three)."""
    first, *others = steps.values()
    expected = first.checked()
    identical = all(np.array_equal(expected, other.checked()) for other in others)
    tries = run_in_turn(steps, Effort(0, 3))
    return identical, max(min(ms) for ms in tries.values())


def _describe(result: CellResult) -> str:
    parts = [
        f"b={result.cell.batch:<3d} K={result.cell.drafted:<2d} {result.base} {result.times(result.base).p50:8.2f} ms"
    ]
    for name, delta in result.deltas().items():
        parts.append(f"{name} {delta.median:+.2%} [{delta.low:+.2%}, {delta.high:+.2%}]")
    parts.append(f"{result.samples} samples, same logits: {result.identical}, others used {result.foreign_share:.1%}")
    return "; ".join(parts)
