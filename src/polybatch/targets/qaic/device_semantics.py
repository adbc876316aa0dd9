"""Rewrites a graph so that ONNX Runtime does with indices out of range what the device does.

The device drops a write whose position lies outside the context, and a read there gives anything. ONNX Runtime refuses
both. So each write goes to a cache with one more position, which takes what is dropped and is cut off again, and each
read sees NaN there: a graph that lets any of it through has NaN logits.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from polybatch.targets.qaic.names import MODEL_FILE, is_retained
from polybatch.targets.qaic.widening import widen

_CONTEXT_AXIS = 2
_ANY = np.iinfo(np.int64).max


def load_with_device_semantics(folder: Path) -> bytes:
    """The model in ``folder`` as a serialized ONNX model whose weights still lie in that folder's data file."""
    model = ir.load(folder / MODEL_FILE)
    InlinePass()(model)
    widen(model)
    for node in list(model.graph):
        if node.op_type == "ScatterND" and _is_cache(node.inputs[0]):
            _drop_writes_outside(model.graph, node)
        elif node.op_type == "GatherND" and _is_cache(node.inputs[0]):
            _read_nan_outside(model.graph, node)
    model.graph.sort()
    proto: bytes = ir.to_proto(model).SerializeToString()
    return proto


def _is_cache(value: ir.Value | None) -> bool:
    """Whether the value is a retained input, or one of them after writes."""
    while value is not None:
        if value.is_graph_input():
            return is_retained(value.name or "")
        producer = value.producer()
        if producer is None or producer.op_type not in ("ScatterND", "Pad", "Slice"):
            return False
        value = producer.inputs[0]
    return False


def _drop_writes_outside(graph: ir.Graph, node: ir.Node) -> None:
    data, indices, updates = node.inputs
    assert data is not None and indices is not None
    build = _Builder(graph, node)
    end = build.context_length(data)
    scattered = build.add(
        "ScatterND", build.padded(data, 0.0), build.limited(indices, end, depth=_CONTEXT_AXIS + 1), updates
    )
    axis, start = build.constant([_CONTEXT_AXIS]), build.constant([0])
    _replace(graph, node, build.add("Slice", scattered, start, end, axis))


def _read_nan_outside(graph: ir.Graph, node: ir.Node) -> None:
    data, indices = node.inputs
    assert data is not None and indices is not None
    build = _Builder(graph, node)
    batch_dims = node.attributes.get_int("batch_dims", 0)
    end = build.context_length(data)
    index = build.limited(indices, end, depth=_CONTEXT_AXIS + 1 - batch_dims)
    _replace(
        graph,
        node,
        build.add("GatherND", build.padded(data, math.nan), index, attributes={"batch_dims": batch_dims}),
    )


def _replace(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    old = node.outputs[0]
    value.name, value.type, value.shape = old.name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    graph.remove(node, safe=True)


class _Builder:
    """Adds nodes in front of one."""

    def __init__(self, graph: ir.Graph, before: ir.Node) -> None:
        self._graph = graph
        self._before = before
        self._name = before.outputs[0].name
        self._count = 0

    def add(self, op: str, *inputs: ir.Value | None, attributes: dict[str, int] | None = None) -> ir.Value:
        node = ir.node(op, list(inputs), attributes=attributes or {})
        self._count += 1
        node.outputs[0].name = f"{self._name}_device_{self._count}"
        self._graph.insert_before(self._before, node)
        return node.outputs[0]

    def constant(self, values: list[int] | list[float], dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        self._count += 1
        name = f"{self._name}_device_{self._count}"
        value = ir.Value(name=name, const_value=ir.tensor(values, dtype=dtype, name=name))
        self._graph.register_initializer(value)
        return value

    def context_length(self, data: ir.Value) -> ir.Value:
        """[1]: the size of the context axis."""
        return self.add("Shape", data, attributes={"start": _CONTEXT_AXIS, "end": _CONTEXT_AXIS + 1})

    def padded(self, data: ir.Value, filler: float) -> ir.Value:
        """One more position at the end of the context axis."""
        assert data.dtype is not None
        value = self.add("Squeeze", self.constant([filler], data.dtype))
        return self.add("Pad", data, self.constant([0, 1]), value, self.constant([_CONTEXT_AXIS]))

    def limited(self, indices: ir.Value, end: ir.Value, depth: int) -> ir.Value:
        """Indices of ``depth`` coordinates, the last of which is the position, with at most ``end`` for that."""
        limit = self.add("Concat", self.constant([_ANY] * (depth - 1)), end, attributes={"axis": 0})
        return self.add("Min", indices, limit)
