"""Plots of a finished run: ``python -m bench.experiments.plots OUT`` from OUT/experiments.json to OUT/*.png."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.experiments.results import CellResult, ExperimentResult

COLORS = ("#30638e", "#d1495b", "#2e8b57", "#8d6a9f", "#7fb069")
DPI = 130


def plot_latency(result: ExperimentResult, path: Path) -> None:
    """p50 over batch size with the band up to p95, one pair of lines per K."""
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for color, (drafted, cells) in zip(COLORS, _by_drafted(result).items(), strict=False):
        batches = [cell.cell.batch for cell in cells]
        for name, style in zip(cells[0].ms, ("--", "-", ":"), strict=False):
            times = [cell.times(name) for cell in cells]
            label = name if _has_one_k(result) else f"{name}, K={drafted}"
            axes.plot(batches, [t.p50 for t in times], style, marker="o", markersize=4, color=color, label=label)
            axes.fill_between(batches, [t.p50 for t in times], [t.p95 for t in times], color=color, alpha=0.12)
    axes.set(xscale="log", yscale="log", ylabel="ms per step (p50, band to p95)", title=_title(result))
    _batch_axis(axes, result)
    _save(figure, axes, path)


def plot_delta(result: ExperimentResult, path: Path) -> None:
    """Paired delta over batch size with its interval, one series per K and variant."""
    figure, axes = plt.subplots(figsize=(7, 4.5))
    axes.axhspan(-100 * result.limit, 100 * result.limit, color="#888888", alpha=0.15, label=f"±{result.limit:.0%}")
    axes.axhline(0.0, color="#888888", linewidth=1)
    series = [
        (drafted, name, cells)
        for drafted, cells in _by_drafted(result).items()
        for name in cells[0].ms
        if name != cells[0].base
    ]
    for index, (drafted, name, cells) in enumerate(series):
        shift = 1.0 + 0.05 * (index - (len(series) - 1) / 2)  # beside each other on the logarithmic axis
        deltas = [cell.deltas()[name] for cell in cells]
        errors = [[100 * (d.median - d.low) for d in deltas], [100 * (d.high - d.median) for d in deltas]]
        label = name if _has_one_k(result) else f"{name}, K={drafted}"
        axes.errorbar(
            [cell.cell.batch * shift for cell in cells],
            [100 * d.median for d in deltas],
            errors,
            fmt="o",
            markersize=4,
            capsize=2,
            color=COLORS[index % len(COLORS)],
            label=label,
        )
    axes.set(xscale="log", ylabel="paired delta, % (median, 95% interval)", title=_title(result))
    _batch_axis(axes, result)
    _save(figure, axes, path)


def plot_slots(result: ExperimentResult, path: Path) -> None:
    """Step time at one batch size over the number of slots."""
    figure, axes = plt.subplots(figsize=(6, 4))
    for color, cell in zip(COLORS, result.cells, strict=False):
        slots = [int(name.split()[0]) for name in cell.ms]
        times = [cell.times(name) for name in cell.ms]
        axes.plot(slots, [t.p50 for t in times], marker="o", color=color, label=f"b={cell.cell.batch}")
        axes.fill_between(slots, [t.p50 for t in times], [t.p95 for t in times], color=color, alpha=0.15)
        axes.set_xscale("log", base=2)
        axes.set_xticks(slots, labels=[str(count) for count in slots])
    axes.set(xlabel="full_batch_size", ylabel="ms per step (p50, band to p95)", title=_title(result), ylim=(0, None))
    _save(figure, axes, path)


def _has_one_k(result: ExperimentResult) -> bool:
    return len({cell.cell.drafted for cell in result.cells}) == 1


def _by_drafted(result: ExperimentResult) -> dict[int, list[CellResult]]:
    groups: dict[int, list[CellResult]] = {}
    for cell in sorted(result.cells, key=lambda cell: cell.cell):
        groups.setdefault(cell.cell.drafted, []).append(cell)
    return groups


def _batch_axis(axes: Axes, result: ExperimentResult) -> None:
    batches = sorted({cell.cell.batch for cell in result.cells})
    axes.set_xticks(batches, labels=[str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set_xlabel("live sequences")


def _title(result: ExperimentResult) -> str:
    return f"{result.name}: {result.title}"


def _save(figure: Figure, axes: Axes, path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def plot_all(results: list[ExperimentResult], folder: Path) -> None:
    """Every plot of every experiment that has cells."""
    for result in results:
        if result.cells and result.cells[0].base.endswith(("slot", "slots")):
            plot_slots(result, folder / f"{result.name}-slots.png")
        elif result.cells:
            plot_latency(result, folder / f"{result.name}-latency.png")
            plot_delta(result, folder / f"{result.name}-delta.png")


def main(folder: Path) -> None:
    data = json.loads((folder / "experiments.json").read_text(encoding="utf-8"))
    plot_all([ExperimentResult.from_json(row) for row in data["experiments"]], folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
