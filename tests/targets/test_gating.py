"""Gated products: the kernel's numbers, and which products of a graph become gated."""

from __future__ import annotations

import pytest
import torch
from test_kernels import assert_same_bits, dtypes, kernels, seeded, with_threads
from test_weight_formats import packed_graph
from torch import fx

from polybatch.targets.cpu.gating import fuse_gates
from polybatch.targets.cpu.kernel_calls import Int8, packed_linear_call
from polybatch.targets.cpu.native import KernelLibrary
from polybatch.targets.cpu.packing import interleaved, pack_linear, pack_linear_int8

__all__ = ["kernels"]  # a fixture

EXACT = {torch.float32: {"rtol": 2e-6, "atol": 1e-6}, torch.bfloat16: {"rtol": 4e-3, "atol": 1e-6}}
formats = pytest.mark.parametrize("int8", [None, False, True], ids=["float", "int8-weight-only", "int8"])


@dtypes
@formats
@pytest.mark.parametrize(("n", "k"), [(64, 65), (128, 7), (192, 576), (1088, 64)])
def test_a_gated_product_is_silu_of_the_gate_times_the_rest(
    kernels: KernelLibrary, dtype: torch.dtype, int8: bool | None, n: int, k: int
) -> None:
    x, weight, bias = seeded(40, k, dtype=dtype), seeded(n, k, seed=1) / k**0.5, seeded(n, seed=2)
    packed, plain, gated = pack_linear(weight, dtype), None, None
    if int8 is not None:
        packed, scale = pack_linear_int8(weight)
        plain, gated = Int8(scale, int8), Int8(interleaved(scale), int8)
    call = {"int8": gated, "gated": True}
    if not kernels.has_gates:
        with pytest.raises(ValueError, match="no gated linears"):
            kernels.packed_linear(x, packed, bias, n, **call)
        return
    exact = kernels.packed_linear(x, packed, bias, n, plain, float_result=True).double()
    expected = torch.nn.functional.silu(exact[:, : n // 2]) * exact[:, n // 2 :]
    weights = interleaved(packed), interleaved(bias)
    solo = torch.cat([kernels.packed_linear(x[i : i + 1], *weights, n, **call) for i in range(40)])
    torch.testing.assert_close(solo.double(), expected, **EXACT[dtype])
    for m in range(41):
        for threads in (1, 2):
            y = with_threads(kernels, threads, lambda m=m: kernels.packed_linear(x[:m], *weights, n, **call))
            assert_same_bits(y, solo[:m])


def test_silu_of_any_gate(kernels: KernelLibrary) -> None:
    if not kernels.has_gates:
        pytest.skip("kernels without gates refuse them: the test above")
    x = torch.tensor([-3e38, -1e4, -100.0, -88.0, -20.0, 0.0, 1e-30, 88.0, 1e4, 3e38, float("nan")])[:, None]
    gate, bias = torch.cat([torch.ones(32), torch.zeros(32)]), torch.cat([torch.zeros(32), torch.ones(32)])
    y = kernels.packed_linear(x, interleaved(pack_linear(gate[:, None])), interleaved(bias), 64, gated=True)
    torch.testing.assert_close(y[:, 0], torch.nn.functional.silu(x[:, 0]), rtol=1e-6, atol=1e-30, equal_nan=True)


def test_gated_columns_come_in_whole_panels() -> None:
    with pytest.raises(ValueError, match="whole panels of 32, not 48"):
        packed_linear_call(seeded(1, 8), pack_linear(seeded(48, 8)), None, 48, gated=True)


def _gates(graph: fx.GraphModule) -> int:
    return sum(bool(node.kwargs.get("gated")) for node in graph.graph.nodes)


@pytest.mark.parametrize("weights", [None, "int8", "int8-weight-only"])
@pytest.mark.parametrize(("name", "layers"), [("llama", 2), ("mistral", 2), ("qwen3", 2), ("gemma3", 0), ("gpt2", 0)])
def test_gates_of_silu_are_found(name: str, layers: int, weights: str | None) -> None:
    graph = packed_graph(name, weights)
    assert fuse_gates(graph) == _gates(graph) == layers
    assert len(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.silu.default)) == 0


def test_a_gate_that_does_not_fill_panels_stays_as_it_is() -> None:
    graph = packed_graph("llama", None, intermediate_size=80)
    assert fuse_gates(graph) == _gates(graph) == 0
