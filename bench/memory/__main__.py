"""``python -m bench.memory``: memory, compile time, bytes and load time of one program, each in a fresh process.

Compares a table of 40 decode rows (8 batch sizes x 5 K) with one of a single row. Prints Markdown and writes
OUT/memory.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.experiments.plan import DRAFTED, POWERS_TO_128
from bench.lock import held
from bench.models import model_a
from bench.options import add_common, parser_of
from bench.peers.report import machine
from bench.programs import ProgramSpec
from bench.results import write_results

SLOTS = 128
MB = 1e6


@dataclass(frozen=True)
class Figure:
    """One measured figure and the most that it may be."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit


class Probes:
    """Runs probes in fresh processes, keeping their raw answers."""

    def __init__(self, lock: Path | None) -> None:
        self._lock = lock
        self.answers: list[dict[str, Any]] = []

    def ask(self, probe: str, **arguments: Any) -> dict[str, Any]:
        command = [sys.executable, "-m", "bench.memory.probes", probe, json.dumps(arguments)]
        with held(self._lock, exclusive=True):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{probe} failed:\n{done.stderr[-2000:]}")
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        self.answers.append({"probe": probe, "arguments": arguments, "answer": answer})
        print(f"{probe}: {answer}", file=sys.stderr, flush=True)
        return answer

    def often(self, times: int, probe: str, **arguments: Any) -> list[dict[str, Any]]:
        return [self.ask(probe, **arguments) for _ in range(times)]


def main() -> None:
    options = _parser().parse_args()
    model = str(model_a(options.cache / "models" / "A"))
    probes = Probes(options.lock)
    one = ProgramSpec(model, options.precision, (1,), SLOTS)
    forty = ProgramSpec(model, options.precision, POWERS_TO_128, SLOTS, DRAFTED)
    folders = {spec: options.cache / "memory" / f"{len(spec.batch_sizes)}-rows.poly" for spec in (one, forty)}
    figures = [
        *_compile_figures(probes, one, forty, folders, options.repeats),
        *_memory_figures(probes, folders[one], folders[forty], options.threads),
        *_time_figures(probes, folders[forty], options.threads, options.repeats),
    ]
    lines = _markdown(figures)
    data = {"machine": machine(), "figures": [asdict(figure) for figure in figures], "probes": probes.answers}
    write_results(options.out, "memory", data, lines)
    print("\n".join(lines))


def _compile_figures(
    probes: Probes, one: ProgramSpec, forty: ProgramSpec, folders: dict[ProgramSpec, Path], repeats: int
) -> list[Figure]:
    """The two compiles take turns, without and with the measuring of step times."""
    seconds: dict[tuple[ProgramSpec, bool], list[float]] = {}
    size = {}
    for turn in range(2 * repeats):
        profile = turn % 2 == 1
        for spec in (one, forty):
            answer = probes.ask("compile", spec=asdict(spec), folder=str(folders[spec]), profile=profile)
            seconds.setdefault((spec, profile), []).append(answer["seconds"])
            size[spec] = answer["bytes"]
    plain = [median(seconds[spec, False]) for spec in (one, forty)]
    profiled = [median(seconds[spec, True]) for spec in (one, forty)]
    return [
        Figure("compile time, 1 row", plain[0], "s"),
        Figure("compile time, 40 rows / 1 row, profile=False", plain[1] / plain[0], "x", 1.1),
        Figure("compile time, 40 rows / 1 row", profiled[1] / profiled[0], "x", 1.1),
        Figure("bytes, 1 row", size[one] / MB, "MB"),
        Figure("bytes, 40 rows / 1 row", size[forty] / size[one], "x", 1.02),
    ]


def _memory_figures(probes: Probes, one: Path, forty: Path, threads: int) -> list[Figure]:
    small = probes.ask("session", program=str(one), threads=threads)
    large = probes.ask("session", program=str(forty), threads=threads)
    reserved = large["cache_reserved_bytes"]
    what = f"{SLOTS} slots, {reserved / MB:.0f} MB reserved"
    return [
        Figure("fresh session beyond weights", large["opened_bytes"] / MB, "MB", 64, what),
        Figure("the same after one step", large["stepped_bytes"] / MB, "MB", None, "one token in one slot"),
        Figure("process with a session after one step, 1 row", small["total_bytes"] / MB, "MB"),
        Figure("the same, 40 rows / 1 row", large["total_bytes"] / small["total_bytes"], "x", 1.02),
    ]


def _time_figures(probes: Probes, program: Path, threads: int, repeats: int) -> list[Figure]:
    loads = probes.often(repeats, "load", program=str(program), threads=threads)
    imports = probes.often(repeats, "import")
    return [
        Figure("load beyond importing torch", _median(loads, "seconds"), "s", 1.0),
        Figure("first step", _median(loads, "first_step_seconds"), "s"),
        Figure("import polybatch", _median(imports, "seconds"), "s", 0.3),
    ]


def _median(answers: Sequence[dict[str, Any]], name: str) -> float:
    return float(median(answer[name] for answer in answers))


def _markdown(figures: Sequence[Figure]) -> list[str]:
    lines = ["| what | measured | limit | |", "|---|---|---|---|"]
    for figure in figures:
        limit = "" if figure.limit is None else f"{figure.limit:g} {figure.unit}"
        mark = {None: "", True: "passed", False: "**failed**"}[figure.passed]
        name = figure.name + (f" ({figure.note})" if figure.note else "")
        lines.append(f"| {name} | {figure.value:.3g} {figure.unit} | {limit} | {mark} |")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("memory", __doc__)
    parser.add_argument("--precision", choices=("bf16", "fp32", "int8"), default="bf16")
    parser.add_argument("--repeats", type=int, default=3, help="of compiles, loads and imports")
    return add_common(parser, "memory")


if __name__ == "__main__":
    main()
