"""``weights.safetensors``: written aligned, read by mapping the file into memory.

Format: github.com/huggingface/safetensors (8-byte little-endian header length, JSON header, data without holes).
The header is padded with spaces so that the data starts on a page, and tensors are ordered so that the kernels find
them on cache lines as far as a format without holes allows.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from polybatch.errors import ProgramCorruptError

if TYPE_CHECKING:
    import torch

PAGE_BYTES = 4096
LINE_BYTES = 64
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
# format name -> (torch name, bytes per element)
_DTYPES = {
    "F32": ("float32", 4),
    "BF16": ("bfloat16", 2),
    "F16": ("float16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
}
_FORMAT_NAMES = {f"torch.{torch_name}": name for name, (torch_name, _) in _DTYPES.items()}


def write_safetensors(
    path: str | Path, tensors: "Mapping[str, torch.Tensor]", metadata: Mapping[str, str] | None = None
) -> int:
    """Write a safetensors file, one tensor at a time, and return its size in bytes.

    The data section starts at a multiple of 4096 bytes. Tensors of a multiple of 64 bytes come first, largest first,
    so each starts at a multiple of 64; the others follow by falling element size, so each is aligned to its elements.
    Raises TypeError for a dtype other than float32, bfloat16, float16, int64, int32, int8 and uint8.
    """
    import torch

    order = _layout(tensors)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        dtype = _FORMAT_NAMES[str(tensor.dtype)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % PAGE_BYTES)
    with Path(path).open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name in order:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                file.write(flat.view(torch.uint8).numpy().data)
    return _LENGTH_BYTES + len(text) + end


def map_safetensors(path: str | Path) -> "dict[str, torch.Tensor]":
    """The tensors of a safetensors file, mapped and not copied, in the order of the file.

    The mapping is private: writing to a tensor does not change the file. Pages are read when first used. Raises
    ProgramCorruptError for a missing or truncated file and for a header that does not describe it.
    """
    import torch

    path = Path(path)
    size, start, header = _read_header(path)
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    _require_no_holes(path, entries, size - start)
    storage = cast(torch.UntypedStorage, torch.UntypedStorage.from_file(str(path), False, size))
    tensors = {}
    for name, entry in entries:
        torch_name, element = _DTYPES[entry["dtype"]]
        offset = start + entry["data_offsets"][0]
        if offset % element:
            raise _corrupt(path, f"tensor {name} starts at byte {offset}, which is not a multiple of {element}")
        empty = torch.empty(0, dtype=getattr(torch, torch_name))
        tensors[name] = empty.set_(storage, offset // element, tuple(entry["shape"]), ())
    return tensors


def _layout(tensors: "Mapping[str, torch.Tensor]") -> list[str]:
    keys = {}
    for name in tensors:
        tensor = tensors[name]
        if str(tensor.dtype) not in _FORMAT_NAMES:
            raise TypeError(f"tensor {name} has dtype {tensor.dtype}; weights are {', '.join(_FORMAT_NAMES)}")
        size = tensor.numel() * tensor.element_size()
        keys[name] = (0, -size, name) if size % LINE_BYTES == 0 else (1, -tensor.element_size(), name)
    return sorted(keys, key=keys.__getitem__)


def _read_header(path: Path) -> tuple[int, int, dict[str, Any]]:
    """(file size, first byte of the data, entries by name), each entry checked on its own."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            start = _LENGTH_BYTES + length
            if start > size or length > _MAX_HEADER_BYTES:
                raise _corrupt(path, f"its header claims {length} bytes, the file has {size}")
            header = json.loads(file.read(length))
    except OSError as error:
        raise _corrupt(path, f"it cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _corrupt(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        _require_entry(path, name, entry)
    return size, start, header


def _require_entry(path: Path, name: str, entry: Any) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in _DTYPES:
        raise _corrupt(path, f"tensor {name} has no dtype that programs use")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _corrupt(path, f"tensor {name} has no valid shape and data_offsets")
    expected = math.prod(shape) * _DTYPES[entry["dtype"]][1]
    if offsets[1] - offsets[0] != expected:
        raise _corrupt(path, f"tensor {name} has {offsets[1] - offsets[0]} bytes, its shape needs {expected}")


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 62 for value in values)


def _require_no_holes(path: Path, entries: Iterable[tuple[str, Any]], data_bytes: int) -> None:
    end = 0
    for name, entry in entries:
        if entry["data_offsets"][0] != end:
            raise _corrupt(path, f"tensor {name} does not start where the one before it ends")
        end = entry["data_offsets"][1]
    if end != data_bytes:
        raise _corrupt(path, f"its tensors take {end} bytes, the file holds {data_bytes}")


def _corrupt(path: Path, reason: str) -> ProgramCorruptError:
    return ProgramCorruptError(f"{path} is damaged: {reason}; recompile the program")
