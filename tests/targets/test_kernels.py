"""The native kernels against plain torch, and the promise that a row's result does not depend on its neighbours."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from polybatch.errors import CompilerError
from polybatch.kv_layout import KVLayout, LayerKV
from polybatch.targets.cpu.cache_packing import BLOCK, KernelPacking, SlotLayer, copy_positions
from polybatch.targets.cpu.isa import ISAS, available_isas, resolve_isa
from polybatch.targets.cpu.kernel_calls import Int8
from polybatch.targets.cpu.native import KernelLibrary, build_kernels, soname
from polybatch.targets.cpu.packing import (
    pack_linear,
    pack_linear_int8,
    unpack_linear,
    unpack_linear_int8,
)

DTYPES = [torch.float32, torch.bfloat16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
TOLERANCE = {torch.float32: {"rtol": 2e-5, "atol": 2e-5}, torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2}}


@functools.cache
def library(isa: str) -> KernelLibrary:
    return KernelLibrary(build_kernels(ISAS[isa]))


@pytest.fixture(params=[isa.name for isa in available_isas()])
def kernels(request: pytest.FixtureRequest) -> KernelLibrary:
    return library(request.param)


def seeded(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_same_bits(a: Tensor, b: Tensor) -> None:
    assert a.dtype == b.dtype
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    assert np.array_equal(a.contiguous().view(integer).numpy(), b.contiguous().view(integer).numpy())


def with_threads(kernels: KernelLibrary, threads: int, call):  # type: ignore[no-untyped-def]
    previous = kernels.set_num_threads(threads)
    try:
        return call()
    finally:
        kernels.set_num_threads(previous)


# ------------------------------------------------------------------------------------------------------------ building


@pytest.mark.parametrize("isa", [isa.name for isa in available_isas()])
def test_a_library_reports_the_isa_it_was_built_for(isa: str) -> None:
    assert library(isa).isa == isa


def test_a_build_can_be_put_anywhere(tmp_path: Path) -> None:
    built = build_kernels(resolve_isa("native"), tmp_path / "kernels.so")
    assert built == tmp_path / "kernels.so"
    assert KernelLibrary(built).isa == resolve_isa("native").name


def test_the_soname_differs_between_isas() -> None:
    assert len({soname(isa) for isa in ISAS.values()}) == len(ISAS)


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="no-such-compiler"):
        build_kernels(resolve_isa("portable"), tmp_path / "kernels.so", cxx="no-such-compiler")
    assert list(tmp_path.iterdir()) == []


def test_native_is_the_best_isa_here_and_unknown_names_are_refused() -> None:
    assert resolve_isa("native") == available_isas()[0]
    with pytest.raises(ValueError, match="avx512_bf16"):
        resolve_isa("avx1024")


# ------------------------------------------------------------------------------------------------------- packed_linear


@dtypes
@pytest.mark.parametrize(("n", "k"), [(1, 1), (32, 16), (33, 7), (100, 65)])
def test_unpacking_gives_back_the_weight(dtype: torch.dtype, n: int, k: int) -> None:
    weight = seeded(n, k, dtype=dtype)
    assert_same_bits(unpack_linear(pack_linear(weight, dtype), n, k), weight)


@dtypes
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (3, 33, 7), (0, 32, 16), (2, 31, 65), (8, 576, 576), (13, 100, 129), (40, 192, 64)]
)
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_linear_is_a_matrix_product(
    kernels: KernelLibrary, dtype: torch.dtype, m: int, n: int, k: int, with_bias: bool
) -> None:
    x, weight = seeded(m, k, dtype=dtype), seeded(n, k, dtype=dtype, seed=1) / k**0.5
    bias = seeded(n, seed=2) if with_bias else None
    y = kernels.packed_linear(x, pack_linear(weight, dtype), bias, n)
    expected = x.double() @ weight.to(dtype).double().T + (0 if bias is None else bias)
    torch.testing.assert_close(y.double(), expected.to(dtype).double(), **TOLERANCE[dtype])


@dtypes
@pytest.mark.parametrize("m", [1, 5, 40])
@pytest.mark.parametrize("int8", [None, False, True], ids=["float", "int8-weight-only", "int8"])
def test_a_float_result_is_the_result_before_rounding(
    kernels: KernelLibrary, dtype: torch.dtype, m: int, int8: bool | None
) -> None:
    x, weight, bias = seeded(m, 65, dtype=dtype), seeded(70, 65, seed=1), seeded(70, seed=2)
    packed, scale = (pack_linear(weight, dtype), None) if int8 is None else pack_linear_int8(weight)
    how = None if int8 is None else Int8(scale, int8)
    exact = kernels.packed_linear(x, packed, bias, 70, how, float_result=True)
    assert exact.dtype == torch.float32
    assert_same_bits(exact.to(dtype), kernels.packed_linear(x, packed, bias, 70, how))


@dtypes
@pytest.mark.parametrize("k", [576, 61])
def test_a_row_of_linear_has_the_same_bits_in_any_company(kernels: KernelLibrary, dtype: torch.dtype, k: int) -> None:
    n = 200
    x, packed, bias = seeded(129, k, dtype=dtype), pack_linear(seeded(n, k, seed=1), dtype), seeded(n, seed=2)
    solo = torch.cat([kernels.packed_linear(x[i : i + 1], packed, bias, n) for i in range(129)])
    for m in range(130):
        for threads in (1, 2):
            y = with_threads(kernels, threads, lambda m=m: kernels.packed_linear(x[:m], packed, bias, n))
            assert_same_bits(y, solo[:m])


@dtypes
def test_linear_ignores_a_neighbour_that_is_not_a_number(kernels: KernelLibrary, dtype: torch.dtype) -> None:
    x, packed = seeded(5, 33, dtype=dtype), pack_linear(seeded(40, 33, seed=1), dtype)
    clean = kernels.packed_linear(x, packed, None, 40)
    x[3] = float("nan")
    dirty = kernels.packed_linear(x, packed, None, 40)
    keep = [0, 1, 2, 4]
    assert_same_bits(dirty[keep], clean[keep])


# ------------------------------------------------------------------------------------------------ packed_expert_linear

EXPERTS = 5


def expert_weights(n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [E, N, K], the same packed, biases [E, N]."""
    weight = seeded(EXPERTS, n, k, seed=1).to(dtype) / k**0.5
    return weight, torch.stack([pack_linear(expert) for expert in weight]), seeded(EXPERTS, n, seed=2)


