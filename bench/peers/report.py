"""The results as Markdown."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

from bench.peers.catalog import OURS, PEERS
from bench.peers.results import Measurement, Results

INTRODUCTION = """\
Decode cells: milliseconds (median) of one step that returns the logits of all b sequences, each at position {position},
with a KV cache for {slots} sequences; K drafted tokens make K + 1 tokens per row. In brackets: that time over ours,
measured in the same run in turn with it; above 1 we are faster. A `~` marks cells whose turns differ by over
{noisy:.0%}.
"""
NOISY = 0.25


def machine() -> dict[str, str]:
    """What the figures depend on."""
    cpu, memory_kb = platform.processor() or platform.machine(), "0"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemTotal"):
            memory_kb = line.split()[1]
    return {"cpu": cpu, "memory_gib": str(int(memory_kb) >> 20), "system": platform.platform()}


def markdown(results: Results, slots: int = 128, position: int = 512) -> str:
    """The whole report."""
    settings = results.settings
    lines = ["# polybatch beside its peers", ""]
    lines += [f"{results.machine['cpu']}, {results.machine['memory_gib']} GiB, {settings['threads']} threads, "]
    lines[-1] += f"{settings['date']}, {settings['samples']} rounds."
    lines += ["", INTRODUCTION.format(slots=slots, position=position, noisy=NOISY)]
    for model, precision in _unique((m.model, m.precision) for m in results.measurements):
        lines += [f"## Model {model}, {precision}", ""]
        lines += _table(results, model, precision)
        lines += _reasons(results, model, precision)
        lines += _agreement(results, model, precision)
    lines += ["## What was measured", ""]
    lines += [f"* {name}: not measured, {reason}" for name, reason in results.missing.items()]
    versions = {name.split()[0]: about.get("version", "") for name, about in results.about.items()}
    lines.append(f"* {'; '.join(f'{PEERS[peer].title}: {version}' for peer, version in versions.items())}")
    return "\n".join(lines) + "\n"


def _table(results: Results, model: str, precision: str) -> list[str]:
    rows = [m for m in results.measurements if (m.model, m.precision) == (model, precision) and m.work != "open"]
    works = _unique(m.work for m in rows)
    if not works:
        return []
    heads = [work if work.startswith("b=") else f"{work} (tokens/s)" for work in works]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(works) + 1) + "|"]
    for peer in _unique(m.peer for m in rows):
        cells = [_cell(results, results.of(model, precision, work, peer)) for work in works]
        lines.append(f"| {PEERS[peer].title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(results: Results, found: list[Measurement]) -> str:
    measured = [m for m in found if m.median is not None]
    if not measured:
        return "-"
    best = min(measured, key=lambda m: m.median or 0.0) if measured[0].unit == "ms" else _fastest(measured)
    assert best.median is not None
    noisy = "~" if (best.spread or 0.0) > NOISY else ""
    text = f"{noisy}{best.median:.2f}" if best.unit == "ms" else f"{noisy}{best.median:.0f}"
    ratio = None if best.peer == OURS else results.ratio(best, OURS)
    text += "" if ratio is None else f" ({ratio:.2f})"
    return text + (f", {best.note}" if best.note else "")


def _fastest(measured: list[Measurement]) -> Measurement:
    return max(measured, key=lambda m: m.median or 0.0)


def _reasons(results: Results, model: str, precision: str) -> list[str]:
    """Why cells are empty, one line per peer and reason."""
    failed = [m for m in results.measurements if (m.model, m.precision) == (model, precision) and m.reason]
    lines = []
    for peer, reason in _unique((m.peer, m.reason) for m in failed):
        works = ", ".join(_unique(m.work for m in failed if (m.peer, m.reason) == (peer, reason)))
        lines.append(f"* {PEERS[peer].title}, {works}: {reason}")
    return [*lines, ""] if lines else []


def _agreement(results: Results, model: str, precision: str) -> list[str]:
    """A check that all do the same work: greedy answers part only where rounding decides between two tokens."""
    answers = {
        m.peer: m.first_answer
        for m in results.measurements
        if (m.model, m.precision) == (model, precision) and m.first_answer
    }
    ours = answers.pop(OURS, [])
    if not ours or not answers:
        return []
    common = []
    for peer, answer in answers.items():
        same = next((i for i, (a, b) in enumerate(zip(ours, answer, strict=True)) if a != b), len(ours))
        common.append(f"{same} of {len(ours)} {PEERS[peer].title}")
    return [f"Tokens of the first end-to-end answer until one differs from ours: {', '.join(common)}.", ""]


def _unique(items: Iterable[object]) -> list:  # type: ignore[type-arg]
    return list(dict.fromkeys(items))
