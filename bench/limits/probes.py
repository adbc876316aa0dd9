"""Measures what the machine can do: bytes read from memory and matrix products, per second."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.limits.floor import Machine
from polybatch.targets.cpu.isa import available_isas
from polybatch.targets.cpu.native import KernelLibrary, build_kernels, find_compiler
from polybatch.targets.cpu.packing import pack_linear

SOURCE = Path(__file__).with_name("read.cpp")
BUFFER_BYTES = 1 << 29
STREAMS = (1, 2, 4, 6)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GEMM_SHAPES = ((128, 3072, 768), (1024, 1024, 1024), (512, 6144, 768), (1024, 4096, 1024))  # rows, n, k
KERNEL_ROWS = (32, 128, 512)
KERNEL_SHAPE = (6144, 768)  # n, k


class ReadProbe:
    """Reads buffers that no cache holds: one of ordinary pages and one of huge pages, whichever is faster counts."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "read.so"
            flags = ["-O3", "-march=native", "-std=c++20", "-fopenmp", "-shared", "-fPIC"]
            subprocess.run([find_compiler(), *flags, str(SOURCE), "-o", str(path)], check=True)
            self._read = ctypes.CDLL(str(path)).read_all
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
        self._read.restype = ctypes.c_uint64
        self._buffers = [_buffer(huge) for huge in (False, True)]

    def bytes_per_s(self, repeats: int = 3) -> float:
        """The best of ``repeats`` passes of every kind."""
        passes = (
            partial(self._read, buffer.ctypes.data, BUFFER_BYTES, self._threads, streams)
            for buffer in self._buffers
            for streams in STREAMS
        )
        return BUFFER_BYTES / min(best_seconds(read, repeats) for read in passes)


class GemmProbe:
    """Matrix products of one precision, by torch and by the project's own kernel; int8 by torch alone so far."""

    def __init__(self, precision: str) -> None:
        self._calls: list[tuple[float, Callable[[], Tensor]]] = []
        for rows, n, k in GEMM_SHAPES:
            self._add_torch(precision, rows, n, k)
        if precision in DTYPES:
            self._add_own(DTYPES[precision])

    def flops_per_s(self, repeats: int = 5) -> float:
        """The best rate of any shape and kernel."""
        return max(flops / best_seconds(call, repeats) for flops, call in self._calls)

    def _add_torch(self, precision: str, rows: int, n: int, k: int) -> None:
        flops = 2.0 * rows * n * k
        if precision == "int8":
            x8, w8 = (torch.randint(-8, 8, shape, dtype=torch.int8) for shape in ((rows, k), (k, n)))
            self._calls.append((flops, lambda: torch._int_mm(x8, w8)))
            return
        dtype = DTYPES[precision]
        x, w = torch.randn(rows, k).to(dtype), torch.randn(n, k).to(dtype)
        self._calls.append((flops, lambda: torch.nn.functional.linear(x, w)))

    def _add_own(self, dtype: torch.dtype) -> None:
        kernels = KernelLibrary(build_kernels(available_isas()[0]))
        n, k = KERNEL_SHAPE
        weight = pack_linear(torch.randn(n, k), dtype)
        for rows in KERNEL_ROWS:
            x = torch.randn(rows, k).to(dtype)
            self._calls.append((2.0 * rows * n * k, partial(kernels.packed_linear, x, weight, None, n)))


class MachineProbe:
    """What a program of one precision needs to know of the machine; quick enough to be asked beside every cell."""

    def __init__(self, precision: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._read = ReadProbe(threads)
        needed = {"int8", "bf16"} if precision == "int8" else {precision}
        self._gemm = {name: GemmProbe(name) for name in sorted(needed)}

    def measure(self) -> Machine:
        with torch.inference_mode():
            rates = {name: probe.flops_per_s() for name, probe in self._gemm.items()}
        return Machine(self._read.bytes_per_s(), rates)


def best_of(first: Machine, second: Machine) -> Machine:
    """The faster of two measurements, figure by figure."""
    rates = {name: max(rate, second.flops_per_s[name]) for name, rate in first.flops_per_s.items()}
    return Machine(max(first.read_bytes_per_s, second.read_bytes_per_s), rates)


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    """The fastest of ``repeats`` calls after one that does not count."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _buffer(huge: bool) -> NDArray[np.uint8]:
    memory = mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = 1  # touched, or every page would be the one page of zeros
    return array