@dtypes
@pytest.mark.parametrize(("rows", "n", "k"), [(0, 32, 16), (1, 1, 1), (9, 33, 7), (64, 200, 129)])
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_each_row_is_multiplied_with_its_own_expert(
    kernels: KernelLibrary, dtype: torch.dtype, rows: int, n: int, k: int, with_bias: bool
) -> None:
    weight, packed, all_biases = expert_weights(n, k, dtype)
    bias = all_biases if with_bias else None
    x, expert = seeded(rows, k, dtype=dtype), torch.arange(rows) * 7 % EXPERTS
    y = kernels.packed_expert_linear(x, packed, bias, expert, n)
    expected = torch.einsum("rk,rnk->rn", x.double(), weight[expert].double())
    expected = expected if bias is None else expected + bias[expert]
    torch.testing.assert_close(y.double(), expected.to(dtype).double(), **TOLERANCE[dtype])


@dtypes
@pytest.mark.parametrize("k", [64, 61])
def test_an_expert_gives_the_bits_of_packed_linear_in_any_company(
    kernels: KernelLibrary, dtype: torch.dtype, k: int
) -> None:
    n, rows = 72, 90
    _, packed, bias = expert_weights(n, k, dtype)
    x = seeded(rows, k, dtype=dtype)
    solo = torch.stack([kernels.packed_linear(x, packed[e], bias[e], n) for e in range(EXPERTS)])
    for seed in range(4):
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        expert = torch.randint(0, EXPERTS - 1, (rows,), generator=torch.Generator().manual_seed(seed))
        for count in (1, 2, 13, rows):
            for threads in (1, 2):
                pick, chosen = order[:count], expert[:count]
                y = with_threads(
                    kernels,
                    threads,
                    lambda p=pick, c=chosen: kernels.packed_expert_linear(x[p], packed, bias, c, n),
                )
                assert_same_bits(y, solo[chosen, pick])


