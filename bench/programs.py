"""The programs that the benchmarks run: compiled once per request and state of the sources, kept in a folder."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polybatch
from polybatch import Program

PREFILL_CHUNK = 128
CTX_LEN = 2048
WEIGHTS = "weights.safetensors"

Say = Callable[[str], None]


@dataclass(frozen=True)
class ProgramSpec:
    """One request to the compiler.

    model: Hugging Face directory or hub id. precision: "bf16", "fp32", "int8" or "int8-weight-only" (both bfloat16
    elsewhere).
    drafted: the values of K; None compiles no speculative rows.
    """

    model: str
    precision: str
    batch_sizes: tuple[int, ...]
    full_batch_size: int
    drafted: tuple[int, ...] | None = None
    ctx_len: int = CTX_LEN

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``AutoModelForCausalLM.compile`` is given."""
        arguments: dict[str, Any] = {
            "batch_size": list(self.batch_sizes),
            "continuous_batching": True,
            "full_batch_size": self.full_batch_size,
            "ctx_len": self.ctx_len,
            "prefill_seq_len": PREFILL_CHUNK,
        }
        if self.drafted is not None:
            arguments["num_speculative_tokens"] = list(self.drafted)
        if self.precision.startswith("int8"):
            arguments["weights"] = self.precision
        return arguments

    def folder(self, cache: Path) -> Path:
        """Where the program of this request lies, whether compiled yet or not."""
        digest = hashlib.sha256(f"{self!r} {_sources_digest()} {_weights_state(self.model)}".encode())
        return cache / f"{Path(self.model).name}-{digest.hexdigest()[:16]}.poly"


def compile_spec(spec: ProgramSpec, folder: Path, *, profile: bool = False, progress: Say | None = None) -> None:
    """Compile into ``folder``. ``profile`` False leaves out the step times, which only the engine uses."""
    model = polybatch.AutoModelForCausalLM.from_pretrained(
        spec.model, dtype="float32" if spec.precision == "fp32" else "bfloat16"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a table that does not reach full_batch_size is what a baseline is
        model.compile(folder, profile=profile, progress=progress or (lambda stage: None), **spec.arguments)


def compiled(specs: Iterable[ProgramSpec], cache: Path, workers: int, say: Say) -> dict[ProgramSpec, Path]:
    """The folders of all specs; those that are not in ``cache`` are compiled, ``workers`` at a time."""
    folders = {spec: spec.folder(cache) for spec in specs}
    missing = {spec: folder for spec, folder in folders.items() if not folder.is_dir()}
    if not missing:
        return folders
    cache.mkdir(parents=True, exist_ok=True)
    say(f"compiling {len(missing)} programs into {cache}")
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        jobs = {spec: pool.submit(compile_spec, spec, folder) for spec, folder in missing.items()}
        for done, (spec, job) in enumerate(jobs.items(), 1):
            job.result()
            say(f"  {done}/{len(jobs)} batch sizes {list(spec.batch_sizes)} of {spec.full_batch_size} slots")
    return folders


def share_weights(folders: Iterable[Path]) -> None:
    """Make byte-identical weight files of different programs one file, by hard links.

    Two copies of the same weights lie on different pages, and one can be read some percent faster than the other: luck
    that has nothing to do with what the programs do.
    """
    first: dict[str, Path] = {}
    for folder in folders:
        digest = Program.load(folder).manifest.files[WEIGHTS].sha256
        weights, original = folder / WEIGHTS, first.setdefault(digest, folder / WEIGHTS)
        if not weights.samefile(original):
            _replace(weights, partial(os.link, original))


def separate_weights(folders: Iterable[Path]) -> None:
    """Undo :func:`share_weights`."""
    for folder in folders:
        weights = folder / WEIGHTS
        if weights.stat().st_nlink > 1:
            _replace(weights, partial(shutil.copyfile, weights))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    write(temporary)
    temporary.replace(path)


def copy_program(folder: Path) -> Path:
    """A copy of a program beside it, made once; it has its own weights file."""
    copy = folder.with_name(f"copy-of-{folder.name}")
    if not copy.is_dir():
        shutil.copytree(folder, copy)
    return copy


@functools.cache
def _sources_digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(polybatch.__file__).parent.rglob("*")):
        if source.suffix in (".py", ".cpp", ".h"):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _weights_state(model: str) -> list[tuple[str, int, int]]:
    """Name, size and time of the weight files of a local model, so that other weights make another program."""
    files = sorted(Path(model).glob("*.safetensors"))
    return [(file.name, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
