"""Graph pass: what is added to a linear's result is added in the linear, before the one rounding."""

from __future__ import annotations

import torch
from torch import fx

from polybatch.ops import PACKED_LINEARS
from polybatch.targets.cpu.fx_match import only_user
from polybatch.targets.cpu.packing import VECTOR

_add = torch.ops.aten.add.Tensor


def fuse_residuals(graph: fx.GraphModule) -> int:
    """Give packed linears the tensor that their result is only added to, in place; how many have one."""
    fused = 0
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    for linear in [node for node in graph.graph.nodes if node.target in PACKED_LINEARS]:
        addition = only_user(linear, _add)
        residual = None if addition is None else _residual(linear, addition)
        if addition is None or residual is None or order[residual] > order[linear]:
            continue
        linear.kwargs = {**linear.kwargs, "residual": residual}
        addition.replace_all_uses_with(linear)
        graph.graph.erase_node(addition)
        fused += 1
    graph.recompile()
    return fused


def _residual(linear: fx.Node, addition: fx.Node) -> fx.Node | None:
    """The other summand, if the kernel can add it."""
    others = [arg for arg in addition.args if arg is not linear]
    if len(others) != 1 or not isinstance(others[0], fx.Node) or addition.kwargs:
        return None
    ours, theirs = linear.meta["val"], others[0].meta["val"]
    fits = ours.dtype == theirs.dtype and list(map(str, ours.shape)) == list(map(str, theirs.shape))
    whole = ours.shape[-1] % VECTOR == 0 and not {"gated", "float_result"} & linear.kwargs.keys()
    return others[0] if fits and whole else None