@pytest.mark.parametrize("rows", [1, 5, 13, 40])
def test_weights_that_bfloat16_holds_give_the_same_bits_from_half_the_memory(kernels: KernelLibrary, rows: int) -> None:
    x, bias, n = seeded(rows, 77), seeded(90, seed=2), 90
    packed = pack_linear(seeded(n, 77, seed=1).bfloat16().float())
    wide = kernels.packed_linear(x, packed, bias, n)
    assert_same_bits(kernels.packed_linear(x, packed.bfloat16(), bias, n), wide)
    experts, chosen = torch.stack([packed, packed.flip(1)]), torch.arange(rows) % 2
    biases = torch.stack([bias, bias])
    wide = kernels.packed_expert_linear(x, experts, biases, chosen, n)
    assert_same_bits(kernels.packed_expert_linear(x, experts.bfloat16(), biases, chosen, n), wide)


def test_an_expert_that_does_not_exist_is_refused(kernels: KernelLibrary) -> None:
    _, packed, bias = expert_weights(8, 8, torch.float32)
    with pytest.raises(ValueError, match="expert_index"):
        kernels.packed_expert_linear(torch.zeros(2, 8), packed, bias, torch.tensor([0, EXPERTS]), 8)


# ---------------------------------------------------------------------------------------------------------------- int8

formats = pytest.mark.parametrize("quantize", [True, False], ids=["int8", "int8_weight_only"])


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as integers in -127..127 (float64) and their scales."""
    top = x.float().abs().amax(dim=-1, keepdim=True)
    return (x.float() * (127 / top)).round().double(), (top / 127).double()


def test_an_int8_weight_is_within_half_a_step_of_the_original() -> None:
    weight = seeded(70, 33)
    weight[5] = 0
    packed, scale = pack_linear_int8(weight)
    assert packed.dtype == torch.int8 and scale.shape == (70,)
    error = (unpack_linear_int8(packed, scale, 33) - weight).abs()
    assert (error <= scale[:, None] * 0.5001).all()


@dtypes
@formats
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 33, 7), (0, 32, 16), (13, 100, 129), (40, 192, 64)])
def test_int8_linear_is_a_matrix_product(
    kernels: KernelLibrary, dtype: torch.dtype, quantize: bool, m: int, n: int, k: int
) -> None:
    x, bias = seeded(m, k, dtype=dtype), seeded(n, seed=2)
    packed, scale = pack_linear_int8(seeded(n, k, seed=1) / k**0.5)
    y = kernels.packed_linear(x, packed, bias, n, Int8(scale, quantize))
    weight = unpack_linear_int8(packed, scale, k).double()
    integers, steps = quantized(x) if m and quantize else (x.double(), 1)
    torch.testing.assert_close(y.double(), (integers @ weight.T * steps + bias).to(dtype).double(), **TOLERANCE[dtype])


@dtypes
@formats
def test_int8_linear_gives_the_same_bits_on_every_isa(dtype: torch.dtype, quantize: bool) -> None:
    x, bias = seeded(17, 301, dtype=dtype), seeded(90, seed=2)
    packed, scale = pack_linear_int8(seeded(90, 301, seed=1))
    first, *others = (
        library(isa.name).packed_linear(x, packed, bias, 90, Int8(scale, quantize)) for isa in available_isas()
    )
    for other in others:
        assert_same_bits(other, first)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.bfloat16, 127 * 256), (torch.float32, 63 * 65536)])
def test_bytes_of_wide_activations_hold_every_integer(kernels: KernelLibrary, dtype: torch.dtype, largest: int) -> None:
    """Above all those half way between two higher bytes, of either sign."""
    halves = torch.arange(-largest + 128, largest, 256)
    near = halves if dtype == torch.bfloat16 else (halves[:, None] + torch.arange(-2, 3)).flatten()
    x = near[:, None].to(dtype)
    rows = torch.cat([x, torch.full_like(x, largest)], dim=1)  # the second sets the scale to 1
    packed, scale = pack_linear_int8(torch.tensor([[127.0, 0.0]]))
    y = kernels.packed_linear(rows, packed, None, 1, Int8(scale, narrow_activations=False), float_result=True)
    torch.testing.assert_close(y.double(), near[:, None].double() * 127, rtol=2e-7, atol=0)


@dtypes
@formats
@pytest.mark.parametrize("k", [192, 61])
def test_a_row_of_int8_linear_has_the_same_bits_in_any_company(
    kernels: KernelLibrary, dtype: torch.dtype, quantize: bool, k: int
) -> None:
    n, rows = 104, 70
    x, bias, (packed, scale) = seeded(rows, k, dtype=dtype), seeded(n, seed=2), pack_linear_int8(seeded(n, k, seed=1))
    int8 = Int8(scale, quantize)
    solo = torch.cat([kernels.packed_linear(x[i : i + 1], packed, bias, n, int8) for i in range(rows)])
    for m in range(rows + 1):
        for threads in (1, 2):
            y = with_threads(kernels, threads, lambda m=m: kernels.packed_linear(x[:m], packed, bias, n, int8))
            assert_same_bits(y, solo[:m])


@formats
def test_int8_linear_keeps_extreme_rows_to_themselves(kernels: KernelLibrary, quantize: bool) -> None:
    x, n = seeded(6, 40), 40
    packed, scale = pack_linear_int8(seeded(n, 40, seed=1))
    int8 = Int8(scale, quantize)
    clean = kernels.packed_linear(x, packed, None, n, int8)
    x[0], x[1], x[2, 3], x[3] = 0.0, float("nan"), float("inf"), 1e-38
    dirty = kernels.packed_linear(x, packed, None, n, int8)
    assert not dirty[0].any() and dirty[1].isnan().all() and not dirty[2].isfinite().any()
    assert dirty[3].abs().max() < 1e-35
    assert_same_bits(dirty[4:], clean[4:])


@dtypes
@formats
def test_an_int8_expert_gives_the_bits_of_int8_linear(
    kernels: KernelLibrary, dtype: torch.dtype, quantize: bool
) -> None:
    n, k, rows = 72, 61, 90
    weight, _, bias = expert_weights(n, k, torch.float32)
    packed, scale = (torch.stack(parts) for parts in zip(*map(pack_linear_int8, weight), strict=True))
    x, expert = seeded(rows, k, dtype=dtype), torch.arange(rows) * 3 % 4
    solo = torch.stack(
        [kernels.packed_linear(x, packed[e], bias[e], n, Int8(scale[e], quantize)) for e in range(EXPERTS)]
    )
    for count in (1, 2, 13, rows):
        for threads in (1, 2):
            call = functools.partial(
                kernels.packed_expert_linear, x[:count], packed, bias, expert[:count], n, Int8(scale, quantize)
            )
            assert_same_bits(with_threads(kernels, threads, call), solo[expert[:count], torch.arange(count)])


# ------------------------------------------------------------------------------------------------------ slot_attention


@dataclass(frozen=True)
class Geometry:
    """One attention layer and its cache."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    value_dim: int = 64
    ctx_len: int = 200
    slots: int = 5
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False


