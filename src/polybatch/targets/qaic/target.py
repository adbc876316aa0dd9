"""The ``qaic`` target: Qualcomm Cloud AI 100. Compiling needs the extra ``qaic``, running the platform's runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from polybatch.errors import CompilerError
from polybatch.kv_layout import CacheSpec
from polybatch.targets.base import BuildRequest, BuildResult, StepRunner
from polybatch.targets.qaic.sdk import find_sdk

if TYPE_CHECKING:
    from polybatch.targets.qaic.runner import QaicRunner

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class QaicTarget:
    """``device_ids`` names the devices that programs are opened on; None leaves the choice to the runtime."""

    device_ids: tuple[int, ...] | None = None

    def build(self, request: BuildRequest, folder: Path) -> BuildResult:
        find_sdk()  # what is wrong with the SDK's place shows before the work
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            raise CompilerError(f"target qaic needs {', '.join(missing)} to compile; pip install 'polybatch[qaic]'")
        from polybatch.targets.qaic.build import build_program

        return build_program(request, folder)

    def open(self, folder: Path, cache: CacheSpec, threads: int) -> QaicRunner:
        from polybatch.targets.qaic.runner import QaicRunner

        return QaicRunner(folder, cache, self.device_ids)

    def open_for_check(self, folder: Path, cache: CacheSpec, threads: int) -> StepRunner:
        """The exported graph on this machine's CPU, as the device would run it; what a compile checks."""
        from polybatch.targets.qaic.onnx_runner import OnnxRunner

        return OnnxRunner(folder, cache, threads)

    def finish(self, request: BuildRequest, folder: Path, built: BuildResult) -> BuildResult:
        """Compile for the device, or leave a script that does."""
        from polybatch.targets.qaic.build import finish_program

        return finish_program(request, folder, built)

    def on_devices(self, device_ids: tuple[int, ...]) -> QaicTarget:
        """This target on these devices."""
        return replace(self, device_ids=device_ids)


TARGET = QaicTarget()
