"""Graph pass: ``silu(gate) * up`` moves into the product that computes both (SwiGLU, arXiv 2002.05202).

The kernel then has the two in registers, in float32, and writes half as much.
"""

from __future__ import annotations

import torch
from torch import fx

from polybatch.ops import PACKED_LINEARS
from polybatch.targets.cpu.fx_match import only_user
from polybatch.targets.cpu.packing import LINEAR_PANEL, interleaved

aten = torch.ops.aten


def fuse_gates(graph: fx.GraphModule) -> int:
    """Let packed linears return ``silu(gate) * up`` where their result is used for nothing else, in place; how many."""
    fused = 0
    for linear in [node for node in graph.graph.nodes if node.target in PACKED_LINEARS]:
        product = _gated_product(linear)
        if product is None:
            continue
        for constant in _constants(linear):
            _interleave(graph, constant)
        linear.kwargs = {**linear.kwargs, "gated": True}
        linear.meta["val"] = product.meta["val"]
        product.replace_all_uses_with(linear)
        fused += 1
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return fused


def _gated_product(linear: fx.Node) -> fx.Node | None:
    """``mul(silu(columns 0 .. n/2 - 1), columns n/2 .. n - 1)`` of a linear of n columns, if nothing else reads it."""
    width = linear.meta["val"].shape[-1]
    half = width // 2
    if width % (2 * LINEAR_PANEL) or any(len(constant.users) > 1 for constant in _constants(linear)):
        return None
    parts = {tuple(user.args[1:]): user for user in linear.users if user.target == aten.slice.Tensor}
    if len(linear.users) != 2 or set(parts) != {(-1, 0, half), (-1, half, width)}:
        return None
    silu = only_user(parts[-1, 0, half], aten.silu.default)
    product = None if silu is None else only_user(silu, aten.mul.Tensor)
    if product is None or product is not only_user(parts[-1, half, width], aten.mul.Tensor):
        return None
    return product


def _constants(linear: fx.Node) -> list[fx.Node]:
    """Its packed weight and, if it has them, scale and bias."""
    return [node for node in linear.all_input_nodes if node.op == "get_attr"]


def _interleave(graph: fx.GraphModule, constant: fx.Node) -> None:
    """Reorder a packed weight, a scale or a bias as the kernel takes them."""
    tensor = getattr(graph, str(constant.target))
    graph.register_buffer(str(constant.target), interleaved(tensor))