GEOMETRIES = {
    "grouped": Geometry(),
    "one_query_head_each": Geometry(heads=3, kv_heads=3, head_dim=32, value_dim=32),
    "one_kv_head": Geometry(heads=7, kv_heads=1, head_dim=16, value_dim=48),
    "odd_dims": Geometry(heads=4, kv_heads=2, head_dim=19, value_dim=37),
    "wide": Geometry(heads=2, kv_heads=1, head_dim=256, value_dim=256),
    "window": Geometry(window=70),
    "window_1": Geometry(window=1),
    "softcap": Geometry(softcap=5.0),
    "sinks": Geometry(sinks=True, window=33),
    "short_ctx": Geometry(ctx_len=21),
    "several_chunks": Geometry(heads=3, kv_heads=1, ctx_len=900, slots=3),
}


def two_layers(g: Geometry, dtype: torch.dtype) -> KVLayout:
    layer = LayerKV(g.kv_heads, g.head_dim, g.value_dim)
    return KVLayout.build([layer, layer], g.ctx_len, KernelPacking(dtype))


class Layer:
    """A cache and the tokens of ``slots`` sequences; every slot can be filled up to any position."""

    def __init__(self, kernels: KernelLibrary, dtype: torch.dtype, geometry: Geometry) -> None:
        g = geometry
        self.kernels, self.dtype, self.g = kernels, dtype, g
        self.layout = two_layers(g, dtype)
        self.offsets = self.layout.offsets[1]
        self.q = seeded(g.slots, g.heads, g.ctx_len, g.head_dim, dtype=dtype)
        self.k = seeded(g.slots, g.kv_heads, g.ctx_len, g.head_dim, dtype=dtype, seed=1)
        self.v = seeded(g.slots, g.kv_heads, g.ctx_len, g.value_dim, dtype=dtype, seed=2)
        self.sinks = seeded(g.heads, seed=3) if g.sinks else None
        self.scale = g.head_dim**-0.5

    def cache(self, lengths: list[int]) -> Tensor:
        """A cache whose slot i holds its first lengths[i] positions, and NaN everywhere else."""
        cache = torch.full((self.g.slots, self.layout.slot_elements), float("nan"), dtype=self.dtype)
        for slot, length in enumerate(lengths):
            k, v = self.k[slot].clone(), self.v[slot].clone()
            k[:, length:], v[:, length:] = float("nan"), float("nan")
            SlotLayer(cache[slot], self.layout, 1).write(k, v)
        return cache

    def step(self, cache: Tensor, rows: list[tuple[int, list[int]]]) -> Tensor:
        """Run rows of (slot, positions); position -1 is padding and carries NaN. Returns [B, S, H, DV]."""
        positions = torch.tensor([row[1] for row in rows])
        index = torch.tensor([[row[0]] for row in rows])
        pick = positions.clamp(min=0)

        def gather(source: Tensor) -> Tensor:
            rows_of = torch.stack([source[slot][:, p] for slot, p in zip(index[:, 0].tolist(), pick, strict=True)])
            return rows_of.masked_fill((positions < 0)[:, None, :, None], float("nan"))

        # [B, S, H, D] in memory, as a projection leaves them
        q, k, v = (gather(t).transpose(1, 2).contiguous().transpose(1, 2) for t in (self.q, self.k, self.v))
        return self.kernels.slot_attention(
            q, k, v, cache, index, positions, self.sinks, self.offsets.keys, self.offsets.values,
            self.g.ctx_len, self.scale, self.g.window, self.g.softcap,
        )  # fmt: skip

    def read(self, slot: Tensor) -> tuple[Tensor, Tensor]:
        layer = SlotLayer(slot, self.layout, 1)
        return layer.keys(), layer.values()

    def expected(self, slot: int, position: int) -> Tensor:
        """The attention output [H, DV] of one token, in float64."""
        g = self.g
        first = max(0, position - g.window + 1) if g.window else 0
        k, v = (
            t[slot, :, first : position + 1].double().repeat_interleave(g.heads // g.kv_heads, 0)
            for t in (self.k, self.v)
        )
        scores = torch.einsum("hd,hkd->hk", self.q[slot, :, position].double(), k) * self.scale
        if g.softcap:
            scores = g.softcap * torch.tanh(scores / g.softcap)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.double()[:, None]], dim=1)
        weights = scores.softmax(dim=1)[:, : v.shape[1]]
        return torch.einsum("hk,hkd->hd", weights, v)

    def solo(self, slot: int, position: int) -> Tensor:
        """The output [H, DV] of one token run alone, in slot 0 of a fresh cache, on one thread."""
        moved = Layer(self.kernels, self.dtype, replace(self.g, slots=1))
        for name in ("q", "k", "v"):
            setattr(moved, name, getattr(self, name)[slot : slot + 1])
        cache = moved.cache([position])
        return with_threads(self.kernels, 1, lambda: moved.step(cache, [(0, [position])]))[0, 0]


