"""Runs a cpu program: loads kernels.so and graph.so, maps the weights, keeps the cache."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polybatch.errors import ProgramCorruptError, ProgramError
from polybatch.kv_layout import CacheSpec, KVLayout
from polybatch.targets.base import Float32Array, Int64Array, SlotKV
from polybatch.targets.cpu.cache_packing import KernelPacking, SlotLayer, copy_positions
from polybatch.targets.cpu.native import KernelLibrary
from polybatch.targets.cpu.padding import LiveStep, live_step
from polybatch.targets.live_logits import live_logits
from polybatch.weights import PAGE_BYTES, map_safetensors

GRAPH = "graph.so"
KERNELS = "kernels.so"
WEIGHTS = "weights.safetensors"


def cache_layout(cache: CacheSpec) -> KVLayout:
    """Where the kernels keep each layer's keys and values inside a slot."""
    dtype = getattr(torch, cache.dtype)
    return KVLayout.build(cache.layers, cache.ctx_len, KernelPacking(dtype), alignment=PAGE_BYTES // dtype.itemsize)


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


_HUGE_PAGE_BYTES = 2 << 20


def _empty_cache(layout: KVLayout, slots: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros [slots, slot_elements] on anonymous pages that take memory only once they are written.

    torch.zeros writes them all. Huge pages are read faster (private mappings only get them); they are asked for where a
    chunk, which is what a sequence takes at a time, fills most of one.
    """
    size = slots * layout.slot_elements * dtype.itemsize
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise ProgramError(
            f"cannot reserve {size} bytes for a KV cache of {slots} slots ({error}); "
            "recompile with a smaller full_batch_size or ctx_len"
        ) from error
    if layout.chunk_elements * dtype.itemsize > _HUGE_PAGE_BYTES // 2 and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(slots, layout.slot_elements)


class CpuRunner:
    """Steps over one cache [slots, elements] that is reserved whole and touched only where sequences live."""

    skips_padding = True
    copies_slots = True

    def __init__(self, folder: Path, cache: CacheSpec, threads: int) -> None:
        self._graph, self._kernels = open_graph(folder)
        self._weights = self._lend_weights(folder)
        self._layout = cache_layout(cache)
        self._cache = _empty_cache(self._layout, cache.slots, getattr(torch, cache.dtype))
        self._threads = threads
        # libgomp's threads hardly spin once there are more of them than processors, and steps may run on another thread
        # than this one, with threads of its own: each parallel region would then wake its threads through the kernel.
        self._kernels.release_threads()

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
        return live.whole_logits(self._run(live))

    def run_live(
        self, input_ids: Int64Array, position_ids: Int64Array, batch_index: Int64Array, logits_index: Int64Array
    ) -> Float32Array:
        live = live_step((input_ids, position_ids, batch_index, logits_index))
        _, positions, _, wanted = live.arrays
        return live_logits(self._run(live), positions, wanted)

    def _run(self, live: LiveStep) -> Float32Array:
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in live.arrays]
        before = self._kernels.set_num_threads(self._threads)
        try:
            (logits,) = self._graph.run([*tensors, self._cache])
        finally:
            self._kernels.set_num_threads(before)
        computed: Float32Array = logits.numpy()
        return computed

    def read_slot(self, slot: int) -> SlotKV:
        layers = [SlotLayer(self._cache[slot], self._layout, index) for index in range(len(self._layout.layers))]
        return SlotKV(tuple(layer.keys() for layer in layers), tuple(layer.values() for layer in layers))

    def copy_slot(self, source: int, target: int, positions: int) -> None:
        copy_positions(self._cache[source], self._cache[target], self._layout, positions)

    def reset(self) -> None:
        """A new cache of untouched pages costs less than clearing the old one."""
        self._cache = _empty_cache(self._layout, self._cache.shape[0], self._cache.dtype)

    def close(self) -> None:
        self._cache = torch.zeros(0, 0)
