"""Runs a cpu program: loads kernels.so and graph.so, maps the weights, keeps the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from polybatch.errors import ProgramCorruptError, ProgramError
from polybatch.program.weights import map_safetensors
from polybatch.targets.base.kv_layout import CacheSpec, KVLayout, LayerOffsets
from polybatch.targets.base.runner import Float32Array, Int64Array, SlotKV
from polybatch.targets.cpu.native import KernelLibrary
from polybatch.targets.cpu.packing import LayerCache, LayerSpec, lay_out_layers

GRAPH = "graph.so"
KERNELS = "kernels.so"
WEIGHTS = "weights.safetensors"


def cache_layout(cache: CacheSpec) -> tuple[KVLayout, list[LayerCache]]:
    """Where the kernels keep each layer's keys and values inside a slot."""
    specs = [LayerSpec(layer.kv_heads, layer.key_dim, layer.value_dim) for layer in cache.layers]
    placed, slot_elements = lay_out_layers(specs, ctx_len=cache.ctx_len, dtype=getattr(torch, cache.dtype))
    offsets = tuple(LayerOffsets(layer.k_offset, layer.v_offset) for layer in placed)
    return KVLayout(cache.layers, cache.ctx_len, offsets, slot_elements), placed


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
        layout, self._layers = cache_layout(cache)
        self._cache = torch.zeros(cache.slots, layout.slot_elements, dtype=getattr(torch, cache.dtype))
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
        both = [layer.read_slot(self._cache[slot]) for layer in self._layers]
        return SlotKV(tuple(keys for keys, _ in both), tuple(values for _, values in both))

    def reset(self) -> None:
        """A new cache of untouched pages costs less than clearing the old one."""
        self._cache = torch.zeros_like(self._cache)

    def close(self) -> None:
        self._cache = torch.zeros(0, 0)
