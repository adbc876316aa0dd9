"""Times every kernel call of a decode step, in order, beside what the machine's memory and multipliers allow.

    python bench/kernels.py [--model A B] [--dtype bf16] [--shape 1x1 8x1 ...] [--isa native] [--threads 2] [--ops]
                            [--prototype ops.so]

A step runs each layer's products and attention over that layer's own weights and cache (128 slots of 2048 positions,
live sequences at position 512), then the lm head; so weights and cache come from memory as they do in a model. A shape
``32x1`` is 32 sequences of one token; ``1x128`` is a prefill chunk. Figures are medians in ms.

limit = sum over the calls of max(bytes / bandwidth, multiply-adds / rate), bandwidth and rate measured in the same run.
With ``--prototype`` a library that defines ``kvrt::{attn,linear,pack}`` runs its step in turn with ours, on the same
merged products; what calling it costs (measured on a tiny product) is taken off, and ours likewise.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from polybatch.kv_layout import KVLayout, LayerKV
from polybatch.targets.cpu.cache_packing import KernelPacking
from polybatch.targets.cpu.isa import Isa, resolve_isa
from polybatch.targets.cpu.kernel_calls import KernelCall, packed_linear_call, slot_attention_call
from polybatch.targets.cpu.native import KERNEL_DIR, KernelLibrary, build_kernels, find_compiler
from polybatch.targets.cpu.packing import pack_linear

SHAPES = ["1x1", "2x1", "8x1", "32x1", "128x1", "1x8", "8x8", "1x128"]
SLOTS, CTX_LEN, POSITION = 128, 2048, 512
TOUCHED = 544  # positions of every slot that hold numbers
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Op = tuple[str, Callable[[], object]]
"""Kind and call."""


@dataclass(frozen=True)
class Model:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of each product of a layer; attention runs after the first."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        return {
            "qkv": (qkv, self.hidden),
            "o": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


MODELS = {"A": Model(2, 768, 12, 12, 64, 3072, 32000), "B": Model(30, 576, 9, 3, 64, 1536, 49152)}


class Machine:
    """Bandwidth and multiply-add rate."""

    def __init__(self, isa: Isa, threads: int) -> None:
        self._threads = threads
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "machine.so"
            source = Path(__file__).with_name("machine.cpp")
            flags = ["-O3", "-std=c++20", "-fPIC", "-fopenmp", "-shared", "-ffp-contract=off", f"-I{KERNEL_DIR}"]
            command = [find_compiler(), *flags, *isa.compile_flags, str(source), "-o", str(library)]
            subprocess.run(command, check=True)
            self._library = ctypes.CDLL(str(library))
        self._library.read_bytes_per_second.restype = ctypes.c_double
        self._library.multiply_adds.restype = ctypes.c_double
        self._memory = torch.zeros(256 << 20, dtype=torch.uint8).fill_(1)

    def bandwidth(self) -> float:
        size = ctypes.c_int64(self._memory.numel())
        pointer = ctypes.c_void_p(self._memory.data_ptr())
        read = self._library.read_bytes_per_second
        return statistics.median(read(pointer, size, self._threads) for _ in range(15))

    def rate(self, dtype: torch.dtype) -> float:
        run = partial(self._library.multiply_adds, int(dtype == torch.bfloat16), self._threads)
        return statistics.median(run(100_000) for _ in range(15))


def costs(model: Model, dtype: torch.dtype, batch: int, tokens: int) -> dict[str, tuple[int, float, float]]:
    """Calls, bytes and multiply-adds of each kind of op in a step; bytes and multiply-adds of one call."""
    rows, size = batch * tokens, dtype.itemsize
    result = {kind: (model.layers, float(n * k * size), float(rows * n * k)) for kind, (n, k) in model.linears.items()}
    seen = POSITION + (tokens + 1) / 2
    kv_bytes = batch * model.kv_heads * (POSITION + tokens) * 2 * model.head_dim * size
    result["attention"] = (model.layers, float(kv_bytes), 2 * rows * model.heads * seen * model.head_dim)
    result["lm_head"] = (1, float(model.vocab * model.hidden * size), float(batch * model.vocab * model.hidden))
    return result


def touch(cache: Tensor, offset: int, stride: int, heads: int, elements: int) -> None:
    """Put numbers into the first ``elements`` of each head of every slot."""
    values = torch.randn(elements).to(cache.dtype)
    for head in range(heads):
        cache[:, offset + head * stride :][:, :elements] = values


class OurStep:
    def __init__(self, kernels: KernelLibrary, model: Model, dtype: torch.dtype) -> None:
        self._kernels, self._model, self._dtype = kernels, model, dtype
        self._weights = [
            {kind: pack_linear(torch.randn(n, k) * 0.05, dtype) for kind, (n, k) in model.linears.items()}
            for _ in range(model.layers)
        ]
        self._lm_head = pack_linear(torch.randn(model.vocab, model.hidden) * 0.05, dtype)
        kv = LayerKV(model.kv_heads, model.head_dim, model.head_dim)
        self._layout = KVLayout.build([kv] * model.layers, CTX_LEN, KernelPacking(dtype))
        self._cache = torch.zeros(SLOTS, self._layout.slot_elements, dtype=dtype)
        used = -(-TOUCHED // self._layout.chunk_positions) * self._layout.chunk_elements
        self._cache[:, :used] = torch.randn(used).to(dtype)

    def _op(self, kind: str, call: KernelCall) -> Op:
        return kind, partial(self._kernels.run, call)

    def ops(self, batch: int, tokens: int, index: Tensor) -> list[Op]:
        model, rows = self._model, batch * tokens
        positions = POSITION + torch.arange(tokens).repeat(batch, 1)
        x = torch.randn(rows, model.hidden).to(self._dtype)
        mid = torch.randn(rows, model.intermediate).to(self._dtype)
        ops: list[Op] = []
        for layer, weights in enumerate(self._weights):
            (qkv_n, _), (o_n, _), (gate_up_n, _), (down_n, _) = model.linears.values()
            qkv_call = packed_linear_call(x, weights["qkv"], None, qkv_n)
            ops.append(self._op("qkv", qkv_call))
            split = qkv_call.result.view(batch, tokens, -1, model.head_dim).transpose(1, 2)
            q, k, v = split.split([model.heads, model.kv_heads, model.kv_heads], dim=1)
            at = self._layout.offsets[layer]
            attention = slot_attention_call(
                q, k, v, self._cache, index, positions, None, at.keys, at.values, CTX_LEN,
                model.head_dim**-0.5,
            )  # fmt: skip
            ops.append(self._op("attention", attention))
            attended = attention.result.view(rows, -1)
            ops.append(self._op("o", packed_linear_call(attended, weights["o"], None, o_n)))
            ops.append(self._op("gate_up", packed_linear_call(x, weights["gate_up"], None, gate_up_n)))
            ops.append(self._op("down", packed_linear_call(mid, weights["down"], None, down_n)))
        ops.append(self._op("lm_head", packed_linear_call(x[:batch], self._lm_head, None, model.vocab)))
        return ops

    def call_cost(self) -> float:
        tiny = packed_linear_call(
            torch.zeros(1, 4).to(self._dtype), pack_linear(torch.zeros(32, 4), self._dtype), None, 32
        )
        return seconds_per_call(partial(self._kernels.run, tiny))


class PrototypeStep:
    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self._model, self._dtype, self._mode = model, dtype, 0 if dtype == torch.float32 else 1
        self._weights = [
            {kind: self._pack(n, k) for kind, (n, k) in model.linears.items()} for _ in range(model.layers)
        ]
        self._lm_head = self._pack(model.vocab, model.hidden)
        shape = (SLOTS, model.kv_heads * CTX_LEN * model.head_dim)
        self._caches = [[torch.zeros(shape, dtype=dtype) for _ in range(2)] for _ in range(model.layers)]
        for cache in (cache for pair in self._caches for cache in pair):
            touch(cache, 0, CTX_LEN * model.head_dim, model.kv_heads, TOUCHED * model.head_dim)

    def _pack(self, n: int, k: int) -> Tensor:
        packed: Tensor = torch.ops.kvrt.pack(torch.randn(n, k) * 0.05, self._mode)
        return packed

    def ops(self, batch: int, tokens: int, index: Tensor) -> list[Op]:
        model, linear, attn = self._model, torch.ops.kvrt.linear.default, torch.ops.kvrt.attn.default
        positions = POSITION + torch.arange(tokens).repeat(batch, 1)
        x = torch.randn(batch, tokens, model.hidden).to(self._dtype)
        mid = torch.randn(batch, tokens, model.intermediate).to(self._dtype)
        heads = model.heads + 2 * model.kv_heads
        qkv = torch.randn(batch, tokens, heads, model.head_dim).to(self._dtype).transpose(1, 2)
        q, k, v = qkv.split([model.heads, model.kv_heads, model.kv_heads], dim=1)
        inputs = {"qkv": x, "o": torch.randn(batch, tokens, model.heads * model.head_dim).to(self._dtype)}
        inputs |= {"gate_up": x, "down": mid}
        ops: list[Op] = []
        for weights, pair in zip(self._weights, self._caches, strict=True):
            caches = [cache.view(SLOTS, model.kv_heads, CTX_LEN, model.head_dim) for cache in pair]
            for kind, (n, _) in model.linears.items():
                ops.append((kind, partial(linear, inputs[kind], weights[kind], None, n, self._mode)))
                if kind == "qkv":
                    scale = model.head_dim**-0.5
                    ops.append(("attention", partial(attn, q, k, v, *caches, index, positions, scale, 0, 0.0)))
        ops.append(("lm_head", partial(linear, x[:, -1], self._lm_head, None, model.vocab, self._mode)))
        return ops

    def call_cost(self) -> float:
        x, weight = torch.zeros(1, 4).to(self._dtype), self._pack(64, 4)
        return seconds_per_call(partial(torch.ops.kvrt.linear.default, x, weight, None, 64, self._mode))


def seconds_per_call(call: Callable[[], object], calls: int = 2000) -> float:
    def once() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    return min(once() for _ in range(5))


def time_step(ops: list[Op], call_cost: float) -> dict[str, float]:
    """Seconds by kind of op, and ``step`` for all, without the cost of calling."""
    times: dict[str, float] = defaultdict(float)
    for kind, call in ops:
        start = time.perf_counter()
        call()
        times[kind] += time.perf_counter() - start - call_cost
    times["step"] = sum(times.values())
    return times


def time_steps(steps: list[list[Op]], call_costs: list[float], seconds: float) -> list[dict[str, float]]:
    """Medians by kind of each step; the steps take turns."""
    kept: list[list[dict[str, float]]] = [[] for _ in steps]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(kept[0]) < 7:
        for ops, times, cost in zip(steps, kept, call_costs, strict=True):
            times.append(time_step(ops, cost))
    rounds = [times[2:] for times in kept]  # the first are warm-up
    return [{kind: statistics.median(times[kind] for times in runs) for kind in runs[0]} for runs in rounds]


def bench(args: argparse.Namespace, kernels: KernelLibrary, machine: Machine, name: str, dtype_name: str) -> None:
    model, dtype = MODELS[name], DTYPES[dtype_name]
    steps: list[OurStep | PrototypeStep] = [OurStep(kernels, model, dtype)]
    if args.prototype:
        steps.append(PrototypeStep(model, dtype))
    call_costs = [step.call_cost() for step in steps]
    for shape in args.shape:
        batch, tokens = map(int, shape.split("x"))
        index = torch.randperm(SLOTS)[:batch].contiguous()
        bandwidth, rate = machine.bandwidth(), machine.rate(dtype)
        times = time_steps([step.ops(batch, tokens, index) for step in steps], call_costs, args.seconds)
        cost = costs(model, dtype, batch, tokens)
        limits = {kind: calls * max(size / bandwidth, work / rate) for kind, (calls, size, work) in cost.items()}
        limits["step"] = sum(limits.values())
        print(f"{name} {dtype_name} {shape:6s} ({bandwidth / 1e9:.0f} GB/s, {2 * rate / 1e9:.0f} GFLOP/s)", flush=True)
        for kind in limits if args.ops else ["step"]:
            ours, limit = times[0][kind] * 1e3, limits[kind] * 1e3
            line = f"    {kind:10s} {ours:8.3f} ms   {limit / ours:5.2f} of the limit ({limit:.3f})"
            if args.prototype:
                theirs = times[1][kind] * 1e3
                line += f"   prototype {theirs:8.3f} ms   ratio {ours / theirs:.2f}"
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="native")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bf16"])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--shape", nargs="+", default=SHAPES, help="batch x tokens")
    parser.add_argument("--ops", action="store_true", help="each kind of op, not only their sum")
    parser.add_argument("--seconds", type=float, default=1.0, help="per shape")
    parser.add_argument("--prototype", help="library with kvrt::{attn,linear,pack}")
    args = parser.parse_args()
    isa = resolve_isa(args.isa)
    kernels = KernelLibrary(build_kernels(isa))
    if args.prototype:
        torch.ops.load_library(args.prototype)
    torch.set_num_threads(args.threads)
    kernels.set_num_threads(args.threads)
    machine = Machine(isa, args.threads)
    print(f"{kernels.isa}, {args.threads} threads")
    for dtype in args.dtype:
        for model in args.model:
            bench(args, kernels, machine, model, dtype)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
