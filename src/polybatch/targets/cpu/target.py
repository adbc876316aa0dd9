"""The ``cpu`` target: one AOTInductor graph over native kernels, for one instruction set, with mapped weights."""

from __future__ import annotations

from pathlib import Path

from polybatch.kv_layout import CacheSpec
from polybatch.targets.base import BuildRequest, BuildResult
from polybatch.targets.cpu.runner import CpuRunner


class CpuTarget:
    """Needs a C++ compiler to build; none to run."""

    def build(self, request: BuildRequest, folder: Path) -> BuildResult:
        # The builder imports transformers, which running a program does not need.
        from polybatch.targets.cpu.build import build_program

        return build_program(request, folder)

    def open(self, folder: Path, cache: CacheSpec, threads: int) -> CpuRunner:
        return CpuRunner(folder, cache, threads)


TARGET = CpuTarget()
