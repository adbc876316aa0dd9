"""``python -m bench.serve``: a server under Poisson and burst arrivals, dynamic batching against a fixed batch.

Two programs of one model with 64 slots: one with the decode batches 1, 2, 4 ... 64 (dynamic), one with 64 only, which
is served three times: as it is (fixed; target cpu leaves out padding rows), with padding rows run (padded), and with
padding rows that attend to the whole context, as on targets of fixed shapes (static). All are served over HTTP and get
the same requests at the same times, by turns in random order, so that a slow minute of the machine hits all of them.
The part overhead compares a server with the engine in process.
Prints Markdown and writes OUT/serve.json and, where matplotlib is installed, OUT/serve.png. Loads that are not run
again keep their figures in OUT.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from bench.lock import held
from bench.models import model_b
from bench.options import add_common, parser_of
from bench.peers.protocol import Load
from bench.peers.report import machine
from bench.programs import ProgramSpec, compile_spec
from bench.results import write_results
from bench.serve import report
from bench.serve.arrivals import ARRIVALS, times
from bench.serve.load import asks, send, send_at_once
from bench.serve.overhead import Overhead, measure
from bench.serve.padded import STEPS
from bench.serve.results import Limits, Run, Turn, summarize
from bench.serve.served import CTX_LEN, Served

SLOTS = 64
SIZES = {"dynamic": (1, 2, 4, 8, 16, 32, 64), "fixed": (SLOTS,), "padded": (SLOTS,), "static": (SLOTS,)}
WARM_UP = Load(SLOTS, 128, 8)
PARTS = ("rates", "saturation", "overhead")


def main() -> None:
    options = _parser().parse_args()
    earlier, overhead = _earlier(options.out)
    runs = {_key(run): run for run in earlier}
    if "overhead" in options.only:
        with held(options.lock, exclusive=True):
            overhead = measure(_program("dynamic", options), options.load, options.rounds, options.threads)
    if set(options.only) & {"rates", "saturation"}:
        runs |= {_key(run): run for run in _loads(options)}
    ordered = sorted(
        runs.values(), key=lambda run: (run.precision, run.arrivals == "burst", run.rate or math.inf, run.program)
    )
    lines = [*(report.runs(ordered) if runs else []), "", *(report.overhead(overhead) if overhead else [])]
    print("\n".join(lines))
    _write(ordered, overhead, lines, options)


def _key(run: Run) -> tuple[str, str, str, float | None]:
    return run.precision, run.program, run.arrivals, run.rate


def _loads(options: argparse.Namespace) -> list[Run]:
    """Every load on every server."""
    programs = {name: _program(name, options) for name in options.programs}
    limits = Limits(options.first_ms, options.between_ms)
    turns: defaultdict[tuple[str, str, float | None], list[Turn]] = defaultdict(list)
    order = random.Random(options.seed)
    for number in range(options.rounds):  # processes differ by what memory they get, so each round has its own
        programs = dict(order.sample([*programs.items()], len(programs)))
        with contextlib.ExitStack() as opened:
            ports = {
                name: opened.enter_context(
                    Served(program, options.threads, steps=name if name in STEPS else "live")
                ).port
                for name, program in programs.items()
            }
            for port in ports.values():
                send_at_once(port, asks(WARM_UP))
            for arrivals, rate in _offered(options):
                for name, turn in _turn(ports, arrivals, rate, number, options).items():
                    turns[name, arrivals, rate].append(turn)
                    print(summarize(options.precision, name, arrivals, rate, [turn], limits), file=sys.stderr)
    return [summarize(options.precision, *load, taken, limits) for load, taken in turns.items()]


def _offered(options: argparse.Namespace) -> list[tuple[str, float | None]]:
    """Arrivals and rates; None: all requests at once."""
    rates = [(arrivals, rate) for arrivals in options.arrivals for rate in options.rates]
    return [*(rates if "rates" in options.only else ()), *([("burst", None)] if "saturation" in options.only else ())]


def _turn(
    ports: Mapping[str, int], arrivals: str, rate: float | None, number: int, options: argparse.Namespace
) -> dict[str, Turn]:
    """What came of one load in one round; the lock is held for one server at a time."""
    turns: dict[str, Turn] = {}
    offered, at = 0.0, [0.0] * options.load.requests
    if rate is not None:
        offered = options.seconds / options.rounds
        if arrivals == "burst":  # whole periods of them
            offered = options.burst / rate * math.ceil(offered * rate / options.burst)
        at = times(arrivals, rate, offered, options.seed + number, options.burst)
    requests = asks(Load(len(at), options.load.prompt_tokens, options.load.new_tokens))
    for name, port in ports.items():
        with held(options.lock, exclusive=True):
            started = time.perf_counter()
            outcomes = send(port, requests, at)
            turns[name] = Turn(max(offered, time.perf_counter() - started), outcomes)
    return turns


def _program(name: str, options: argparse.Namespace) -> Path:
    """Compiled once, with the step times that the choice of batches goes by."""
    model = options.model or str(model_b(options.cache / "models" / "B"))
    spec = ProgramSpec(model, options.precision, SIZES[name], SLOTS, ctx_len=CTX_LEN)
    folder: Path = options.cache / "serve" / spec.folder(options.cache).name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with held(options.lock, exclusive=True):
            compile_spec(spec, folder, profile=True, progress=lambda stage: print(stage, file=sys.stderr))
    return folder


def _earlier(folder: Path) -> tuple[list[Run], Overhead | None]:
    path = folder / "serve.json"
    if not path.is_file():
        return [], None
    data = json.loads(path.read_text(encoding="utf-8"))
    overhead = Overhead(**data["overhead"]) if data["overhead"] else None
    precision = {"precision": data["settings"].get("precision")}  # once of all runs
    return [Run(**(precision | run)) for run in data["runs"]], overhead


def _write(runs: list[Run], overhead: Overhead | None, lines: list[str], options: argparse.Namespace) -> None:
    settings = {"threads": options.threads, "date": date.today().isoformat()}
    data = {"machine": machine(), "settings": settings, "runs": [run.to_json() for run in runs]}
    data["overhead"] = overhead.to_json() if overhead else None
    write_results(options.out, "serve", data, lines)
    shown = [run for run in runs if run.rate and run.precision == runs[0].precision]
    if importlib.util.find_spec("matplotlib") is not None and shown:
        from bench.serve.plots import plot_runs

        plot_runs(shown, options.out / "serve.png")


def _load(text: str) -> Load:
    requests, prompt, new = (int(part) for part in text.split(","))
    return Load(requests, prompt, new)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("serve", __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--programs", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--arrivals", nargs="+", choices=ARRIVALS, default=list(ARRIVALS))
    parser.add_argument("--rates", nargs="+", type=float, default=[0.25, 0.5, 1, 2, 4, 8], help="requests per second")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30,
        help="of arrivals, per rate, in all rounds together; bursts come in whole periods",
    )
    parser.add_argument("--burst", type=int, default=16, help="requests per burst")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", type=_load, default=Load(64, 128, 64), metavar="REQUESTS,PROMPT,NEW")
    parser.add_argument("--rounds", type=int, default=5, help="turns that the servers take under each load")
    parser.add_argument("--first-ms", type=float, default=1000, help="a good request's first token")
    parser.add_argument("--between-ms", type=float, default=50, help="a good request's mean time between tokens")
    parser.add_argument("--model", help="Hugging Face directory or hub id")
    parser.add_argument("--precision", choices=("bf16", "fp32", "int8"), default="bf16")
    return add_common(parser, "serve")


if __name__ == "__main__":
    main()
