"""Graph pass: rotary position embeddings move into the attention kernel.

Left to the compiler, cos and sin would be computed again for every head of every layer and the halves of q and k
copied around. The kernel rotates q and k as it reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from polybatch.targets.cpu.fx_match import call_args

aten = torch.ops.aten
_SLOT_ATTENTION = torch.ops.polybatch.slot_attention.default


@dataclass(frozen=True)
class _Rotation:
    """``x * cos + rotate_half(x) * sin`` over the whole head (RoFormer, arXiv 2104.09864; halves as in GPT-NeoX)."""

    x: fx.Node
    cos: fx.Node
    sin: fx.Node


def fuse_rotary(graph: fx.GraphModule) -> int:
    """Give ``slot_attention`` the unrotated q and k with cos and sin, wherever both are rotated alike; how many."""
    fused = 0
    for node in graph.graph.find_nodes(op="call_function", target=_SLOT_ATTENTION):
        query, key = (_match_rotation(argument) for argument in node.args[:2])
        if query is None or key is None or (query.cos, query.sin) != (key.cos, key.sin):
            continue
        node.args = (query.x, key.x, *node.args[2:])
        node.kwargs = {**node.kwargs, "rope_cos": query.cos, "rope_sin": query.sin}
        fused += 1
    return fused


def _match_rotation(node: Any) -> _Rotation | None:
    """``add(mul(x, cos), mul(cat(neg(x[h:]), x[:h]), sin))`` with cos and sin [b, 1, s, d] over the heads of x."""
    terms = call_args(node, aten.add.Tensor, 2)
    straight = call_args(terms[0], aten.mul.Tensor, 2) if terms else None
    crossed = call_args(terms[1], aten.mul.Tensor, 2) if terms else None
    if not straight or not crossed:
        return None
    x, cos, sin = straight[0], _over_heads(straight[1]), _over_heads(crossed[1])
    if not isinstance(x, fx.Node) or cos is None or sin is None or not _is_half_rotation(crossed[0], x):
        return None
    if {value.meta["val"].shape[-1] for value in (cos, sin)} != {x.meta["val"].shape[-1]}:
        return None
    return _Rotation(x, cos, sin)


def _is_half_rotation(node: Any, x: fx.Node) -> bool:
    parts = call_args(node, aten.cat.default, 2)
    if not parts or parts[1] not in (-1, 3) or len(parts[0]) != 2:
        return False
    negated, first = parts[0]
    second = call_args(negated, aten.neg.default, 1)
    half = x.meta["val"].shape[-1] // 2
    return second is not None and _slice(first, x) == (0, half) and _slice(second[0], x) == (half, 2 * half)


def _slice(node: Any, x: fx.Node) -> tuple[int, int] | None:
    """(start, end) of a slice of x's last dimension."""
    args = call_args(node, aten.slice.Tensor, 4)
    if not args or args[0] is not x or args[1] not in (-1, 3):
        return None
    return args[2], min(args[3], x.meta["val"].shape[-1])


def _over_heads(node: Any) -> fx.Node | None:
    """The float32 [b, s, d] behind ``unsqueeze(., 1)``; a cast to a narrower dtype in between is not needed."""
    args = call_args(node, aten.unsqueeze.default, 2)
    if not args or args[1] != 1:
        return None
    source = args[0]
    cast = call_args(source, aten.to.dtype, 2)
    if cast and cast[0].meta["val"].dtype == torch.float32:
        source = cast[0]
    return source if isinstance(source, fx.Node) and source.meta["val"].dtype == torch.float32 else None
