"""Weight formats: what is rounded, what is kept, and what balancing the inputs is worth."""

from __future__ import annotations

import pytest
import torch
from architectures import SUPPORTED, make_model
from test_kernels import seeded
from torch import Tensor, fx

from polybatch.kv_layout import KVLayout, PlainPacking
from polybatch.models.export import export_step
from polybatch.models.guard import check_supported
from polybatch.ops import rounded_rows
from polybatch.targets.cpu.calibration import observe_inputs
from polybatch.targets.cpu.passes import pack_weights
from polybatch.targets.cpu.weight_formats import WEIGHT_PLANS, FloatWeights, Int8Weights, PackedWeight

INT8 = torch.ops.polybatch.packed_linear_int8.default
ROWS, N, K = 256, 128, 96


def inputs_with_outliers() -> Tensor:
    """One channel that stands far from zero, one that moves far, the others near zero."""
    x = seeded(ROWS, K)
    x[:, 5] += 60
    x[:, 9] *= 30
    return x


def relative_error(packed: PackedWeight, weight: Tensor, x: Tensor) -> float:
    """Of the product as the program computes it."""
    exact = x.double() @ weight.double().T
    changed = x if packed.change is None else (x - packed.change.shift) / packed.change.scale
    rounded = (rounded_rows(changed) if any(packed.options) else changed).double() @ packed.value().double().T
    if packed.change is not None:
        rounded += packed.change.shift.double() @ weight.double().T
    return float((rounded - exact).norm() / (exact - exact.mean(dim=0)).norm())


@pytest.mark.parametrize("round_inputs", [True, False])
def test_examples_make_the_product_of_inputs_with_outliers_more_exact(round_inputs: bool) -> None:
    weight, x = seeded(N, K, seed=1), inputs_with_outliers()
    blind, informed = (Int8Weights(round_inputs).pack(weight, examples) for examples in (None, x))
    assert informed.options == (round_inputs,)
    assert relative_error(informed, weight, x) < 0.02
    assert relative_error(informed, weight, x) < relative_error(blind, weight, x) / 2


def test_rounding_makes_up_for_its_errors_where_inputs_move_together() -> None:
    weight = seeded(N, K, seed=1)
    x = seeded(ROWS, 12) @ seeded(12, K, seed=2) + 0.1 * seeded(ROWS, K, seed=3)
    blind, informed = (Int8Weights(False).pack(weight, examples) for examples in (None, x[::2]))
    unseen = x[1::2]
    assert relative_error(informed, weight, unseen) < relative_error(blind, weight, unseen) / 2
    assert (informed.value() - weight).abs().max() < 0.2 * weight.abs().max()


def test_wide_weights_are_rounded_in_blocks() -> None:
    weight, x = seeded(64, 2500, seed=1), seeded(300, 2500)
    assert relative_error(Int8Weights(False).pack(weight, x), weight, x) < 0.01


def test_scales_are_powers_of_two_and_so_round_nothing() -> None:
    change = Int8Weights(True).pack(seeded(N, K, seed=1), inputs_with_outliers()).change
    assert change is not None
    assert torch.equal(change.scale.log2(), change.scale.log2().round())
    assert change.scale[9] > change.scale.median()


def test_inputs_whose_rounding_costs_too_much_are_kept() -> None:
    x = seeded(ROWS, 1024)
    x[torch.arange(ROWS), torch.arange(ROWS) * 7 % 1024] = 30  # each row has a large value, always in another channel
    packed = Int8Weights(round_inputs=True).pack(seeded(N, 1024, seed=1), x)
    assert packed.op == INT8 and packed.options == (False,)


def test_narrow_products_are_kept() -> None:
    packed = Int8Weights(round_inputs=True).pack(seeded(8, K))
    assert packed.op == torch.ops.polybatch.packed_linear.default and packed.value is None


def test_each_expert_has_scales_of_its_own() -> None:
    weight = seeded(3, N, K) * torch.tensor([1.0, 10.0, 100.0])[:, None, None]
    packed = Int8Weights(round_inputs=True).pack(weight)
    assert packed.constants["scale"].shape == (3, N)
    error = (packed.value() - weight).flatten(1).norm(dim=1) / weight.flatten(1).norm(dim=1)
    assert (error < 0.01).all()


def test_float32_weights_that_bfloat16_holds_take_half_the_memory() -> None:
    weight = seeded(N, K)
    for shape in (weight, weight[None].repeat(3, 1, 1)):
        assert FloatWeights().pack(shape).constants["packed"].dtype == torch.float32
        narrow = FloatWeights().pack(shape.bfloat16().float()).constants["packed"]
        assert narrow.dtype == torch.bfloat16 and narrow.shape == FloatWeights().pack(shape).constants["packed"].shape


def packed_graph(name: str, weights: str | None, **changes: int) -> fx.GraphModule:
    model = make_model(SUPPORTED[name], **changes)
    layout = KVLayout.build(check_supported(model), 32, PlainPacking())
    graph, _ = export_step(model, layout)
    text = torch.randint(0, 200, (2, 30), generator=torch.Generator().manual_seed(0))
    pack_weights(graph, WEIGHT_PLANS[weights], observe_inputs(model, text))
    return graph


def count(graph: fx.GraphModule, name: str, *options: bool) -> int:
    nodes = graph.graph.find_nodes(op="call_function", target=getattr(torch.ops.polybatch, name).default)
    return sum(node.args[-1] in options if options else 1 for node in nodes)


def test_routers_stay_float_and_the_output_projection_keeps_its_inputs() -> None:
    graph = packed_graph("mixtral", "int8")
    assert count(graph, "packed_linear") == 2  # a router a layer
    assert count(graph, "packed_expert_linear_int8", True) == 4
    assert count(graph, "packed_linear_int8") == 2 * 2 + 1
    head = graph.graph.find_nodes(op="call_function", target=INT8)[-1]
    assert head.args[-2:] == (256, False)


def test_a_router_as_wide_as_other_products_is_known_by_what_it_feeds() -> None:
    assert count(packed_graph("qwen3_moe", "int8"), "packed_linear") == 2
    model = make_model(SUPPORTED["qwen3_moe"], num_experts=64)
    layout = KVLayout.build(check_supported(model), 32, PlainPacking())
    graph, _ = export_step(model, layout)
    pack_weights(graph, WEIGHT_PLANS["int8"], {})
    assert count(graph, "packed_linear") == 2


def test_weight_only_keeps_every_input() -> None:
    graph = packed_graph("llama", "int8-weight-only")
    assert count(graph, "packed_linear") == 0
    assert count(graph, "packed_linear_int8", False) == count(graph, "packed_linear_int8") == 2 * 4 + 1
