"""The cache operators as ONNX functions over ScatterND and GatherND, in the vendor's operator domain.

A plain runtime can expand them; the device compiler inlines them. Index tensors are laid out as the compiler knows
them: [rows, heads, positions, (slot, head, position)] for slots; position alone with batch_dims=2 for a row's own.
"""
# The bodies are in onnxscript's own language, which only looks like Python.
# mypy: disable-error-code="index,arg-type,untyped-decorator"

import onnx_ir as ir
import onnxscript
from onnxscript import FLOAT, INT64
from onnxscript import opset18 as op

from polybatch.targets.qaic.names import CACHE_DOMAIN

OPSET = 18
_cloud = onnxscript.values.Opset(CACHE_DOMAIN, 1)


@onnxscript.script(_cloud)
def CtxScatterCB(data: FLOAT, batch_index: INT64, position_ids: INT64, updates: FLOAT) -> FLOAT:
    """Write updates [b, h, s, d] into data [slots, h, ctx, d] at slot batch_index [b, 1], position_ids [b, s]."""
    shape = op.Concat(op.Shape(updates)[0:3], op.Constant(value_ints=[1]), axis=0)
    heads = op.Range(0, op.Squeeze(op.Shape(updates)[1:2]), 1)
    slot = op.Expand(op.Unsqueeze(batch_index, [2, 3]), shape)
    head = op.Expand(op.Unsqueeze(heads, [0, 2, 3]), shape)
    position = op.Expand(op.Unsqueeze(position_ids, [1, 3]), shape)
    return op.ScatterND(data, op.Concat(slot, head, position, axis=3), updates)


@onnxscript.script(_cloud)
def CtxGatherCB(data: FLOAT, batch_index: INT64, ctx_indices: INT64, comp_ctx_len: INT64) -> FLOAT:
    """Read positions ctx_indices [b, 1, L] of slot batch_index [b, 1]; [b, h, L, d]. comp_ctx_len is L."""
    rows = op.Shape(batch_index)[0:1]
    length = op.Shape(ctx_indices)[2:3]
    heads_dim = op.Shape(data)[1:2]
    shape = op.Concat(rows, heads_dim, length, op.Constant(value_ints=[1]), axis=0)
    heads = op.Range(0, op.Squeeze(heads_dim), 1)
    slot = op.Expand(op.Unsqueeze(batch_index, [2, 3]), shape)
    head = op.Expand(op.Unsqueeze(heads, [0, 2, 3]), shape)
    position = op.Expand(op.Unsqueeze(ctx_indices, [3]), shape)
    return op.GatherND(data, op.Concat(slot, head, position, axis=3))


@onnxscript.script(_cloud)
def CtxScatter(data: FLOAT, position_ids: INT64, updates: FLOAT) -> FLOAT:
    """Write updates [b, h, s, d] into data [b, h, ctx, d] at position_ids [b, s]."""
    shape = op.Concat(op.Shape(updates)[0:3], op.Constant(value_ints=[1]), axis=0)
    rows = op.Range(0, op.Squeeze(op.Shape(updates)[0:1]), 1)
    heads = op.Range(0, op.Squeeze(op.Shape(updates)[1:2]), 1)
    row = op.Expand(op.Unsqueeze(rows, [1, 2, 3]), shape)
    head = op.Expand(op.Unsqueeze(heads, [0, 2, 3]), shape)
    position = op.Expand(op.Unsqueeze(position_ids, [1, 3]), shape)
    return op.ScatterND(data, op.Concat(row, head, position, axis=3), updates)


@onnxscript.script(_cloud)
def CtxGather(data: FLOAT, ctx_indices: INT64, comp_ctx_len: INT64) -> FLOAT:
    """Read positions ctx_indices [b, 1, L] of data [b, h, ctx, d]; [b, h, L, d]. comp_ctx_len is L."""
    shape = op.Concat(op.Shape(data)[0:2], op.Shape(ctx_indices)[2:3], axis=0)
    position = op.Unsqueeze(op.Expand(ctx_indices, shape), [3])
    return op.GatherND(data, position, batch_dims=2)


def cache_functions() -> list[ir.Function]:
    """All of them, for a model that calls them."""
    functions = (CtxScatterCB, CtxGatherCB, CtxScatter, CtxGather)
    return [ir.serde.deserialize_function(function.to_function_proto()) for function in functions]
