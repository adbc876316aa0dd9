"""Runs a cpu program: loads kernels.so and graph.so, maps the weights, keeps the cache."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polybatch.errors import ProgramCorruptError, ProgramError
from polybatch.kv_layout import CacheSpec, KVLayout, LayerKV
from polybatch.targets.base import Float32Array, Int64Array, SlotKV
from polybatch.targets.cpu.native import KernelLibrary
from polybatch.targets.cpu.packing import copy_positions, kv_head_elements, unpack_keys, unpack_values
from polybatch.targets.cpu.padding import live_step
from polybatch.weights import PAGE_BYTES, map_safetensors

GRAPH = "graph.so"
KERNELS = "kernels.so"
WEIGHTS = "weights.safetensors"


def cache_layout(cache: CacheSpec) -> KVLayout:
    """Where the kernels keep each layer's keys and values inside a slot."""
    dtype = getattr(torch, cache.dtype)

    def head_elements(layer: LayerKV, ctx_len: int) -> tuple[int, int]:
        return kv_head_elements(layer.key_dim, layer.value_dim, ctx_len, dtype)

    return KVLayout.build(cache.layers, cache.ctx_len, head_elements, alignment=PAGE_BYTES // dtype.itemsize)


def open_graph(folder: Path) -> tuple[Any, KernelLibrary]:
    """The compiled graph (torch's AOTInductor container) and the kernels that it calls.

    The kernels are loaded first: the graph names them by a SONAME that is unique per instruction set and source, and
    the dynamic linker takes the library of that name which is already there, wherever the program directory lies.
    It also takes a library that was once loaded under the same path, even if the file has been replaced since: so
    each is opened under a path of its own.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="polybatch-open-") as unique:
            for name in (KERNELS, GRAPH):
                (Path(unique) / name).symlink_to((folder / name).resolve())
            kernels = KernelLibrary(Path(unique) / KERNELS)
            graph = torch._C._aoti.AOTIModelContainerRunnerCpu(str(Path(unique) / GRAPH), 1)
    except (OSError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ProgramError(f"cannot load the compiled code of {folder}: {reason}; recompile the program") from error
    return graph, kernels


_FileIdentity = tuple[int, int, int, int]
_mapped: dict[_FileIdentity, dict[str, torch.Tensor]] = {}


def _map_once(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a file, mapped once per process however many sessions use it.

    torch's container never lets go of tensors that are lent to it, so a mapping per session would never be undone.
    """
    status = path.stat()
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if identity not in _mapped:
        _mapped[identity] = map_safetensors(path)
    return _mapped[identity]


def _untouched_zeros(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """A zero tensor on anonymous pages that take memory only once they are written; torch.zeros writes them all."""
    try:
        pages = mmap.mmap(-1, rows * columns * dtype.itemsize)
    except (OSError, OverflowError) as error:
        raise ProgramError(
            f"cannot reserve {rows * columns * dtype.itemsize} bytes for a KV cache of {rows} slots ({error}); "
            "recompile with a smaller full_batch_size or ctx_len"
        ) from error
    return torch.frombuffer(pages, dtype=dtype).view(rows, columns)


class CpuRunner:
    """Steps over one cache [slots, elements] that is reserved whole and touched only where sequences live."""

    skips_padding = True
    copies_slots = True

    def __init__(self, folder: Path, cache: CacheSpec, threads: int) -> None:
        self._graph, self._kernels = open_graph(folder)
        self._weights = self._lend_weights(folder)
        self._layout = cache_layout(cache)
        self._cache = _untouched_zeros(cache.slots, self._layout.slot_elements, getattr(torch, cache.dtype))
        self._threads = threads

    def _lend_weights(self, folder: Path) -> dict[str, torch.Tensor]:
        """Map the weights and lend them to the graph, which keeps pointers: they must live as long as it does."""
        weights = _map_once(folder / WEIGHTS)
        if weights.keys() != self._graph.get_constant_names_to_original_fqns().keys():
            raise ProgramCorruptError(f"{folder / WEIGHTS} is not the weights file of its graph; recompile the program")
        self._graph.update_constant_buffer(weights, False, True, True)
        return weights

    def run(
        self, input_ids: Int64Array, position_ids: Int64Array, batch_index: Int64Array, logits_index: Int64Array
    ) -> Float32Array:
        live = live_step((input_ids, position_ids, batch_index, logits_index))
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in live.arrays]
        before = self._kernels.set_num_threads(self._threads)
        try:
            (logits,) = self._graph.run([*tensors, self._cache])
            return live.whole_logits(logits)
        finally:
            self._kernels.set_num_threads(before)

    def read_slot(self, slot: int) -> SlotKV:
        row, ctx_len = self._cache[slot], self._layout.ctx_len
        both = list(zip(self._layout.layers, self._layout.offsets, strict=True))
        keys = [unpack_keys(row, at.keys, kv.kv_heads, kv.key_dim, ctx_len) for kv, at in both]
        values = [unpack_values(row, at.values, kv.kv_heads, kv.value_dim, ctx_len) for kv, at in both]
        return SlotKV(tuple(keys), tuple(values))

    def copy_slot(self, source: int, target: int, positions: int) -> None:
        here, there = self._cache[source], self._cache[target]
        for layer, at in zip(self._layout.layers, self._layout.offsets, strict=True):
            copy_positions(here, there, at, layer, self._layout.ctx_len, positions)

    def reset(self) -> None:
        """A new cache of untouched pages costs less than clearing the old one."""
        slots, elements = self._cache.shape
        self._cache = _untouched_zeros(slots, elements, self._cache.dtype)

    def close(self) -> None:
        self._cache = torch.zeros(0, 0)