@pytest.fixture(params=GEOMETRIES.values(), ids=GEOMETRIES.keys())
def layer(request: pytest.FixtureRequest, kernels: KernelLibrary, dtype: torch.dtype) -> Layer:
    return Layer(kernels, dtype, request.param)


def some_positions(g: Geometry) -> list[int]:
    return [p for p in (0, 1, 15, 16, 20, 63, 64, 70, 129, 199, 255, 256, 511, 700, 899) if p < g.ctx_len]


@dtypes
def test_attention_is_softmax_over_the_live_positions(layer: Layer) -> None:
    positions = some_positions(layer.g)
    for start in range(0, len(positions), layer.g.slots):
        slots = positions[start : start + layer.g.slots]
        lengths = [*slots, *[0] * (layer.g.slots - len(slots))]
        out = layer.step(layer.cache(lengths), [(slot, [p]) for slot, p in enumerate(slots)])
        expected = torch.stack([layer.expected(slot, p) for slot, p in enumerate(slots)])
        torch.testing.assert_close(out[:, 0].double(), expected.to(layer.dtype).double(), **TOLERANCE[layer.dtype])


@dtypes
def test_a_token_has_the_same_bits_in_any_batch_slot_and_thread_count(layer: Layer) -> None:
    g = layer.g
    places = [(slot, (37 * slot + g.ctx_len - 1) % g.ctx_len) for slot in range(g.slots)]
    lengths = [p for _, p in places]
    solo = {slot: layer.solo(slot, p) for slot, p in places}
    for batch in (places[:1], places[1:2], places[::-1], places):
        for threads in (1, 2):
            out = with_threads(
                layer.kernels, threads, lambda b=batch: layer.step(layer.cache(lengths), [(s, [p]) for s, p in b])
            )
            for row, (slot, _) in enumerate(batch):
                assert_same_bits(out[row, 0], solo[slot])


