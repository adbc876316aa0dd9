"""Measures what the machine can do: bytes read from memory and matrix products, per second."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.limits.floor import Machine
from polybatch.targets.cpu.isa import available_isas
from polybatch.targets.cpu.kernel_calls import Int8
from polybatch.targets.cpu.native import KernelLibrary, build_kernels, find_compiler
from polybatch.targets.cpu.packing import pack_linear, pack_linear_int8

SOURCE = Path(__file__).with_name("read.cpp")
BUFFER_BYTES = 1 << 29
STREAMS = (1, 2, 4, 6)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GEMM_SHAPES = ((128, 3072, 768), (1024, 1024, 1024), (512, 6144, 768), (1024, 4096, 1024))  # rows, n, k
KERNEL_ROWS = (32, 128, 512)
KERNEL_SHAPE = (6144, 768)  # n, k


class ReadProbe:
    """Reads a buffer that no cache holds, in the way that proved fastest: ordinary or huge pages, how many streams."""

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
        passes = [
            partial(self._read, buffer.ctypes.data, BUFFER_BYTES, self._threads, streams)
            for buffer in self._buffers
            for streams in STREAMS
        ]
        self._fastest = fastest([(BUFFER_BYTES, read) for read in passes])

    def bytes_per_s(self) -> float:
        """Of one pass."""
        work, read = self._fastest
        return work / seconds(read)


class GemmProbe:
    """Matrix products of one precision by torch or by the project's own kernel, of the shape that proved fastest."""

    def __init__(self, precision: str) -> None:
        self._calls: list[tuple[float, Callable[[], Tensor]]] = []
        for rows, n, k in GEMM_SHAPES:
            self._add_torch(precision, rows, n, k)
        self._add_own(precision)
        self._fastest = fastest(self._calls)

    def flops_per_s(self) -> float:
        """Of one product, after one that does not count."""
        flops, call = self._fastest
        call()
        return flops / seconds(call)

    def _add_torch(self, precision: str, rows: int, n: int, k: int) -> None:
        flops = 2.0 * rows * n * k
        if precision == "int8":
            x8, w8 = (torch.randint(-8, 8, shape, dtype=torch.int8) for shape in ((rows, k), (k, n)))
            self._calls.append((flops, lambda: torch._int_mm(x8, w8)))
            return
        dtype = DTYPES[precision]
        x, w = torch.randn(rows, k).to(dtype), torch.randn(n, k).to(dtype)
        self._calls.append((flops, lambda: torch.nn.functional.linear(x, w)))

    def _add_own(self, precision: str) -> None:
        kernels = KernelLibrary(build_kernels(available_isas()[0]))
        n, k = KERNEL_SHAPE
        dtype = DTYPES.get(precision, torch.bfloat16)
        if precision == "int8":
            weight, scale = pack_linear_int8(torch.randn(n, k))
            multiply = partial(kernels.packed_linear, int8=Int8(scale, narrow_activations=True))
        else:
            weight, multiply = pack_linear(torch.randn(n, k), dtype), kernels.packed_linear
        for rows in KERNEL_ROWS:
            x = torch.randn(rows, k).to(dtype)
            self._calls.append((2.0 * rows * n * k, partial(multiply, x, weight, None, n)))


class MachineProbe:
    """What a program of one precision needs to know of the machine; quick enough to be asked beside every step."""

    def __init__(self, precision: str, threads: int) -> None:
        torch.set_num_threads(threads)
        needed = {"int8", "bf16"} if precision == "int8" else {precision}
        with torch.inference_mode():
            self._read = ReadProbe(threads)
            self._gemm = {name: GemmProbe(name) for name in sorted(needed)}

    def measure(self) -> Machine:
        """One sample of each figure."""
        with torch.inference_mode():
            rates = {name: probe.flops_per_s() for name, probe in self._gemm.items()}
        return Machine(self._read.bytes_per_s(), rates)


def median_of(samples: Sequence[Machine]) -> Machine:
    """Figure by figure."""
    rates = {name: median(sample.flops_per_s[name] for sample in samples) for name in samples[0].flops_per_s}
    return Machine(median(sample.read_bytes_per_s for sample in samples), rates)


def fastest(calls: Sequence[tuple[float, Callable[[], object]]], rounds: int = 9) -> tuple[float, Callable[[], object]]:
    """The (work, call) with the highest median rate; all are tried in turn, since the machine's speed drifts."""
    times = [[seconds(call) for _, call in calls] for _ in range(rounds)][1:]
    rates = [work / median(column) for (work, _), column in zip(calls, zip(*times, strict=True), strict=True)]
    return calls[rates.index(max(rates))]


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _buffer(huge: bool) -> NDArray[np.uint8]:
    memory = mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = 1  # touched, or every page would be the one page of zeros
    return array
