"""Makes a bfloat16 graph one of float32 over the same weights: ONNX Runtime has few bfloat16 operators for CPUs."""

from __future__ import annotations

import onnx_ir as ir

_NARROW, _WIDE = ir.DataType.BFLOAT16, ir.DataType.FLOAT


def widen(model: ir.Model) -> None:
    """Every bfloat16 value of the main graph becomes float32; weights are cast where they are used."""
    graph = model.graph
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    for value in values:
        if value.dtype == _NARROW:
            value.dtype = _WIDE
    for node in graph:
        if node.op_type == "Cast" and node.attributes.get_int("to") == _NARROW:
            node.attributes["to"] = ir.AttrInt64("to", _WIDE)
    place = {node: index for index, node in enumerate(graph)}
    for weight in list(graph.initializers.values()):
        if weight.dtype == _NARROW and weight.uses():
            # As late as possible: so only few weights are there twice at a time.
            _cast(graph, weight, before=min((user for user, _ in weight.uses()), key=place.__getitem__))


def _cast(graph: ir.Graph, weight: ir.Value, before: ir.Node) -> None:
    node = ir.node("Cast", [weight], attributes={"to": _WIDE})
    wide = node.outputs[0]
    wide.name, wide.dtype = f"{weight.name}_wide", _WIDE
    for user, index in list(weight.uses()):
        if user is not node:
            user.replace_input_with(index, wide)
    graph.insert_before(before, node)
