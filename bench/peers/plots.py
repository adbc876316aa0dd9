"""Plots of a finished run: ``python -m bench.peers.plots OUT`` reads OUT/peers.json and writes OUT/*.png."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator

from bench.peers.catalog import OURS, PEERS
from bench.peers.results import Results

COLORS = dict(zip(PEERS, ("#d1495b", "#30638e", "#2e8b57", "#7fb069", "#8d6a9f"), strict=True))


def _decode_points(results: Results, model: str, precision: str, peer: str) -> dict[int, tuple[float, float | None]]:
    """batch -> (ms, times ours); the fastest where a peer was measured in several groups."""
    points: dict[int, tuple[float, float | None]] = {}
    for row in results.measurements:
        same = (row.model, row.precision, row.peer) == (model, precision, peer)
        if same and row.work.startswith("b=") and "K=" not in row.work and row.median:
            batch, point = int(row.work[2:]), (row.median, results.ratio(row, OURS))
            points[batch] = min(points.get(batch, point), point)
    return dict(sorted(points.items()))


def plot_decode(results: Results, model: str, precision: str, path: Path) -> None:
    """Step time over batch size, both logarithmic, and beside it the time of each peer over ours."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    for peer, info in PEERS.items():
        points = _decode_points(results, model, precision, peer)
        if not points:
            continue
        width = 2.5 if peer == OURS else 1.5
        style = {"color": COLORS[peer], "marker": "o", "label": info.title, "linewidth": width}
        left.plot(list(points), [ms for ms, _ in points.values()], **style)
        if peer != OURS:
            ratios = {batch: ratio for batch, (_, ratio) in points.items() if ratio}
            right.plot(list(ratios), list(ratios.values()), **style)
    right.axhline(1.0, color=COLORS[OURS], linewidth=2.5)
    left.set(xscale="log", yscale="log", ylabel="ms per step", title=f"model {model}, {precision}: decode step")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    right.set(xscale="log", ylabel="time over polybatch's", title="above 1: polybatch is faster", ylim=(0, None))
    for axes in (left, right):
        axes.set_xlabel("live sequences")
        axes.set_xticks([1, 2, 8, 32, 128], labels=["1", "2", "8", "32", "128"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_throughput(results: Results, work: str, title: str, path: Path) -> None:
    """One bar per peer, one group of bars per model and precision."""
    best: dict[tuple[str, str], float] = {}
    for row in results.measurements:
        if row.work == work and row.median:
            key = (f"{row.model} {row.precision}", row.peer)
            best[key] = max(best.get(key, 0.0), row.median)
    labels = list(dict.fromkeys(label for label, _ in best))
    peers = [peer for peer in PEERS if any(key[1] == peer for key in best)]
    if not best:
        return
    figure, axes_row = plt.subplots(1, len(labels), figsize=(3.2 * len(labels) + 1, 4), squeeze=False)
    for axes, label in zip(axes_row[0], labels, strict=True):
        shown = [peer for peer in peers if (label, peer) in best]
        bars = axes.bar(range(len(shown)), [best[label, p] for p in shown], color=[COLORS[p] for p in shown])
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
        axes.set_xticks(range(len(shown)), [PEERS[p].title.replace(" ", "\n") for p in shown], fontsize=7)
        axes.set_title(label)
    axes_row[0][0].set_ylabel("tokens/s")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(folder: Path) -> None:
    results = Results.from_json(json.loads((folder / "peers.json").read_text(encoding="utf-8")))
    decoded = dict.fromkeys((m.model, m.precision) for m in results.measurements if m.work.startswith("b="))
    for model, precision in decoded:
        plot_decode(results, model, precision, folder / f"decode-{model}-{precision}.png")
    plot_throughput(results, "prefill 512", "prefill of 512 tokens", folder / "prefill.png")
    plot_throughput(
        results, "end to end", "64 requests x (128 prompt + 64 new tokens), output tokens", folder / "end_to_end.png"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
