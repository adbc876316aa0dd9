"""The experiments as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bench.experiments.plan import Cell
from bench.experiments.results import CellResult, ExperimentResult
from bench.paired import Delta

INTRODUCTION = """\
Milliseconds of `session.run(inputs)`, p50 / p90 / p95. The variants of a row ran in turn, sample by sample, each round
in random order; the sessions were opened anew a few times. Delta: median over the rounds of (variant / base - 1), with
its 95% bootstrap interval over sessions and rounds.
"""


def markdown(results: Iterable[ExperimentResult], machine: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """The whole report."""
    lines = ["# One program against one per batch size", ""]
    lines += [f"{machine['cpu']}, {machine['memory_gib']} GiB; " + ", ".join(f"{k} {v}" for k, v in settings.items())]
    lines += ["", INTRODUCTION]
    for result in results:
        if result.cells:
            lines += _experiment(result)
    return "\n".join(lines) + "\n"


def _experiment(result: ExperimentResult) -> Iterator[str]:
    variants = list(dict.fromkeys(name for cell in result.cells for name in cell.ms))
    compared = [name for name in variants if name != result.cells[0].base]
    heads = ["b", "K", *variants, *(f"delta {name}" for name in compared), "samples"]
    yield f"## {result.name}: {result.title}"
    yield ""
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for cell in result.cells:
        yield "| " + " | ".join(_row(cell, variants, compared)) + " |"
    yield ""
    for name in compared:
        yield f"* {name}: {_verdict(result, name)}"
    if len({cell.cell.drafted for cell in result.cells}) > 1:
        for name in compared:
            yield f"* {name}, median delta by batch: {_medians(result.medians_by(name, _batch))}"
            yield f"* {name}, median delta by K: {_medians(result.medians_by(name, _drafted))}"
    different = [cell.cell for cell in result.cells if not cell.identical]
    yield f"* logits: {f'different in {different}' if different else 'bit-identical in all variants of every cell'}"
    busiest = max(result.cells, key=lambda cell: cell.foreign_share)
    yield f"* other processes used up to {busiest.foreign_share:.0%} of the processors during a cell"
    yield ""


def _row(result: CellResult, variants: Sequence[str], compared: Sequence[str]) -> Iterator[str]:
    yield str(result.cell.batch)
    yield str(result.cell.drafted)
    for name in variants:
        times = result.times(name)
        yield f"{times.p50:.2f} / {times.p90:.2f} / {times.p95:.2f}"
    deltas = result.deltas()
    for name in compared:
        yield _delta(deltas[name])
    yield str(result.samples)


def _verdict(result: ExperimentResult, variant: str) -> str:
    deltas = [(abs(delta.median), cell) for cell, name, delta in result.all_deltas() if name == variant]
    worst, where = max(deltas)
    median = statistics.median(delta.median for _, name, delta in result.all_deltas() if name == variant)
    passed = "within" if worst <= result.limit else "beyond"
    cell = f"b={where.batch}, K={where.drafted}"
    return f"median delta {median:+.2%}; largest {worst:.2%} ({cell}), {passed} {result.limit:.0%}"


def _delta(delta: Delta) -> str:
    return f"{delta.median:+.2%} [{delta.low:+.2%}, {delta.high:+.2%}]"


def _medians(by_value: Mapping[int, float]) -> str:
    return ", ".join(f"{value}: {median:+.2%}" for value, median in by_value.items())


def _batch(cell: Cell) -> int:
    return cell.batch


def _drafted(cell: Cell) -> int:
    return cell.drafted
