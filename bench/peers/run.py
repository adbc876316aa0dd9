"""polybatch beside what users would pick instead: ``python -m bench.peers.run --models A B --precisions bf16 int8``.

Writes OUT/peers.json, OUT/peers.md and OUT/*.png. ``python -m bench.peers.install`` makes the peers' environments
first; a peer that is missing, or that cannot do some work, is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path

from bench.models import MODELS
from bench.peers import memory, report
from bench.peers.catalog import OURS, PEERS, why_missing, worker_python
from bench.peers.gguf_file import write_gguf
from bench.peers.install import CACHE, environment_python
from bench.peers.lease import Lease
from bench.peers.measure import Interleaver
from bench.peers.process import REPOSITORY, PeerError, PeerProcess
from bench.peers.protocol import Cell, Config, Load
from bench.peers.results import Measurement, Results
from bench.results import default_out, write_results

CELLS = [Cell(128), Cell(32), Cell(8), Cell(2), Cell(1), Cell(8, 7), Cell(1, 7)]  # largest first: it fills the slots
STEP_SLOTS, STEP_CTX_LEN, POSITION = 128, 2048, 512
PREFILL_TOKENS = 512
LOAD = Load(requests=64, prompt_tokens=128, new_tokens=64)
LOAD_CTX_LEN = 256


class Run:
    """One run over models, precisions and peers; ``results`` grows as it goes and is saved after every group."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        names = [OURS, *(name for name in options.peers if name != OURS)]
        missing = {name: reason for name in names if (reason := why_missing(name, options.cache))}
        self._peers = [name for name in names if name not in missing]
        self._lease = Lease(options.lock)
        settings = {key: str(value) for key, value in vars(options).items()}
        self.results = Results(report.machine(), {**settings, "date": date.today().isoformat()}, missing=missing)
        self._earlier = _earlier(options.out)
        options.out.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        for name in self.results.missing:
            print(f"{name}: {self.results.missing[name]}", flush=True)
        for model in self._options.models:
            folder = self._options.cache / "models" / model
            folder.parent.mkdir(parents=True, exist_ok=True)
            MODELS[model](folder)
            for precision in self._options.precisions:
                peers = [name for name in self._peers if precision in PEERS[name].precisions]
                for name in set(self._peers) - set(peers):
                    self._note_absent(model, precision, name)
                if "steps" in self._options.work:
                    self._steps(folder, precision, peers)
                if "generate" in self._options.work:
                    self._generate(folder, precision, peers)

    def _steps(self, folder: Path, precision: str, peers: Sequence[str]) -> None:
        shape = (STEP_SLOTS, STEP_CTX_LEN, POSITION)
        sizes = {name: memory.peer_bytes(name, folder, precision, *shape) for name in peers if name != "openvino_genai"}
        budget = memory.available_bytes() - memory.RESERVE_BYTES
        if self._options.memory_gib:
            budget = min(budget, self._options.memory_gib << 30)
        for group in memory.group(sizes, budget):
            with self._open(group, self._config(folder, precision, "steps", *shape)) as workers:
                turns = Interleaver(workers, (folder.name, precision), self._options.samples, self._lease, say)
                self._keep(turns.prefill(PREFILL_TOKENS), group)
                for cell in CELLS:
                    if not self._options.cells or cell.name in self._options.cells:
                        self._keep(turns.decode(cell), group)

    def _generate(self, folder: Path, precision: str, peers: Sequence[str]) -> None:
        generating = [name for name in peers if name != "openvino"]
        for slots in self._options.slots:
            config = self._config(folder, precision, "generate", slots, LOAD_CTX_LEN, 0)
            with self._open(generating, config) as workers:
                rounds = max(2, self._options.samples // 3)
                turns = Interleaver(workers, (folder.name, precision), rounds, self._lease, say)
                self._keep(turns.end_to_end(LOAD, f"{slots} at a time"), generating)

    def _config(self, folder: Path, precision: str, task: str, slots: int, ctx_len: int, position: int) -> Config:
        gguf = write_gguf(folder, folder.with_name(f"{folder.name}-{precision}.gguf"), precision)
        derived = self._options.cache / "derived"
        derived.mkdir(exist_ok=True)
        threads = self._options.threads
        return Config(str(folder), str(gguf), str(derived), precision, slots, ctx_len, position, threads, task)

    @contextmanager
    def _open(self, names: Sequence[str], config: Config) -> Iterator[dict[str, PeerProcess]]:
        """Start the workers; one that cannot open the model is noted and left out."""
        workers: dict[str, PeerProcess] = {}
        try:
            for name in names:
                log = self._options.out / f"{name}.log"
                variables = {"OMP_NUM_THREADS": str(config.threads), **PEERS[name].variables}
                worker = PeerProcess(
                    worker_python(name, self._options.cache), f"bench.peers.{name}_worker", variables, log
                )
                try:
                    self._lease.shared()
                    about = worker.ask("open", config=asdict(config))["about"]
                except PeerError as error:
                    worker.close()
                    say(f"{name} {Path(config.model).name} {config.precision}: {error}")
                    row = Measurement(Path(config.model).name, config.precision, "open", name, "", reason=str(error))
                    self.results.measurements.append(row)
                    continue
                workers[name] = worker
                self.results.about[f"{name} {config.precision} {config.task}"] = about
            yield workers
        finally:
            self._lease.release()
            for worker in workers.values():
                worker.close()

    def _keep(self, measurements: Sequence[Measurement], group: Sequence[str]) -> None:
        for measurement in measurements:
            measurement.group = "+".join(group)
        self.results.measurements += measurements
        self.write()

    def write(self) -> None:
        """OUT/peers.json and OUT/peers.md, with what an earlier run has measured and this one has not."""
        everything = self.results.with_earlier(self._earlier)
        write_results(self._options.out, "peers", everything.to_json(), report.markdown(everything).splitlines())

    def _note_absent(self, model: str, precision: str, name: str) -> None:
        reason = f"has no {precision} on this kind of machine"
        self.results.measurements.append(Measurement(model, precision, "open", name, "", reason=reason))


def _earlier(out: Path) -> Results | None:
    path = out / "peers.json"
    return Results.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def say(line: str) -> None:
    print(line, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "int8", "fp32"), default=["bf16", "int8", "fp32"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--work", nargs="+", choices=("steps", "generate"), default=["steps", "generate"])
    parser.add_argument("--cells", nargs="+", choices=[cell.name for cell in CELLS], help="default: all")
    parser.add_argument("--samples", type=int, default=7, help="rounds, each a turn of several steps per peer")
    parser.add_argument("--slots", nargs="+", type=int, default=[32, 64], help="requests at a time, end to end")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--memory-gib", type=int, help="most that open peers may take together; default: what is free")
    parser.add_argument("--out", type=Path, default=default_out("peers"))
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--lock", type=Path, help="file to lock around timings, for machines that run other things")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    run = Run(options)
    run.run()
    run.write()
    plot = [str(environment_python("plots", options.cache)), "-m", "bench.peers.plots", str(options.out.resolve())]
    if why := why_missing_plots(options.cache):
        say(f"no plots: {why}")
    else:
        subprocess.run(plot, cwd=REPOSITORY, check=True)
    say(f"wrote {options.out / 'peers.md'}")
    return 0


def why_missing_plots(cache: Path) -> str:
    return "" if environment_python("plots", cache).is_file() else "run python -m bench.peers.install --peers plots"


if __name__ == "__main__":
    sys.exit(main())
