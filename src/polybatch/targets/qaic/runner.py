"""Steps of a compiled program on the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polybatch.errors import ProgramIncompatibleError
from polybatch.kv_layout import CacheSpec
from polybatch.specialization import Specialization
from polybatch.targets.base import Float32Array, SlotKV
from polybatch.targets.qaic.device import QaicDevice
from polybatch.targets.qaic.fixed_shapes import Arrays, GraphRunner
from polybatch.targets.qaic.names import LOGITS, QPC_BINARY, QPC_DIR
from polybatch.targets.qaic.record import Record
from polybatch.targets.qaic.runtime import load_runtime


def require_compiled(folder: Path) -> None:
    """ProgramIncompatibleError for a program that is exported and no more."""
    if not (folder / QPC_DIR / QPC_BINARY).is_file():
        raise ProgramIncompatibleError(
            f"{folder} is exported but not compiled for the device; run compile.sh in it on a machine with the SDK"
        )


def require_runnable(folder: Path) -> None:
    """ProgramIncompatibleError or DeviceRuntimeMissingError where no session can be opened; looks for no device."""
    require_compiled(folder)
    load_runtime()


class QaicRunner(GraphRunner):
    """A :class:`polybatch.targets.base.StepRunner` whose cache lies on the device.

    Raises ProgramIncompatibleError (not compiled for the device yet), DeviceRuntimeMissingError and DeviceOpenError.
    """

    def __init__(self, folder: Path, cache: CacheSpec, device_ids: tuple[int, ...] | None) -> None:
        require_compiled(folder)
        devices = _device_ids(Record.read(folder).options.num_devices, device_ids)
        self._device: QaicDevice | None = QaicDevice(load_runtime(), folder / QPC_DIR, devices)
        bindings = self._device.descriptor.bindings
        super().__init__(tuple(entry.name for entry in bindings if entry.is_input))
        self._vocab = next(entry.dims[-1] for entry in bindings if entry.name == LOGITS)

    def _run_row(self, row: Specialization, arrays: Arrays) -> Float32Array:
        assert self._device is not None
        outputs = {LOGITS: (row.batch_size, row.logits_rows, self._vocab)}
        return self._device.run(arrays, outputs)[LOGITS].astype(np.float32)

    def read_slot(self, slot: int) -> SlotKV:
        """RuntimeError: the device keeps its cache to itself."""
        raise RuntimeError("the cache of a qaic program stays on the device and cannot be read")

    def reset(self) -> None:
        """A new activation has a new cache."""
        assert self._device is not None
        self._device.deactivate()
        self._device.activate()

    def close(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            device.deactivate()


def _device_ids(needed: int, given: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if given is not None and len(given) != needed:
        raise ValueError(f"the program was compiled for num_devices={needed}, not for {len(given)} device ids")
    return tuple(range(needed)) if given is None and needed > 1 else given
