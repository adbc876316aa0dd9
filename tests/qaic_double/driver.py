"""A double of ``qaicrt``: the same calls, the same matching of shapes, and ONNX Runtime instead of a device.

A program's cache lies "on the device": NaN when it is activated, changed by steps, never passed. ``fail_at`` makes
calls fail; ``steps`` is what has run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

SUFFIX = "_RetainedState"
DTYPES = {0: np.float32, 1: np.float16, 7: np.int64, 8: np.int8, 11: np.uint16}

fail_at: set[str] = set()
steps: list[dict[str, tuple[int, ...]]] = []
opened: list[tuple[tuple[int, ...] | None, str | None]] = []
live_programs: list[Program] = []


class QStatus(Enum):
    QS_SUCCESS = 0
    QS_ERROR = 1


def _status(call: str) -> QStatus:
    return QStatus.QS_ERROR if call in fail_at else QStatus.QS_SUCCESS


class QIDList(list):  # type: ignore[type-arg]
    pass


@dataclass
class Context:
    devices: QIDList | None = None


@dataclass
class Queue:
    context: Context
    device: int

    def enqueue(self, exec_obj: ExecObj) -> QStatus:
        exec_obj.queued = True
        return _status("enqueue")


class QBuffer:
    def __init__(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.data = data

    def __bytes__(self) -> bytes:
        return self.data


class BufferDimensionsVecRef(list):  # type: ignore[type-arg]
    pass


class QAicProgramProperties:
    def __init__(self) -> None:
        self.dataPathTimeoutMs = 0
        self.devMapping: str | None = None


class Qpc:
    def __init__(self, path: str) -> None:
        self.folder = Path(path)
        if "Qpc" in fail_at:
            raise RuntimeError("not a program")
        self.described: dict[str, Any] = json.loads((self.folder / "programqpc.bin").read_text())

    def getIoDescriptor(self) -> tuple[QStatus, bytes]:
        return _status("getIoDescriptor"), json.dumps(self.described).encode()


class Program:
    def __init__(self, context: Context, device: int | None, qpc: Qpc, properties: QAicProgramProperties) -> None:
        assert properties.dataPathTimeoutMs > 0
        self.qpc = qpc
        self.devices = properties.devMapping.split(":") if properties.devMapping else [device]
        opened.append((None if context.devices is None else tuple(context.devices), properties.devMapping))
        self.active = False

    def load(self) -> QStatus:
        if len(self.devices) != self.qpc.described["devices"]:
            return QStatus.QS_ERROR
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self.qpc.folder))
        self.session = ort.InferenceSession((self.qpc.folder / "graph.onnx").read_bytes(), options)
        return _status("load")

    def activate(self) -> QStatus:
        if self.active or "activate" in fail_at:
            return QStatus.QS_ERROR
        self.active = True
        live_programs.append(self)
        self.memory = {
            entry["name"]: np.full(entry["dims"], math.nan, np.float32)
            for entry in self.qpc.described["bindings"]
            if entry["is_partial_buf_allowed"] and entry["dir"] == 0
        }
        return QStatus.QS_SUCCESS

    def deactivate(self) -> QStatus:
        self.active = False
        live_programs.remove(self)
        return _status("deactivate")


class ExecObj:
    def __init__(self, context: Context, program: Program) -> None:
        assert program.active
        self.program = program
        self.bindings = program.qpc.described["bindings"]
        self.queued = False

    def setData(self, buffers: list[QBuffer], dims: BufferDimensionsVecRef) -> QStatus:
        assert isinstance(dims, BufferDimensionsVecRef)
        assert len(buffers) == len(dims) == len(self.bindings)
        for entry, buffer, (itemsize, shape) in zip(self.bindings, buffers, dims, strict=True):
            if len(buffer.data) != itemsize * math.prod(shape):
                return QStatus.QS_ERROR
            if not buffer.data and not entry["is_partial_buf_allowed"]:
                return QStatus.QS_ERROR
        self.buffers, self.dims = buffers, [(itemsize, list(shape)) for itemsize, shape in dims]
        return _status("setData")

    def waitForCompletion(self) -> QStatus:
        assert self.queued
        self.queued = False
        if not self._matches():
            print("No matching dimension found")
            return QStatus.QS_ERROR
        if "waitForCompletion" in fail_at:
            return QStatus.QS_ERROR
        self._execute()
        return QStatus.QS_SUCCESS

    def getData(self) -> tuple[QStatus, list[QBuffer]]:
        return _status("getData"), self.results

    def _matches(self) -> bool:
        """All dims of one specialization, outputs too; a skipped buffer fits any."""
        described = self.program.qpc.described
        rows = described["allowed_shapes"] or [[(entry["type"], entry["dims"]) for entry in self.bindings]]
        return any(
            all(
                not buffer.data or (itemsize == np.dtype(DTYPES[kind]).itemsize and shape == dims)
                for buffer, (itemsize, shape), (kind, dims) in zip(self.buffers, self.dims, row, strict=True)
            )
            for row in rows
        )

    def _execute(self) -> None:
        feeds: dict[str, Any] = dict(self.program.memory)
        for entry, buffer, (_, shape) in zip(self.bindings, self.buffers, self.dims, strict=True):
            if entry["dir"] == 0 and buffer.data:
                feeds[entry["name"]] = np.frombuffer(buffer.data, DTYPES[entry["type"]]).reshape(shape)
        steps.append({name: array.shape for name, array in feeds.items() if name not in self.program.memory})
        names = [entry["name"] for entry in self.bindings if entry["dir"] == 1]
        outputs = dict(zip(names, self.program.session.run(names, feeds), strict=True))
        self.results = [QBuffer(b"") for _ in self.bindings]
        for entry in self.bindings:
            if entry["name"].endswith(SUFFIX):
                self.program.memory[entry["name"].removesuffix(SUFFIX)] = outputs[entry["name"]]
            elif entry["dir"] == 1:
                self.results[entry["index"]] = QBuffer(outputs[entry["name"]].tobytes())
