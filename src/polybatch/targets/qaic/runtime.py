"""The platform's Python modules, imported when a session is opened."""

from __future__ import annotations

import importlib
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from polybatch.errors import DeviceRuntimeMissingError
from polybatch.targets.qaic.sdk import ENVIRONMENT, sdk_root

_BFLOAT16_NUMBER = 11  # of modules that have no name for it
_TYPES = {
    "FLOAT_TYPE": "float32",
    "FLOAT_16_TYPE": "float16",
    "INT8_Q_TYPE": "int8",
    "INT8_TYPE": "int8",
    "UINT8_Q_TYPE": "uint8",
    "INT16_Q_TYPE": "int16",
    "INT32_Q_TYPE": "int32",
    "INT32_I_TYPE": "int32",
    "INT64_I_TYPE": "int64",
}


@dataclass(frozen=True)
class Runtime:
    """``qaicrt``, the runtime, and ``QAicApi_pb2``, the messages that describe a compiled program."""

    qaicrt: Any
    api: Any

    def ok(self, status: Any) -> bool:
        """Whether a call of the runtime succeeded."""
        return bool(status == self.qaicrt.QStatus.QS_SUCCESS)

    def dtypes(self) -> dict[int, str]:
        """numpy's name of each element type, by its number; "bfloat16" has none in numpy."""
        numbers = {getattr(self.api, name): dtype for name, dtype in _TYPES.items() if hasattr(self.api, name)}
        return {**numbers, getattr(self.api, "BFLOAT16_TYPE", _BFLOAT16_NUMBER): "bfloat16"}


def itemsize(dtype: str) -> int:
    """Bytes per element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def load_runtime() -> Runtime:
    """Import both modules, from the SDK's own folders if need be. Raises DeviceRuntimeMissingError."""
    dev = sdk_root() / "dev"
    return Runtime(_load("qaicrt", dev / "lib" / platform.machine()), _load("QAicApi_pb2", dev / "python"))


def _load(name: str, folder: Path) -> ModuleType:
    sys.path.append(str(folder))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DeviceRuntimeMissingError(
            f"cannot import {name} ({error}), neither as an installed package nor from {folder}: running a program of "
            f"target qaic needs the platform and apps SDKs of Cloud AI; install them, or set {ENVIRONMENT}"
        ) from error
    finally:
        sys.path.remove(str(folder))
