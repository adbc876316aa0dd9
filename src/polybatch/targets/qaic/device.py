"""A compiled program on one or more devices: loaded, activated, and run with arrays by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polybatch.errors import (
    DeviceBufferError,
    DeviceExecutionError,
    DeviceOpenError,
    DeviceOutputError,
    DeviceQueueError,
)
from polybatch.targets.qaic.io_descriptor import Binding, IoDescriptor, Shape, element_bytes
from polybatch.targets.qaic.runtime import Runtime

_TIMEOUT_MS = 60_000
_SKIPPED: Shape = (0,)


class QaicDevice:
    """Buffers and the calls of the runtime, in the runtime's order; not thread-safe.

    The runtime finds the specialization by the shapes of all buffers passed, those of outputs included. Buffers that
    stay on the device are passed empty.
    """

    def __init__(self, runtime: Runtime, qpc: Path, device_ids: Sequence[int] | None) -> None:
        self._runtime = runtime
        self._exec: Any = None
        try:
            self._open(qpc, device_ids)
            self.activate()
        except RuntimeError as error:  # what the runtime itself raises
            raise DeviceOpenError(f"cannot open {qpc} on {_devices(device_ids)}: {error}") from error

    def _open(self, qpc: Path, device_ids: Sequence[int] | None) -> None:
        rt = self._runtime.qaicrt
        self._context = rt.Context() if device_ids is None else rt.Context(rt.QIDList(list(device_ids)))
        self._queue = rt.Queue(self._context, 0 if device_ids is None else device_ids[0])
        compiled = rt.Qpc(str(qpc))
        status, data = compiled.getIoDescriptor()
        self._require(status, DeviceOpenError, f"cannot read the inputs and outputs of {qpc}")
        self.descriptor = IoDescriptor.parse(self._runtime, bytes(data))
        properties = rt.QAicProgramProperties()
        properties.dataPathTimeoutMs = _TIMEOUT_MS
        single = None
        if device_ids is not None and len(device_ids) > 1:
            properties.devMapping = ":".join(str(device) for device in device_ids)
        elif device_ids is not None:
            single = device_ids[0]
        self._program = rt.Program(self._context, single, compiled, properties)
        self._require(
            self._program.load(),
            DeviceOpenError,
            f"cannot load {qpc} on {_devices(device_ids)}; is another program there?",
        )

    def activate(self) -> None:
        """Take the device's cores, with a new cache."""
        self._require(self._program.activate(), DeviceOpenError, "cannot activate the program; are its cores taken?")
        self._exec = self._runtime.qaicrt.ExecObj(self._context, self._program)
        bindings = self.descriptor.bindings
        self._buffers: list[Any] = [self._buffer(bytes(0 if entry.retained else entry.size)) for entry in bindings]
        self._dims: list[tuple[int, Shape]] = [
            (element_bytes(entry), _SKIPPED if entry.retained else entry.dims) for entry in bindings
        ]

    def deactivate(self) -> None:
        """Give the cores back and forget the cache; safe to call twice."""
        if self._exec is not None:
            self._exec = None
            self._program.deactivate()

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, Shape]) -> dict[str, NDArray[Any]]:
        """One call. ``outputs`` gives the shape of every output that comes back; each is in the type of its binding.

        Raises NoMatchingSpecializationError before anything is sent, and a DeviceError of its own for each call of
        the runtime that fails; what the cache holds after one of these is not known.
        """
        self.descriptor.require_allowed({**{name: array.shape for name, array in inputs.items()}, **outputs})
        by_name = {binding.name: binding for binding in self.descriptor.bindings}
        for name, array in inputs.items():
            self._set(by_name[name], array.shape, np.ascontiguousarray(array, by_name[name].dtype).tobytes())
        for name, shape in outputs.items():
            binding = by_name[name]
            self._set(binding, shape, bytes(int(np.prod(shape)) * element_bytes(binding)))
        results = self._execute()
        return {name: _array(by_name[name], shape, results[by_name[name].index]) for name, shape in outputs.items()}

    def _execute(self) -> Sequence[Any]:
        rt = self._runtime.qaicrt
        dims = rt.BufferDimensionsVecRef(self._dims)
        self._require(self._exec.setData(self._buffers, dims), DeviceBufferError, "the runtime refused the buffers")
        self._require(self._queue.enqueue(self._exec), DeviceQueueError, "the runtime could not enqueue the step")
        self._require(
            self._exec.waitForCompletion(), DeviceExecutionError, "the step failed on the device; see the driver's log"
        )
        status, results = self._exec.getData()
        self._require(status, DeviceOutputError, "the runtime could not give the step's outputs")
        buffers: Sequence[Any] = results
        return buffers

    def _set(self, binding: Binding, shape: Shape, data: bytes) -> None:
        self._buffers[binding.index] = self._buffer(data)
        self._dims[binding.index] = (element_bytes(binding), shape)

    def _buffer(self, data: bytes) -> Any:
        return self._runtime.qaicrt.QBuffer(data)

    def _require(self, status: Any, error: type[Exception], what: str) -> None:
        if not self._runtime.ok(status):
            raise error(f"{what} (status {status})")


def _array(binding: Binding, shape: Shape, buffer: Any) -> NDArray[Any]:
    """The elements as float32 or as they are; numpy has no bfloat16, which is the upper half of a float32."""
    data = bytes(buffer)
    if binding.dtype == "bfloat16":
        halves = np.frombuffer(data, np.uint16).astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, binding.dtype).reshape(shape)


def _devices(device_ids: Sequence[int] | None) -> str:
    return "the first free device" if device_ids is None else f"devices {', '.join(map(str, device_ids))}"
