"""Micro-benchmarks of the native kernels on the shapes of two models, beside what the machine's memory allows.

    python bench/kernels.py [--isa native] [--threads 2] [--dtype bf16] [--model A B] [--prototype ops.so]

Each linear cell cycles through as many weight copies as a model has layers, so that weights come from memory as they do
in a step; attention runs over a cache of 128 slots at position 512. Figures are lower quartiles.
With ``--prototype`` a library that defines ``kvrt::{attn,linear,pack}`` is timed in turn with ours, call by call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from polybatch.targets.cpu.isa import resolve_isa
from polybatch.targets.cpu.native import KernelLibrary, build_kernels
from polybatch.targets.cpu.packing import kv_head_elements, pack_linear

BATCHES = (1, 2, 8, 32, 128)
PREFILL_TOKENS = 128
SLOTS, CTX_LEN, POSITION = 128, 2048, 512
WEIGHT_BYTES = 256 << 20  # of weight copies to cycle through, past any cache
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Model:
    linears: dict[str, tuple[int, int]]  # name -> (out_features, in_features)
    heads: int
    kv_heads: int
    head_dim: int


MODELS = {
    "A": Model(
        {"qkv": (2304, 768), "o": (768, 768), "gate_up": (6144, 768), "down": (768, 3072), "lm_head": (32000, 768)},
        12, 12, 64,
    ),
    "B": Model(
        {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "lm_head": (49152, 576)},
        9, 3, 64,
    ),
}  # fmt: skip


def time_in_turn(calls: list[Callable[[int], object]], seconds: float) -> list[float]:
    """Seconds of each call, lower quartile; the calls take turns. Their argument counts the rounds."""
    for call in calls:
        call(0)
    times: list[list[float]] = [[] for _ in calls]
    end, round_ = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or round_ < 5:
        round_ += 1
        for call, kept in zip(calls, times, strict=True):
            start = time.perf_counter()
            call(round_)
            kept.append(time.perf_counter() - start)
    return [sorted(kept)[len(kept) // 4] for kept in times]


def report(label: str, times: list[float], byte_count: float, flops: float) -> None:
    cells = [f"{t * 1e6:9.1f} us {byte_count / t / 1e9:6.1f} GB/s {flops / t / 1e9:7.1f} GFLOP/s" for t in times]
    print(f"{label:34s}" + "   | ".join(cells), flush=True)


def cycle_weights(linear: Callable[..., Tensor], weights: list[Tensor]) -> Callable[[Tensor, int], Tensor]:
    return lambda x, round_: linear(x, weights[round_ % len(weights)])


def bench_linears(args: argparse.Namespace, kernels: KernelLibrary, name: str, dtype: torch.dtype) -> None:
    for linear, (n, k) in MODELS[name].linears.items():
        if args.only and linear not in args.only:
            continue
        weight_bytes = n * k * dtype.itemsize
        copies = max(1, min(64, WEIGHT_BYTES // weight_bytes))
        weight = torch.randn(n, k)
        packed = [pack_linear(weight, dtype).clone() for _ in range(copies)]
        ours = cycle_weights(lambda x, w, n=n: kernels.packed_linear(x, w, None, n), packed)
        runs = [ours]
        if args.prototype:
            mode = 0 if dtype == torch.float32 else 1
            theirs = [torch.ops.kvrt.pack(weight, mode).clone() for _ in range(copies)]
            runs.append(cycle_weights(lambda x, w, n=n, m=mode: torch.ops.kvrt.linear(x, w, None, n, m), theirs))
        for rows in args.rows:
            x = torch.randn(rows, k).to(dtype)
            times = time_in_turn([partial(run, x) for run in runs], args.seconds)
            report(f"{name} {linear} {n}x{k} rows={rows}", times, weight_bytes, 2.0 * rows * n * k)


def bench_attention(args: argparse.Namespace, kernels: KernelLibrary, name: str, dtype: torch.dtype) -> None:
    model = MODELS[name]
    heads, kv_heads, dim = model.heads, model.kv_heads, model.head_dim
    k_head, v_head = kv_head_elements(dim, dim, CTX_LEN, dtype)
    layer_elements = kv_heads * (k_head + v_head)
    cache = torch.zeros(SLOTS, layer_elements, dtype=dtype).normal_()
    plain = []
    if args.prototype:
        plain = [torch.zeros(SLOTS, kv_heads, CTX_LEN, dim, dtype=dtype).normal_() for _ in range(2)]
    shapes = [(b, 1) for b in args.rows] + [(1, 8), (8, 8), (1, PREFILL_TOKENS)]
    for batch, tokens in shapes:
        total = heads + 2 * kv_heads
        qkv = torch.randn(batch, tokens, total, dim).to(dtype).transpose(1, 2)
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
        positions = (POSITION + torch.arange(tokens)).expand(batch, tokens).contiguous()
        # Different slots every round, so that the cache comes from memory.
        indices = [torch.randperm(SLOTS)[:batch, None].contiguous() for _ in range(64)]
        calls: list[Callable[[int], object]] = [
            lambda i, q=q, k=k, v=v, p=positions, at=indices: kernels.slot_attention(
                q, k, v, cache, at[i % 64], p, None, 0, kv_heads * k_head, CTX_LEN, dim**-0.5
            )
        ]
        if args.prototype:
            calls.append(
                lambda i, q=q, k=k, v=v, p=positions, at=indices: torch.ops.kvrt.attn(
                    q, k, v, *plain, at[i % 64][:, 0], p, dim**-0.5, 0, 0.0
                )
            )
        times = time_in_turn(calls, args.seconds)
        seen = POSITION + (tokens + 1) / 2
        byte_count = batch * kv_heads * (POSITION + tokens) * 2 * dim * dtype.itemsize
        report(f"{name} attention b={batch} s={tokens}", times, byte_count, 4.0 * batch * heads * tokens * seen * dim)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="native")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--only", nargs="+", help="names of linears, or 'attention'")
    parser.add_argument("--seconds", type=float, default=0.3, help="per cell")
    parser.add_argument("--prototype", help="library with kvrt::{attn,linear,pack}")
    args = parser.parse_args()
    kernels = KernelLibrary(build_kernels(resolve_isa(args.isa)))
    if args.prototype:
        torch.ops.load_library(args.prototype)
    torch.set_num_threads(args.threads)
    print(f"{kernels.isa}, {args.threads} threads; columns: ours{', prototype' if args.prototype else ''}")
    for dtype in args.dtype:
        for model in args.model:
            print(f"-- {model} {dtype}")
            bench_linears(args, kernels, model, DTYPES[dtype])
            if not args.only or "attention" in args.only:
                bench_attention(args, kernels, model, DTYPES[dtype])


if __name__ == "__main__":
    with torch.inference_mode():
        main()
