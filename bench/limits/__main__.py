"""``python -m bench.limits``: how near the steps of a program come to what the machine allows.

The machine's bandwidth drifts from one second to the next, so it is measured in turn with the steps, sample by sample;
medians are compared.
Prints Markdown and writes OUT/limits.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

from bench.limits.floor import Machine, ModelShape, Step, floor_seconds, operations
from bench.limits.probes import MachineProbe, median_of, seconds
from bench.lock import held
from bench.models import MODELS
from bench.options import add_common, parser_of
from bench.peers.quiet import CpuUse
from bench.peers.report import machine as machine_description
from bench.programs import PREFILL_CHUNK, ProgramSpec, compiled
from bench.results import write_results
from bench.sequences import POSITION, Inputs, Sequences
from polybatch import Program

SLOTS = 128
DECODE_CELLS = ((1, 0), (8, 0), (32, 0), (128, 0), (1, 7), (8, 7))  # batch, K
PREFILL_POSITION = 384
NOTED_FOREIGN_SHARE = 0.05


@dataclass(frozen=True)
class Cell:
    """One step, and how near it came. foreign_share: of the processors, what other processes used meanwhile."""

    model: str
    precision: str
    name: str
    p50_ms: float
    floor_ms: float
    machine: Machine
    floor_by_operation_ms: dict[str, float]
    foreign_share: float

    @property
    def achieved(self) -> float:
        """Share of the limit: 1 is the floor itself."""
        return self.floor_ms / self.p50_ms


def main() -> None:
    options = _parser().parse_args()
    cells: list[Cell] = []
    for name in options.models:
        folder = MODELS[name](options.cache / "models" / name)
        shape = ModelShape.from_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        for precision in options.precisions:
            spec = ProgramSpec(str(folder), precision, (1, 8, 32, 128), SLOTS, (0, 7))
            with held(options.lock, exclusive=False):
                program = Program.load(compiled([spec], options.cache / "programs", 1, _say)[spec])
            for cell in _cells(name, precision, shape, program, options):
                cells.append(cell)
                share = f"{cell.achieved:.0%} of the limit{_disturbance(cell)}"
                _say(f"{name} {precision} {cell.name}: {cell.p50_ms:.2f} ms, {share}")
    lines = list(_markdown(cells))
    data = {"machine": machine_description(), "position": POSITION, "cells": [asdict(cell) for cell in cells]}
    write_results(options.out, "limits", data, lines)
    print("\n".join(lines))


def _cells(
    name: str, precision: str, shape: ModelShape, program: Program, options: argparse.Namespace
) -> Iterator[Cell]:
    with held(options.lock, exclusive=False):
        probe = MachineProbe(precision, options.threads)
        sequences = Sequences(program, options.threads)
    for label, step, inputs in _steps(sequences, options):
        with held(options.lock, exclusive=True):
            before, start = CpuUse.read(os.getpid()), time.perf_counter()
            ms, machine = _in_turn(partial(sequences.session.run, inputs), probe, options.samples)
            share = before.foreign_share(CpuUse.read(os.getpid()), time.perf_counter() - start)
        found = operations(shape, step, precision)
        by_operation = {operation.name: operation.seconds(machine) * 1e3 for operation in found}
        floor_ms = floor_seconds(found, machine) * 1e3
        yield Cell(name, precision, label, median(ms), floor_ms, machine, by_operation, share)
    sequences.close()


def _in_turn(step: Callable[[], object], probe: MachineProbe, samples: int) -> tuple[list[float], Machine]:
    """Milliseconds of each step, and the machine meanwhile. A step that is not timed first fills the caches again."""
    step()
    ms, machines = [], []
    for _ in range(samples):
        machines.append(probe.measure())
        step()
        ms.append(seconds(step) * 1e3)
    return ms, median_of(machines)


def _steps(sequences: Sequences, options: argparse.Namespace) -> Iterator[tuple[str, Step, Inputs]]:
    for batch, drafted in DECODE_CELLS:
        tokens = drafted + 1
        with held(options.lock, exclusive=False):
            inputs = sequences.decode(batch, drafted)
        label = f"b={batch}" + (f" K={drafted}" if drafted else "")
        yield label, Step(batch, tokens, POSITION, tokens), inputs
    label = f"prefill {PREFILL_CHUNK} at {PREFILL_POSITION}"
    step = Step(1, PREFILL_CHUNK, PREFILL_POSITION, 1)
    yield label, step, sequences.prefill_chunk(0, PREFILL_POSITION)


def _markdown(cells: list[Cell]) -> Iterator[str]:
    labels = list(dict.fromkeys(cell.name for cell in cells))
    yield "Milliseconds, p50 / floor (share of the limit). Measured in turn with each cell's steps: read bandwidth "
    yield f"{_span([cell.machine.read_bytes_per_s for cell in cells])} GB/s" + "".join(
        f", {name} {_span([c.machine.flops_per_s[name] for c in cells if name in c.machine.flops_per_s])} GFLOP/s"
        for name in dict.fromkeys(name for cell in cells for name in cell.machine.flops_per_s)
    )
    yield ""
    yield "| | " + " | ".join(labels) + " |"
    yield "|---" * (len(labels) + 1) + "|"
    for model, precision in dict.fromkeys((cell.model, cell.precision) for cell in cells):
        row = {cell.name: cell for cell in cells if (cell.model, cell.precision) == (model, precision)}
        cells_of_row = map(row.__getitem__, labels)
        texts = (f"{c.p50_ms:.2f} / {c.floor_ms:.2f} ({c.achieved:.0%}{_disturbance(c)})" for c in cells_of_row)
        yield f"| {model} {precision} | " + " | ".join(texts) + " |"


def _disturbance(cell: Cell) -> str:
    return f", others used {cell.foreign_share:.0%}" if cell.foreign_share > NOTED_FOREIGN_SHARE else ""


def _span(values: list[float]) -> str:
    return f"{min(values) / 1e9:.0f} to {max(values) / 1e9:.0f}"


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("limits", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "fp32", "int8"), default=["bf16", "fp32"])
    parser.add_argument("--samples", type=int, default=50)
    return add_common(parser, "limits")


if __name__ == "__main__":
    main()
