"""Graph pass: the norm of a linear's input moves into the linear.

Root mean square norms (arXiv 1910.07467) as in Llama and its kin, with a weight w or 1 + w, and what the compiler
itself does to inputs of int8 products. The kernel normalizes rows as it stages them: no pass over memory and no
parallel region of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from polybatch.ops import PACKED_LINEARS
from polybatch.targets.cpu.fx_match import call_args
from polybatch.targets.cpu.passes import add_constant, constant

aten = torch.ops.aten


@dataclass(frozen=True)
class _Norm:
    """``x * rsqrt(mean(x^2) + eps) * weight + bias``, the vectors float32."""

    x: fx.Node
    eps: float
    weight: Tensor
    bias: Tensor | None = None


def fuse_norms(graph: fx.GraphModule) -> int:
    """Let packed linears normalize their inputs where nothing else reads the normalized ones, in place; how many do."""
    fused = 0
    for linear in [node for node in graph.graph.nodes if node.target in PACKED_LINEARS]:
        x = linear.args[0]
        norm = _match_changed_norm(graph, x) if len(x.users) == 1 else None
        if norm is None or norm.x.meta["val"].dtype != x.meta["val"].dtype:
            continue
        with graph.graph.inserting_before(linear):
            vectors = {"norm_weight": norm.weight, "norm_bias": norm.bias}
            constants = {
                name: add_constant(graph, f"{name}_{linear.name}", vector)
                for name, vector in vectors.items()
                if vector is not None
            }
        linear.args = (norm.x, *linear.args[1:])
        linear.kwargs = {**linear.kwargs, **constants, "norm_eps": norm.eps}
        fused += 1
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return fused


def _match_changed_norm(graph: fx.GraphModule, node: Any) -> _Norm | None:
    """A norm, or ``mul(sub(norm, shift), factor)``."""
    scaled = call_args(node, aten.mul.Tensor, 2)
    shifted = call_args(scaled[0], aten.sub.Tensor, 2) if scaled else None
    norm = _match_norm(graph, shifted[0]) if shifted else None
    shift, factor = (_vector(graph, part[1]) if part else None for part in (shifted, scaled))
    if norm is None or shift is None or factor is None:
        return _match_norm(graph, node)
    return _Norm(norm.x, norm.eps, norm.weight * factor, -shift * factor)


def _match_norm(graph: fx.GraphModule, node: Any) -> _Norm | None:
    """``weight * (x * rsqrt(mean(x^2) + eps))``, factors in any order; casts in between are not needed."""
    for weight_node, rest in _factors(node):
        weight = _vector(graph, weight_node)
        if weight is None:
            continue
        for x, root in _factors(rest):
            eps = _eps_of(root, x)
            source = _uncast(x)
            if eps is not None and isinstance(source, fx.Node) and source.meta["val"].shape[-1:] == weight.shape:
                return _Norm(source, eps, weight)
    return None


def _factors(node: Any) -> list[tuple[Any, Any]]:
    factors = call_args(_uncast(node), aten.mul.Tensor, 2)
    return [(factors[0], factors[1]), (factors[1], factors[0])] if factors else []


def _eps_of(root: Any, x: Any) -> float | None:
    """eps, where ``root`` is ``rsqrt(mean(x^2, the last dimension) + eps)``."""
    inner = call_args(root, aten.rsqrt.default, 1)
    added = call_args(inner[0], aten.add.Tensor, 2) if inner else None
    mean = call_args(added[0], aten.mean.dim, 3) if added else None
    power = call_args(mean[0], aten.pow.Tensor_Scalar, 2) if mean else None
    if not added or not mean or not power or list(mean[1]) != [-1] or mean[2] is not True:
        return None
    return float(added[1]) if power == (x, 2) and isinstance(added[1], float) else None


def _uncast(node: Any) -> Any:
    """What is behind changes of dtype."""
    while cast := call_args(node, aten.to.dtype, 2) or call_args(node, aten.type_as.default, 2):
        node = cast[0]
    return node


def _vector(graph: fx.GraphModule, node: Any) -> Tensor | None:
    """The float32 vector that is a parameter, or a parameter plus a number."""
    added = call_args(node, aten.add.Tensor, 2)
    numbers = [arg for arg in added or () if isinstance(arg, int | float)]
    others = [arg for arg in added or (node,) if not isinstance(arg, int | float)]
    value = constant(graph, _uncast(others[0])) if len(others) == 1 else None
    return value.float() + sum(numbers) if value is not None and value.dim() == 1 else None
