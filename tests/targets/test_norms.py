"""Norms and residuals of packed linears: the kernel's numbers, and which nodes of a graph move into products."""

from __future__ import annotations

import pytest
import torch
from test_kernels import assert_same_bits, dtypes, kernels, seeded, with_threads
from test_weight_formats import packed_graph
from torch import Tensor, fx

from polybatch.ops import PACKED_LINEARS
from polybatch.targets.cpu.kernel_calls import Int8, Norm, packed_linear_call
from polybatch.targets.cpu.native import KernelLibrary
from polybatch.targets.cpu.norms import fuse_norms
from polybatch.targets.cpu.packing import pack_linear, pack_linear_int8
from polybatch.targets.cpu.residuals import fuse_residuals

__all__ = ["kernels"]  # a fixture

ROWS = 40
formats = pytest.mark.parametrize("int8", [None, False, True], ids=["float", "int8-weight-only", "int8"])


def packed_weight(n: int, k: int, dtype: torch.dtype, int8: bool | None) -> tuple[Tensor, Int8 | None]:
    weight = seeded(n, k, seed=1) / k**0.5
    if int8 is None:
        return pack_linear(weight, dtype), None
    packed, scale = pack_linear_int8(weight)
    return packed, Int8(scale, int8)


def normalized(x: Tensor, norm: Norm) -> Tensor:
    wide = x.double()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps) * norm.weight
    return (y if norm.bias is None else y + norm.bias).to(x.dtype)


@dtypes
@formats
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(("n", "k"), [(33, 65), (64, 7), (96, 576)])
def test_a_product_of_normalized_rows(
    kernels: KernelLibrary, dtype: torch.dtype, int8: bool | None, with_bias: bool, n: int, k: int
) -> None:
    x = seeded(ROWS, k, dtype=dtype) * 3
    norm = Norm(seeded(k, seed=2) + 1, 1e-5, seeded(k, seed=3) if with_bias else None)
    weight, how = packed_weight(n, k, dtype, int8)
    expected = kernels.packed_linear(normalized(x, norm), weight, None, n, how).float()
    solo = torch.cat([kernels.packed_linear(x[i : i + 1], weight, None, n, how, norm=norm) for i in range(ROWS)])
    step = 2.0**-7 if dtype == torch.bfloat16 or int8 else 1e-5  # an element that is rounded the other way
    torch.testing.assert_close(solo.float(), expected, rtol=0.02, atol=4 * step)
    for m in range(ROWS + 1):
        for threads in (1, 2):
            y = with_threads(
                kernels, threads, lambda m=m: kernels.packed_linear(x[:m], weight, None, n, how, norm=norm)
            )
            assert_same_bits(y, solo[:m])


def test_norms_have_the_same_bits_on_rows_that_do_not_follow_one_another(kernels: KernelLibrary) -> None:
    wide, norm, weight = seeded(5, 100), Norm(seeded(64, seed=2), 1e-6), pack_linear(seeded(32, 64, seed=1))
    y = kernels.packed_linear(wide[:, :64], weight, None, 32, norm=norm)
    assert_same_bits(y, kernels.packed_linear(wide[:, :64].contiguous(), weight, None, 32, norm=norm))


def test_a_row_of_zeros_is_normalized_to_zeros(kernels: KernelLibrary) -> None:
    norm = Norm(torch.ones(64), 1e-6)
    y = kernels.packed_linear(torch.zeros(1, 64), pack_linear(seeded(32, 64)), None, 32, norm=norm)
    assert_same_bits(y, torch.zeros(1, 32))


@dtypes
@formats
def test_a_residual_is_added_before_the_one_rounding(
    kernels: KernelLibrary, dtype: torch.dtype, int8: bool | None
) -> None:
    n, k = 80, 65
    x, bias, residual = seeded(ROWS, k, dtype=dtype), seeded(n, seed=2), seeded(ROWS, n, dtype=dtype, seed=3)
    weight, how = packed_weight(n, k, dtype, int8)
    sums = kernels.packed_linear(x, weight, bias, n, how, float_result=True)
    for m in range(ROWS + 1):
        y = kernels.packed_linear(x[:m], weight, bias, n, how, residual=residual[:m])
        assert_same_bits(y, (sums[:m] + residual[:m].float()).to(dtype))


def test_what_does_not_fit_is_refused() -> None:
    x, weight = seeded(2, 8), pack_linear(seeded(32, 8))
    with pytest.raises(ValueError, match=r"norm_weight must be float32 \[8\], not torch.float32 \[9\]"):
        packed_linear_call(x, weight, None, 32, norm=Norm(torch.ones(9), 1e-6))
    for residual in (torch.zeros(2, 33), torch.zeros(3, 32), torch.zeros(2, 32, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match=r"the residual .* does not fit"):
            packed_linear_call(x, weight, None, 32, residual=residual)


def having(graph: fx.GraphModule, option: str) -> int:
    return sum(option in node.kwargs for node in graph.graph.nodes if node.target in PACKED_LINEARS)


@pytest.mark.parametrize("weights", [None, "int8", "int8-weight-only"])
@pytest.mark.parametrize(
    ("name", "norms", "residuals"),
    [("llama", 4, 4), ("qwen3", 4, 4), ("gemma", 4, 4), ("gemma3", 4, 0), ("olmo2", 0, 0), ("gpt2", 0, 0)],
)
def test_norms_and_residuals_are_found(name: str, norms: int, residuals: int, weights: str | None) -> None:
    graph = packed_graph(name, weights)
    assert fuse_residuals(graph) == having(graph, "residual") == residuals
    assert fuse_norms(graph) == having(graph, "norm_weight") == norms


def test_a_residual_of_partial_vectors_stays_as_it_is() -> None:
    assert fuse_residuals(packed_graph("llama", None, hidden_size=72)) == 0