@dtypes
@pytest.mark.parametrize("geometry", ["grouped", "odd_dims", "window", "sinks", "several_chunks"])
def test_prefill_gives_the_same_bits_in_any_chunking(kernels: KernelLibrary, dtype: torch.dtype, geometry: str) -> None:
    layer = Layer(kernels, dtype, GEOMETRIES[geometry])
    total = min(layer.g.ctx_len, 300)
    by_chunk = {}
    for chunk in (1, 7, 128):
        for threads in (1, 2):
            cache = layer.cache([0] * layer.g.slots)
            parts = []
            for start in range(0, total, chunk):
                live = list(range(start, min(start + chunk, total)))
                row = [(1, live + [-1] * (chunk - len(live)))]
                parts.append(with_threads(kernels, threads, lambda r=row, c=cache: layer.step(c, r))[0, : len(live)])
            by_chunk[chunk, threads] = torch.cat(parts)
    reference = by_chunk[1, 1]
    for out in by_chunk.values():
        assert_same_bits(out, reference)
    for position in (0, 17, total - 1):
        expected = layer.expected(1, position)
        torch.testing.assert_close(reference[position].double(), expected.to(dtype).double(), **TOLERANCE[dtype])


@dtypes
@pytest.mark.parametrize("threads", [1, 2])
def test_only_the_new_positions_of_live_tokens_are_written(
    kernels: KernelLibrary, dtype: torch.dtype, threads: int
) -> None:
    layer = Layer(kernels, dtype, Geometry(head_dim=19, value_dim=21))
    cache = layer.cache([9, 50, 64, 131, 200])
    before = [layer.read(slot) for slot in cache]
    raw_before = cache.clone()
    rows = [(3, [131, 132, -1, -1]), (1, [50, 51, 52, 53]), (0, [-1, -1, -1, -1])]
    out = with_threads(kernels, threads, lambda: layer.step(cache, rows))
    for slot, (k_before, v_before) in enumerate(before):
        k, v = k_before, v_before
        for position in {p for row_slot, ps in rows if row_slot == slot for p in ps if p >= 0}:
            k[:, position], v[:, position] = layer.k[slot, :, position], layer.v[slot, :, position]
        k_after, v_after = layer.read(cache[slot])
        assert_same_bits(k_after, k)
        assert_same_bits(v_after, v)
    for slot in (0, 2, 4):
        assert_same_bits(cache[slot], raw_before[slot])
    chunks = (cache.shape[0], layer.layout.chunks, layer.layout.chunk_elements)
    first_layer = slice(0, layer.offsets.keys)
    assert_same_bits(cache.view(chunks)[..., first_layer], raw_before.view(chunks)[..., first_layer])
    assert not out[0, 2:].any() and not out[2].any()  # padding rows are exactly zero


