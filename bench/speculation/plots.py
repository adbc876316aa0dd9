"""Speed over acceptance: the oracle's curves, and the real prompts as points among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.speculation.results import BASE, Workload

COLORS = {"adaptive": "#30638e", "K=3": "#2e8b57", "K=7": "#d1495b"}
MARKERS = {"quote": "o", "open": "s", "sampled": "^"}
DPI = 130


def plot_speed(workloads: Sequence[Workload], path: Path) -> None:
    """One panel per batch: speed-up over K=0 against the probability that a drafted token is right."""
    batches = sorted({workload.batch for workload in workloads})
    figure, panels = plt.subplots(1, len(batches), figsize=(5.5 * len(batches), 4.3), sharey=True, squeeze=False)
    for axes, batch in zip(panels[0], batches, strict=True):
        chosen = [workload for workload in workloads if workload.batch == batch]
        _curves(axes, [workload for workload in chosen if workload.acceptance is not None])
        _points(axes, [workload for workload in chosen if workload.acceptance is None])
        axes.axhline(1.0, color="#888888", linewidth=1)
        axes.set(xlabel="probability that a drafted token is right", title=f"{batch} at a time", xlim=(-0.03, 1.03))
        axes.grid(alpha=0.3)
    panels[0][0].set(ylabel="decoding speed over K=0")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _curves(axes: Axes, sweep: Sequence[Workload]) -> None:
    ordered = sorted(sweep, key=lambda workload: workload.acceptance or 0.0)
    for variant in [name for name in (ordered[0].variants if ordered else []) if name != BASE]:
        speeds = [workload.speed_up(variant, decode_only=True) for workload in ordered]
        rates = [workload.acceptance for workload in ordered]
        axes.plot(rates, speeds, "-", marker=".", color=COLORS[variant], label=f"known answers, {variant}")


def _points(axes: Axes, workloads: Sequence[Workload]) -> None:
    for workload in workloads:
        rates, speeds = [], []
        for group in sorted({sample.group for sample in workload.samples}):
            one = Workload("", 0, None, None, tuple(s for s in workload.samples if s.group == group))
            rate = one.token_acceptance("adaptive")
            if rate is not None:
                rates.append(rate)
                speeds.append(one.speed_up("adaptive", decode_only=True))
        marker = MARKERS[workload.name]
        axes.scatter(rates, speeds, s=26, marker=marker, color="#444444", label=f"prompt lookup, {workload.name}")
