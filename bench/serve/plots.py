"""Latency and throughput over the offered load, dynamic against fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

from bench.serve.results import Run

COLORS = {"dynamic": "#30638e", "fixed": "#edae49", "padded": "#d1495b", "static": "#66a182"}
STYLES = {"poisson": "-", "burst": "--"}
DPI = 130
_PANELS: tuple[tuple[str, Callable[[Run], float]], ...] = (
    ("between tokens, p50 ms", lambda run: run.between_p50),
    ("first token, p50 ms", lambda run: run.first_p50),
    ("good requests/s", lambda run: run.good),
)


def plot_runs(results: Sequence[Run], path: Path) -> None:
    """One panel per figure; solid lines are Poisson arrivals, dashed ones bursts."""
    figure, panels = plt.subplots(1, len(_PANELS), figsize=(4.6 * len(_PANELS), 4))
    for axes, (label, value) in zip(panels, _PANELS, strict=True):
        for program, color in COLORS.items():
            for arrivals, style in STYLES.items():
                chosen = [run for run in results if (run.program, run.arrivals) == (program, arrivals) and run.rate]
                chosen.sort(key=lambda run: run.rate or 0.0)
                if chosen:
                    rates = [run.rate or 0.0 for run in chosen]
                    name = f"{program}, {arrivals}"
                    axes.plot(rates, [value(run) for run in chosen], style, marker=".", color=color, label=name)
        axes.set(xlabel="offered requests/s", title=label, xscale="log")
        axes.set_xticks(sorted({run.rate for run in results if run.rate}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        if "ms" in label:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        axes.grid(alpha=0.3, which="both")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
