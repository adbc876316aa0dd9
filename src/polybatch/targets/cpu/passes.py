"""Graph passes of the cpu target: every matrix product becomes a ``polybatch`` operator on packed weights.

The passes work on the module that ``models/export.py`` makes. Products that share an input are merged into one
(q/k/v, gate/up): fewer and larger parallel regions. A row's result does not depend on the merge.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx

from polybatch.targets.base import InputChange, RoundedWeight
from polybatch.targets.cpu.calibration import SeenInputs
from polybatch.targets.cpu.weight_formats import FloatWeights, PackedWeight, WeightFormat, WeightPlan

aten = torch.ops.aten

# Products that torch would run by kernels whose order of arithmetic we do not control.
_UNPACKED = (aten.linear, aten.addmm, aten.mm, aten.bmm, aten.matmul, aten.einsum, aten.baddbmm, aten._grouped_mm)

# What may stand between a parameter and the product that reads it.
_FOLDABLE = (
    aten.transpose.int,
    aten.t.default,
    aten.numpy_T.default,
    aten.permute.default,
    aten.to.dtype,
    aten.to.device,
    aten._to_copy.default,
    aten.alias.default,
    aten.detach.default,
)


@dataclass(frozen=True)
class _Linear:
    """One ``x @ weight.T + bias`` of the graph; ``weight`` is [n, k]."""

    node: fx.Node
    x: fx.Node
    weight: Tensor
    bias: Tensor | None


def pack_weights(graph: fx.GraphModule, plan: WeightPlan, inputs: SeenInputs) -> tuple[RoundedWeight, ...]:
    """Replace all linears and expert linears of ``graph`` by operators on packed weights, in place.

    Returns the weights that are no longer what they were.
    """
    _fold_constants(graph)
    rounded: list[RoundedWeight] = []
    for weights, group in _linears_by_input(graph, plan):
        rounded += _replace_linears(graph, group, weights, inputs)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.polybatch.expert_linear.default):
        rounded += _replace_expert_linear(graph, node, plan.layers)
    _drop_assertions(graph)
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    _delete_unused_constants(graph)
    graph.graph.lint()
    graph.recompile()
    return tuple(rounded)


def is_batch_invariant(graph: fx.GraphModule) -> bool:
    """Whether no matrix product is left to torch's own kernels, whose arithmetic depends on the number of rows."""
    return not any(
        node.op == "call_function" and getattr(node.target, "overloadpacket", None) in _UNPACKED
        for node in graph.graph.nodes
    )


def constant(graph: fx.GraphModule, node: Any) -> Tensor | None:
    """The tensor behind a ``get_attr`` node, else None."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value: Any = graph
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value.detach() if isinstance(value, Tensor) else None


def add_constant(graph: fx.GraphModule, name: str, value: Tensor) -> fx.Node:
    """Register a buffer and return a ``get_attr`` node for it at the graph's insertion point."""
    name = name.replace(".", "_")
    graph.register_buffer(name, value)
    node = graph.graph.get_attr(name)
    example = next(n for n in graph.graph.nodes if n.op == "placeholder").meta["val"]
    node.meta["val"] = example.fake_mode.from_tensor(value, static_shapes=True)
    return node


def _add_constants(graph: fx.GraphModule, of: fx.Node, packed: PackedWeight) -> list[fx.Node]:
    return [add_constant(graph, f"{name}_{of.name}", value) for name, value in packed.constants.items()]


def _fold_constants(graph: fx.GraphModule) -> None:
    """Compute what only reshapes or casts a parameter (``weight.T``, ``sinks.float()``) once, at compile time."""
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or node.target not in _FOLDABLE:
            continue
        source = constant(graph, node.args[0])
        if source is None:
            continue
        with graph.graph.inserting_before(node):
            folded = add_constant(graph, f"folded_{node.name}", node.target(source, *node.args[1:], **node.kwargs))
        node.replace_all_uses_with(folded)
        graph.graph.erase_node(node)


def _match_linear(graph: fx.GraphModule, node: fx.Node) -> _Linear | None:
    if node.op != "call_function":
        return None
    if node.target == aten.linear.default:
        x, weight, bias = (*node.args, None)[:3]
        transposed = False
    elif node.target == aten.addmm.default and not node.kwargs:
        bias, x, weight = node.args
        transposed = True
    elif node.target in (aten.mm.default, aten.matmul.default):
        (x, weight), bias, transposed = node.args, None, True
    else:
        return None
    value, offset = constant(graph, weight), constant(graph, bias)
    if value is None or value.dim() != 2 or (bias is not None and offset is None) or not isinstance(x, fx.Node):
        return None
    return _Linear(node, x, value.t() if transposed else value, offset)


def _linears_by_input(graph: fx.GraphModule, plan: WeightPlan) -> list[tuple[WeightFormat, list[_Linear]]]:
    """The linears that share an input and a format.

    Routers keep their weights: a small error sends a token to another expert. Their width does not tell them: one over
    128 experts is as wide as the keys of a single head.
    """
    formats: dict[fx.Node, WeightFormat] = dict.fromkeys(
        _linears_above(graph, [graph.graph.output_node()]), plan.logits
    )
    choices = graph.graph.find_nodes(op="call_function", target=aten.topk.default)
    formats |= dict.fromkeys(_linears_above(graph, choices), FloatWeights())
    groups: dict[tuple[fx.Node, WeightFormat], list[_Linear]] = defaultdict(list)
    for node in graph.graph.nodes:
        linear = _match_linear(graph, node)
        if linear is not None:
            groups[linear.x, formats.get(node, plan.layers)].append(linear)
    return [(weights, group) for (_, weights), group in groups.items()]


