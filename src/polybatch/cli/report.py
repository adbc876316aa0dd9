"""What there is to say about a program on disk, on any machine: facts for people and for ``--json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polybatch.cpu_features import available_features
from polybatch.errors import DeviceRuntimeMissingError, ProgramError
from polybatch.program import Manifest, Program, read_manifest
from polybatch.program.files import absolute, sha256_of
from polybatch.specialization import SpecializationTable


@dataclass(frozen=True)
class FileReport:
    """One file of the manifest; ``problem`` says what is wrong with it (None: nothing found)."""

    name: str
    size: int
    sha256: str
    problem: str | None


@dataclass(frozen=True)
class ProgramReport:
    """A program's manifest and what this machine makes of it.

    missing_features: CPU features that the program needs and this machine lacks. obstacle: why the program does not
    run here (None: it does).
    """

    path: Path
    manifest: Manifest
    table: SpecializationTable
    files: tuple[FileReport, ...]
    missing_features: tuple[str, ...]
    obstacle: str | None

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, the manifest aside."""
        return sum(file.size for file in self.files)

    @property
    def damaged(self) -> tuple[FileReport, ...]:
        """The files with a problem."""
        return tuple(file for file in self.files if file.problem is not None)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self.manifest.kv_cache.bytes_per_slot * self.table.config.full_batch_size

    def to_json(self) -> dict[str, Any]:
        """The manifest, plus what follows from it and from this machine."""
        needed = self.manifest.cpu_features
        return {
            **self.manifest.model_dump(mode="json"),
            "path": str(self.path),
            "max_prompt_len": self.table.max_prompt_len,
            "total_bytes": self.total_bytes,
            "cache_bytes": self.cache_bytes,
            "cpu_features": {
                "needed": list(needed),
                "present": [name for name in needed if name not in self.missing_features],
                "missing": list(self.missing_features),
            },
            "files": {file.name: asdict(file) for file in self.files},
            "runs_here": self.obstacle is None,
            "obstacle": self.obstacle,
        }


def _silent(stage: str) -> None:
    """The default progress callback."""


def report_program(directory: Path, verify: bool = False, progress: Callable[[str], None] = _silent) -> ProgramReport:
    """Read the manifest and look at the files; works for a program that this machine cannot run.

    ``verify`` hashes every file, calling ``progress`` with what is being read. Raises ProgramError when there is no
    readable manifest; damaged files and missing CPU features are part of the report.
    """
    path = absolute(directory)
    manifest = read_manifest(path)
    files = []
    for name, entry in manifest.files.items():
        if verify:
            progress(f"checking {name}")
        problem = _file_problem(path / name, entry.size, entry.sha256 if verify else None)
        files.append(FileReport(name, entry.size, entry.sha256, problem))
    available = available_features()
    missing = tuple(name for name in manifest.cpu_features if name not in available)
    return ProgramReport(path, manifest, manifest.build_table(), tuple(files), missing, _obstacle(path))


def _file_problem(path: Path, size: int, sha256: str | None) -> str | None:
    if not path.is_file():
        return "missing"
    found = path.stat().st_size
    if found != size:
        return f"has {found} bytes"
    if sha256 is not None and sha256_of(path) != sha256:
        return "changed (sha256 differs)"
    return None


def _obstacle(path: Path) -> str | None:
    try:
        if Program.load(path).target == "qaic":
            from polybatch.targets.qaic.runner import require_runnable

            require_runnable(path)
    except (ProgramError, DeviceRuntimeMissingError) as error:
        return str(error)
    return None
