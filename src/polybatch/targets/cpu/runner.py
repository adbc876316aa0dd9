"""Runs a cpu program: loads kernels.so and graph.so, maps the weights, keeps the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from polybatch.errors import ProgramCorruptError, ProgramError
from polybatch.kv_layout import CacheSpec, KVLayout, LayerKV
from polybatch.targets.base import Float32Array, Int64Array, SlotKV
from polybatch.targets.cpu.native import KernelLibrary
from polybatch.targets.cpu.packing import kv_head_elements, unpack_keys, unpack_values
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
    """
    try:
        kernels = KernelLibrary(folder / KERNELS)
        graph = torch._C._aoti.AOTIModelContainerRunnerCpu(str(folder / GRAPH), 1)
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ProgramError(f"cannot load the compiled code of {folder}: {reason}; recompile the program") from error
    return graph, kernels


class CpuRunner:
    """Steps over one cache [slots, elements] that is reserved whole and touched only where sequences live."""

    def __init__(self, folder: Path, cache: CacheSpec, threads: int) -> None:
        self._graph, self._kernels = open_graph(folder)
        self._weights = self._lend_weights(folder)
        self._layout = cache_layout(cache)
        self._cache = torch.zeros(cache.slots, self._layout.slot_elements, dtype=getattr(torch, cache.dtype))
        self._threads = threads

    def _lend_weights(self, folder: Path) -> dict[str, torch.Tensor]:
        """Map the weights and lend them to the graph, which keeps pointers: they must live as long as it does."""
        weights = map_safetensors(folder / WEIGHTS)
        if weights.keys() != self._graph.get_constant_names_to_original_fqns().keys():
            raise ProgramCorruptError(f"{folder / WEIGHTS} is not the weights file of its graph; recompile the program")
        self._graph.update_constant_buffer(weights, False, True, True)
        return weights

    def run(
        self, input_ids: Int64Array, position_ids: Int64Array, batch_index: Int64Array, logits_index: Int64Array
    ) -> Float32Array:
        arrays = (input_ids, position_ids, batch_index, logits_index)
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        before = self._kernels.set_num_threads(self._threads)
        try:
            (logits,) = self._graph.run([*tensors, self._cache])
        finally:
            self._kernels.set_num_threads(before)
        result: Float32Array = logits.numpy()
        return result

    def read_slot(self, slot: int) -> SlotKV:
        row, ctx_len = self._cache[slot], self._layout.ctx_len
        both = list(zip(self._layout.layers, self._layout.offsets, strict=True))
        keys = [unpack_keys(row, at.keys, kv.kv_heads, kv.key_dim, ctx_len) for kv, at in both]
        values = [unpack_values(row, at.values, kv.kv_heads, kv.value_dim, ctx_len) for kv, at in both]
        return SlotKV(tuple(keys), tuple(values))

    def reset(self) -> None:
        """A new cache of untouched pages costs less than clearing the old one."""
        self._cache = torch.zeros_like(self._cache)

    def close(self) -> None:
        self._cache = torch.zeros(0, 0)
