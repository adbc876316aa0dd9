"""What a compiled program says of its inputs, outputs and specializations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polybatch.errors import DeviceOpenError, NoMatchingSpecializationError
from polybatch.targets.qaic.names import is_retained
from polybatch.targets.qaic.runtime import Runtime, itemsize

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Binding:
    """One buffer: its place in every call, its element type, and whether the host may leave it out."""

    name: str
    index: int
    dtype: str
    dims: Shape
    size: int
    is_input: bool
    may_be_skipped: bool

    @property
    def retained(self) -> bool:
        """Whether it stays on the device."""
        return is_retained(self.name)


@dataclass(frozen=True)
class IoDescriptor:
    """The bindings by index, and the shape of each binding in every specialization."""

    bindings: tuple[Binding, ...]
    allowed_shapes: tuple[tuple[Shape, ...], ...]

    @classmethod
    def parse(cls, runtime: Runtime, data: bytes) -> IoDescriptor:
        """Read the message; DeviceOpenError for types unknown here and for a cache that the host would have to send."""
        message = runtime.api.IoDesc()
        message.ParseFromString(data)
        dtypes = runtime.dtypes()
        bindings = tuple(
            _binding(runtime, entry, dtypes) for entry in sorted(message.selected_set.bindings, key=_index)
        )
        for binding in bindings:
            if binding.retained and not binding.may_be_skipped:
                raise DeviceOpenError(f"{binding.name} does not stay on the device; compile with -retained-state")
        shapes = tuple(tuple(tuple(entry.dims) for entry in allowed.shapes) for allowed in message.allowed_shapes)
        # A program of one specialization has no list of them.
        return cls(bindings, shapes or (tuple(binding.dims for binding in bindings),))

    def require_allowed(self, shapes: Mapping[str, Shape]) -> None:
        """NoMatchingSpecializationError unless one specialization has all of these shapes, outputs included."""
        at = {binding.name: binding.index for binding in self.bindings}
        if any(all(allowed[at[name]] == shape for name, shape in shapes.items()) for allowed in self.allowed_shapes):
            return
        compiled = "; ".join(str({name: list(allowed[at[name]]) for name in shapes}) for allowed in self.allowed_shapes)
        passed = {name: list(shape) for name, shape in shapes.items()}
        raise NoMatchingSpecializationError(
            f"the device program has no specialization with the shapes {passed}; "
            f"compiled: {compiled}. Compile it again from this program's own files"
        )


def _index(entry: Any) -> int:
    return int(entry.index)


def _binding(runtime: Runtime, entry: Any, dtypes: Mapping[int, str]) -> Binding:
    if entry.type not in dtypes:
        raise DeviceOpenError(f"{entry.name} has the element type {entry.type}, which this version does not know")
    dtype = dtypes[entry.type]
    dims = tuple(entry.dims)
    is_input = entry.dir == runtime.api.BUFFER_IO_TYPE_INPUT
    return Binding(entry.name, entry.index, dtype, dims, entry.size, is_input, bool(entry.is_partial_buf_allowed))


def element_bytes(binding: Binding) -> int:
    """Bytes of one element of the binding."""
    return itemsize(binding.dtype)
