"""``python -m bench.experiments``: dynamic batching against programs made for one batch size.

Writes OUT/experiments.json and .md and, where matplotlib is installed, OUT/*.png. The model has the exact shape of
JackFram/llama-68m with random weights; ``--model`` takes another one.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from bench.experiments.measure import Runner, Settings
from bench.experiments.plan import Experiment, plan
from bench.experiments.report import markdown
from bench.experiments.results import ExperimentResult
from bench.lock import held
from bench.models import model_a
from bench.options import add_common, parser_of
from bench.paired import Effort
from bench.peers.report import machine
from bench.programs import compiled
from bench.results import write_results
from bench.sequences import POSITION


def main() -> None:
    options = _parser().parse_args()
    say = _progress()
    model = options.model or str(model_a(options.cache / "models" / "A"))
    wanted = [found for name, found in plan(model, options.precision).items() if name in options.only]
    experiments = [_only_batches(experiment, options.batches) for experiment in wanted]
    with held(options.lock, exclusive=False):
        specs = [spec for experiment in experiments for spec in experiment.programs]
        folders = compiled(specs, options.cache / "programs", options.workers, say)
    effort = Effort(options.warm_ups, options.samples)
    settings = Settings(
        options.threads,
        effort,
        options.slow_ms,
        options.fewest,
        options.openings,
        options.control,
        not options.separate_weights,
        options.lock,
    )
    runner = Runner(folders, settings, say)
    results: list[ExperimentResult] = []
    for experiment in experiments:
        results.append(runner.run(experiment))
        _write(results, options, model)
    print((options.out / "experiments.md").read_text(encoding="utf-8"))


def _write(results: list[ExperimentResult], options: argparse.Namespace, model: str) -> None:
    settings = {
        "model": Path(model).name,
        "precision": options.precision,
        "threads": str(options.threads),
        "position": str(POSITION),
        "weights file": "one per program" if options.separate_weights else "shared",
        "date": date.today().isoformat(),
    }
    data = {"machine": machine(), "settings": settings, "experiments": [result.to_json() for result in results]}
    write_results(options.out, "experiments", data, markdown(results, machine(), settings).splitlines())
    if importlib.util.find_spec("matplotlib") is not None:
        from bench.experiments.plots import plot_all

        plot_all(results, options.out)


def _only_batches(experiment: Experiment, batches: list[int] | None) -> Experiment:
    """The experiment without the comparisons that have none of these batch sizes."""
    if batches is None:
        return experiment
    kept = tuple(c for c in experiment.comparisons if any(cell.batch in batches for cell in c.cells))
    return Experiment(experiment.name, experiment.title, experiment.limit, kept)


def _progress() -> Callable[[str], None]:
    start = time.monotonic()
    return lambda message: print(f"[{time.monotonic() - start:6.0f} s] {message}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("experiments", __doc__)
    parser.add_argument("--only", nargs="+", choices=("E1", "E2", "E3", "E4"), default=("E1", "E2", "E3", "E4"))
    parser.add_argument("--model", help="Hugging Face directory or hub id")
    parser.add_argument("--precision", choices=("bf16", "fp32", "int8"), default="bf16")
    parser.add_argument("--batches", nargs="+", type=int, help="only the cells of these batch sizes")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--warm-ups", type=int, default=50)
    parser.add_argument("--slow-ms", type=float, default=100.0, help="steps of over this get fewer samples")
    parser.add_argument("--fewest", type=int, default=60, help="samples of the slowest step")
    parser.add_argument("--openings", type=int, default=5, help="sessions that a cell's samples are spread over")
    parser.add_argument("--control", action="store_true", help="compare the baseline with a copy of itself too")
    parser.add_argument("--separate-weights", action="store_true", help="every program keeps its own weights file")
    parser.add_argument("--workers", type=int, default=2, help="programs compiled at a time")
    return add_common(parser, "experiments")


if __name__ == "__main__":
    main()
