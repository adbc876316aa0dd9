"""``python -m bench.speculation``: prompt lookup and drafts of known quality against one token at a time.

Every group of prompts is answered by engines without speculation, with the K that promises most, and with K fixed, in
random order; all must give the same tokens. Prints Markdown and writes OUT/speculation.json and, where matplotlib is
installed, OUT/speculation.png. Parts that are not run again keep their figures in OUT.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from bench.lock import held
from bench.models import model_b
from bench.options import add_common, parser_of
from bench.peers.report import machine
from bench.programs import ProgramSpec, compile_spec
from bench.results import write_results
from bench.speculation.measure import groups_of, messages
from bench.speculation.oracle import Oracle
from bench.speculation.process import EngineProcess, EngineSpec
from bench.speculation.prompts import OPEN, QUOTE
from bench.speculation.report import markdown
from bench.speculation.results import BASE, Workload
from bench.speculation.turns import Turns
from polybatch import PromptLookup, SamplingParams

LENGTHS = (0, 3, 7)
SLOTS = 4
PARTS = {
    "quote": (QUOTE, SamplingParams(max_tokens=128), 1.3),
    "open": (OPEN, SamplingParams(max_tokens=128), 0.98),
    "sampled": (OPEN, SamplingParams(max_tokens=128, temperature=0.9, seed=0), 0.98),
}
SWEEP = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
BATCHES = (1, SLOTS)


def main() -> None:
    options = _parser().parse_args()
    program = _program(options)
    workloads = {(one.name, one.batch, one.acceptance): one for one in _earlier(options.out)}
    for batch in options.batches:
        for part in options.only:
            with held(options.lock, exclusive=True):
                for workload in _run(part, program, batch, options):
                    workloads[workload.name, workload.batch, workload.acceptance] = workload
            print("\n".join(markdown([workloads[key] for key in workloads if key[0] == part])), file=sys.stderr)
            _write(list(workloads.values()), options)
    print("\n".join(markdown(list(workloads.values()))))


def _program(options: argparse.Namespace) -> Path:
    """Compiled once, with the step times that the choice of K goes by."""
    model = options.model or str(model_b(options.cache / "models" / "B"))
    spec = ProgramSpec(model, options.precision, (1, 2, 4), SLOTS, LENGTHS)
    folder = options.cache / "speculation" / spec.folder(options.cache).name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with held(options.lock, exclusive=True):
            compile_spec(spec, folder, profile=True, progress=lambda stage: print(stage, file=sys.stderr))
    return folder


def _run(part: str, program: Path, batch: int, options: argparse.Namespace) -> Iterator[Workload]:
    if part == "sweep":
        yield from _sweep(program, batch, options)
        return
    prompts, params, least = PARTS[part]
    turns = Turns(groups_of(prompts, batch), params)
    for _ in range(options.rounds):  # processes differ by what memory they get, so each round has its own
        with _engines(program, batch, PromptLookup(), options.threads) as engines:
            turns.run(engines)
    yield Workload(part, batch, None, least, tuple(turns.samples))


def _sweep(program: Path, batch: int, options: argparse.Namespace) -> Iterator[Workload]:
    """Drafts out of the answers, each token right with a given probability."""
    groups, params = groups_of(OPEN[:4], batch), PARTS["open"][1]
    with EngineProcess(BASE, EngineSpec(program, None, None, options.threads)) as engine:
        answers = dict(engine.run(0, messages(OPEN[:4]), params)[1])
    for acceptance in options.sweep:
        with _engines(program, batch, Oracle(answers, acceptance), options.threads) as engines:
            turns = Turns(groups, params)
            turns.run(engines)
        yield Workload("sweep", batch, acceptance, None, tuple(turns.samples))


@contextlib.contextmanager
def _engines(
    program: Path, batch: int, speculation: PromptLookup | Oracle, threads: int
) -> Iterator[list[EngineProcess]]:
    """Without speculation, with the K that promises most and with each fixed K; warmed up and in new processes."""
    variants = {BASE: (None, None), "adaptive": (speculation, None)}
    variants |= {f"K={fixed}": (speculation, fixed) for fixed in LENGTHS if fixed}
    with contextlib.ExitStack() as opened:
        engines = [
            opened.enter_context(EngineProcess(name, EngineSpec(program, *variant, threads)))
            for name, variant in variants.items()
        ]
        if isinstance(speculation, PromptLookup):
            Turns([messages(["Hello"] * batch)], SamplingParams(max_tokens=16)).run(engines)
        yield engines


def _earlier(folder: Path) -> list[Workload]:
    path = folder / "speculation.json"
    return [Workload.from_json(row) for row in json.loads(path.read_text())["workloads"]] if path.is_file() else []


def _write(workloads: list[Workload], options: argparse.Namespace) -> None:
    settings = {"precision": options.precision, "threads": options.threads, "date": date.today().isoformat()}
    data = {"machine": machine(), "settings": settings, "workloads": [one.to_json() for one in workloads]}
    write_results(options.out, "speculation", data, markdown(workloads))
    if importlib.util.find_spec("matplotlib") is not None:
        from bench.speculation.plots import plot_speed

        plot_speed(workloads, options.out / "speculation.png")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("speculation", __doc__)
    parser.add_argument("--only", nargs="+", choices=(*PARTS, "sweep"), default=(*PARTS, "sweep"))
    parser.add_argument("--batches", nargs="+", type=int, choices=BATCHES, default=BATCHES, help="live sequences")
    parser.add_argument("--rounds", type=int, default=4, help="how often each engine answers each group of prompts")
    parser.add_argument("--sweep", nargs="+", type=float, default=SWEEP, help="probabilities of the part sweep")
    parser.add_argument("--model", help="Hugging Face directory or hub id, with a chat template")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    return add_common(parser, "speculation")


if __name__ == "__main__":
    main()