def _linears_above(graph: fx.GraphModule, nodes: list[fx.Node]) -> set[fx.Node]:
    """The nearest linears whose results reach one of ``nodes``."""
    found, seen, waiting = set(), set(nodes), list(nodes)
    while waiting:
        for node in set(waiting.pop().all_input_nodes) - seen:
            seen.add(node)
            if _match_linear(graph, node) is not None:
                found.add(node)
            else:
                waiting.append(node)
    return found


def _replace_linears(
    graph: fx.GraphModule, group: list[_Linear], weights: WeightFormat, inputs: SeenInputs
) -> list[RoundedWeight]:
    """One packed product for all linears of ``group``; each reads its own columns of the result."""
    first = group[0].node
    widths = [linear.weight.shape[0] for linear in group]
    weight = torch.cat([linear.weight for linear in group]) if len(group) > 1 else group[0].weight
    seen = inputs.get(group[0].weight.data_ptr())
    packed = weights.pack(weight, None if seen is None else torch.cat(seen))
    with graph.graph.inserting_before(first):
        x = _changed_input(graph, group[0], packed.change)
        constants = _add_constants(graph, first, packed)
        bias = _merged_bias(graph, group, packed.change)
        out = graph.graph.call_function(packed.op, (x, *constants, bias, sum(widths), *packed.options))
        out.meta["val"] = x.meta["val"].new_empty((*x.meta["val"].shape[:-1], sum(widths)))
        ends = list(accumulate(widths))
        for linear, width, end in zip(group, widths, ends, strict=True):
            part = out if len(group) == 1 else _columns(graph, out, end - width, end)
            linear.node.replace_all_uses_with(part)
    for linear in group:
        graph.graph.erase_node(linear.node)
    return [
        rounded
        for linear, width, end in zip(group, widths, ends, strict=True)
        for rounded in _rounded(linear.weight, packed, slice(end - width, end))
    ]


def _changed_input(graph: fx.GraphModule, linear: _Linear, change: InputChange | None) -> fx.Node:
    """Nodes for (x - shift) / scale, which the compiler makes part of what computes x."""
    x = linear.x
    if change is None:
        return x
    steps = [(aten.sub.Tensor, "shift", change.shift), (aten.mul.Tensor, "factor", 1 / change.scale)]
    for operator, name, value in steps:
        constant = add_constant(graph, f"{name}_{linear.node.name}", value.to(linear.weight.dtype))
        before, x = x, graph.graph.call_function(operator, (x, constant))
        x.meta["val"] = before.meta["val"].new_empty(before.meta["val"].shape)
    return x


def _rounded(source: Tensor, packed: PackedWeight, rows: slice) -> list[RoundedWeight]:
    """What ``source`` has become, as ``rows`` of what was packed; nothing if it is as it was."""
    value = packed.value
    if value is None:
        return []
    return [RoundedWeight(source, lambda: value()[..., rows, :], any(packed.options), packed.change)]


def _columns(graph: fx.GraphModule, out: fx.Node, start: int, end: int) -> fx.Node:
    node = graph.graph.call_function(aten.slice.Tensor, (out, -1, start, end))
    node.meta["val"] = out.meta["val"][..., start:end]
    return node


def _merged_bias(graph: fx.GraphModule, group: list[_Linear], change: InputChange | None) -> fx.Node | None:
    if change is None and all(linear.bias is None for linear in group):
        return None
    parts = [torch.zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias.float() for linear in group]
    if change is not None:
        parts = [part + linear.weight.float() @ change.shift for part, linear in zip(parts, group, strict=True)]
    return add_constant(graph, f"bias_{group[0].node.name}", torch.cat(parts))


def _replace_expert_linear(graph: fx.GraphModule, node: fx.Node, weights: WeightFormat) -> list[RoundedWeight]:
    x, weight_node, bias_node, expert_index = node.args
    weight, bias = constant(graph, weight_node), constant(graph, bias_node)
    if weight is None or (bias_node is not None and bias is None):
        return []
    packed = weights.pack(weight)
    with graph.graph.inserting_before(node):
        constants = _add_constants(graph, node, packed)
        bias_float = None if bias is None else add_constant(graph, f"bias_{node.name}", bias.float())
        out = graph.graph.call_function(
            packed.op, (x, *constants, bias_float, expert_index, weight.shape[1], *packed.options)
        )
    out.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(out)
    graph.graph.erase_node(node)
    return _rounded(weight, packed, slice(None))


def _drop_assertions(graph: fx.GraphModule) -> None:
    """Export's checks of dtypes and devices hold by construction; they would only cost time in every step."""
    for node in graph.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
        graph.graph.erase_node(node)


def _delete_unused_constants(graph: fx.GraphModule) -> None:
    """Forget parameters and buffers that no node reads, so that the compiler does not store them."""
    used = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    for name, _ in [*graph.named_parameters(remove_duplicate=False), *graph.named_buffers(remove_duplicate=False)]:
        if name not in used:
            *path, leaf = name.split(".")
            owner = graph.get_submodule(".".join(path))
            delattr(owner, leaf)