@dtypes
def test_drafted_tokens_have_the_bits_of_single_steps(kernels: KernelLibrary, dtype: torch.dtype) -> None:
    layer = Layer(kernels, dtype, Geometry(heads=9, kv_heads=3))
    lengths = [60, 0, 125, 3, 190]
    rows = [(slot, list(range(length, length + 8))) for slot, length in enumerate(lengths)]
    for threads in (1, 2):
        out = with_threads(kernels, threads, lambda: layer.step(layer.cache(lengths), rows))
        for row, (slot, positions) in enumerate(rows):
            for column in (0, 3, 7):
                assert_same_bits(out[row, column], layer.solo(slot, positions[column]))


@dtypes
@pytest.mark.parametrize("geometry", ["grouped", "odd_dims", "window", "sinks", "several_chunks"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tokens", [[25, 1, 4], [1, 5, 4]], ids=["cut_by_rows", "cut_by_chunks"])
def test_neighbouring_rows_of_one_slot_are_one_sequence(
    kernels: KernelLibrary, dtype: torch.dtype, geometry: str, threads: int, tokens: list[int]
) -> None:
    layer = Layer(kernels, dtype, GEOMETRIES[geometry])
    lengths = [layer.g.ctx_len - 30, min(254, layer.g.ctx_len - 30), 0]  # 254: on both sides of a chunk's border
    caches = [layer.cache([*lengths, *[0] * (layer.g.slots - 3)]) for _ in range(2)]
    order = 2, 0, 1
    live = {slot: list(range(lengths[slot], lengths[slot] + tokens[slot])) for slot in order}
    rows = [(slot, [position]) for slot in order for position in live[slot]] + [(1, [-1]), (0, [-1])]
    out = with_threads(kernels, threads, lambda: layer.step(caches[0], rows))[:, 0]
    alone = torch.cat([layer.step(caches[1], [(slot, live[slot])])[0] for slot in order])
    assert_same_bits(out[:-2], alone)
    assert not out[-2:].any()
    assert_same_bits(caches[0], caches[1])


@dtypes
def test_a_batch_of_no_live_rows_is_legal(kernels: KernelLibrary, dtype: torch.dtype) -> None:
    layer = Layer(kernels, dtype, Geometry())
    cache = layer.cache([5] * 5)
    before = cache.clone()
    assert not layer.step(cache, [(0, [-1]), (1, [-1])]).any()
    assert_same_bits(cache, before)


@dtypes
@pytest.mark.parametrize("geometry", ["grouped", "odd_dims", "short_ctx", "several_chunks"])
def test_reading_a_slot_gives_back_what_was_written(dtype: torch.dtype, geometry: str) -> None:
    g = GEOMETRIES[geometry]
    layout = two_layers(g, dtype)
    slot = torch.zeros(layout.slot_elements, dtype=dtype)
    written = [
        (
            seeded(g.kv_heads, g.ctx_len, g.head_dim, dtype=dtype, seed=i),
            seeded(g.kv_heads, g.ctx_len, g.value_dim, dtype=dtype, seed=9 + i),
        )
        for i in range(2)
    ]
    for index, (k, v) in enumerate(written):
        SlotLayer(slot, layout, index).write(k, v)
    for index, (k, v) in enumerate(written):
        layer = SlotLayer(slot, layout, index)
        assert_same_bits(layer.keys(), k)
        assert_same_bits(layer.values(), v)


@dtypes
@pytest.mark.parametrize("geometry", ["grouped", "odd_dims", "short_ctx", "several_chunks"])
@pytest.mark.parametrize("positions", [0, 1, 64, 65, 256, 300, 900])
def test_a_copy_of_positions_has_them_all_and_leaves_later_blocks(
    dtype: torch.dtype, geometry: str, positions: int
) -> None:
    g = GEOMETRIES[geometry]
    positions = min(positions, g.ctx_len)
    layout = two_layers(g, dtype)
    source, target = (seeded(layout.slot_elements, dtype=dtype, seed=seed) for seed in (1, 2))
    before = target.clone()
    copy_positions(source, target, layout, positions)
    untouched = -(-positions // BLOCK) * BLOCK
    for index in range(2):
        copied, original, old = (SlotLayer(slot, layout, index) for slot in (target, source, before))
        for read in (SlotLayer.keys, SlotLayer.values):
            assert_same_bits(read(copied)[:, :positions], read(original)[:, :positions])
            assert_same_bits(read(copied)[:, untouched:], read(old)[:, untouched:])
