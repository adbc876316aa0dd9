"""The figures as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from bench.speculation.results import BASE, Workload

_HEADING = (
    "| prompts | at a time | variant | tokens/s | over K=0 | 95% interval | decoding only | drafted | accepted | |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def markdown(workloads: Sequence[Workload]) -> list[str]:
    """The real prompts, then the sweep."""
    real = [workload for workload in workloads if workload.acceptance is None]
    sweep = [workload for workload in workloads if workload.acceptance is not None]
    lines = [*_HEADING, *(line for workload in real for line in _rows(workload))] if real else []
    if sweep:
        variants = [name for name in sweep[0].variants if name != BASE]
        lines += [
            "",
            f"| a drafted token is right | at a time | {' | '.join(variants)} |",
            "|---" * (2 + len(variants)) + "|",
        ]
        for workload in sorted(sweep, key=lambda one: (one.batch, one.acceptance or 0.0)):
            speeds = " | ".join(f"{workload.speed_up(name, decode_only=True):.2f}" for name in variants)
            lines.append(f"| {workload.acceptance:.0%} | {workload.batch} | {speeds} |")
    return lines


def _rows(workload: Workload) -> list[str]:
    lines = []
    for name in workload.variants:
        cells = [workload.name, str(workload.batch), name, f"{workload.tokens_per_second(name):.1f}"]
        cells += ["", "", "", "", "", ""] if name == BASE else _compared(workload, name)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _compared(workload: Workload, name: str) -> list[str]:
    speed, interval = workload.speed_up(name), workload.interval(name)
    drafted, accepted = workload.tokens_per_draft(name)
    mark = ""
    if workload.least is not None and name == "adaptive":
        mark = f"at least {workload.least}: {'passed' if speed >= workload.least else '**failed**'}"
    return [
        f"{speed:.3f}",
        f"{1 / (1 + interval.high):.3f} to {1 / (1 + interval.low):.3f}",
        f"{workload.speed_up(name, decode_only=True):.3f}",
        str(drafted),
        f"{accepted / drafted:.0%}" if drafted else "",
        mark,
    ]
