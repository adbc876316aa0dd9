"""The figures as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.serve.overhead import WAYS, Overhead
from bench.serve.results import Run

_RUNS = (
    "| precision | arrivals | requests/s | program | first token p50 / p95, ms | between p50 / p95, ms | good/s "
    "| tokens/s |",
    "|---|---|---|---|---|---|---|---|",
)
_WAYS = {"engine": "`Engine` in process", "whole": "HTTP, answers in one piece", "stream": "HTTP, all streamed"}
_MOST = {"whole": 0.05, "stream": 0.12}


def runs(results: Sequence[Run]) -> list[str]:
    """One line per load and program, then what dynamic batching gains."""
    lines = list(_RUNS)
    for run in results:
        rate = "all at once" if run.rate is None else f"{run.rate:g}"
        lines.append(
            f"| {run.precision} | {run.arrivals} | {rate} | {run.program} "
            f"| {run.first_p50:.0f} / {run.first_p95:.0f} | {run.between_p50:.1f} / {run.between_p95:.1f} "
            f"| {run.good:.2f} | {run.tokens_per_s:.0f} |"
        )
    return [*lines, "", *_gains(results)]


def _gains(results: Sequence[Run]) -> list[str]:
    lines = []
    for dynamic, other in pairs(results):
        name = "all at once" if dynamic.rate is None else f"{dynamic.arrivals}, {dynamic.rate:g} requests/s"
        faster = other.between_p50 / dynamic.between_p50
        more = dynamic.tokens_per_s / other.tokens_per_s - 1
        lines.append(
            f"* {dynamic.precision}, {name}: p50 between tokens {faster:.2f} x shorter than {other.program}; "
            f"{more:+.1%} tokens/s"
        )
    return lines


def pairs(results: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs of the dynamic program, each with those of the other servers under the same load."""
    dynamic = {_load(run): run for run in results if run.program == "dynamic"}
    return [(dynamic[_load(run)], run) for run in results if run.program != "dynamic" and _load(run) in dynamic]


def _load(run: Run) -> tuple[str, str, float | None]:
    return run.precision, run.arrivals, run.rate


def overhead(measured: Overhead) -> list[str]:
    """Seconds by way, and what each costs over the engine."""
    lines = ["| way | median, s | over the engine | at most |", "|---|---|---|---|"]
    for way in WAYS:
        cost = "" if way == "engine" else f"{measured.cost(way):+.1%}"
        most = f"{_MOST[way]:.0%}" if way in _MOST else ""
        lines.append(f"| {_WAYS[way]} | {statistics.median(measured.seconds[way]):.2f} | {cost} | {most} |")
    return lines
