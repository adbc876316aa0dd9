"""RMS norms as calls of the vendor's operator, which the device compiler knows and computes without leaving float16.

The squares of large activations pass float16's range where a norm is spelled out in plain operators.
"""
# The body of the function is in onnxscript's own language, which only looks like Python.
# mypy: disable-error-code="arg-type,return-value,type-var,untyped-decorator"

from __future__ import annotations

import onnx_ir as ir
import onnxscript
from onnxscript import FLOAT
from onnxscript import opset18 as op
from onnxscript.rewriter import pattern

DOMAIN = "com.qti.aisw.onnx"
_vendor = onnxscript.values.Opset(DOMAIN, 1)


@onnxscript.script(_vendor)
def CustomRMSNorm(hidden: FLOAT, weight: FLOAT, epsilon: float) -> FLOAT:
    """hidden [..., d] over the root of its mean square along d, times weight [d]."""
    mean = op.ReduceMean(op.Mul(hidden, hidden), op.Constant(value_ints=[-1]), keepdims=1)
    small = op.Constant(value_float=epsilon)
    return op.Mul(op.Mul(hidden, op.Reciprocal(op.Sqrt(op.Add(mean, small)))), weight)


def name_norms(model: ir.Model) -> int:
    """Put the operator in the place of every float32 norm with a weight of its own; how many there were."""
    rules = pattern.RewriteRuleSet([pattern.RewriteRule(_spelled_out, _named, _is_norm)], commute=True)
    found = rules.apply_to_model(model)
    if found:
        function = ir.serde.deserialize_function(CustomRMSNorm.to_function_proto())
        model.functions[function.identifier()] = function
        model.opset_imports[DOMAIN] = 1
    return found


def _spelled_out(op, hidden, two, axes, epsilon, weight):  # type: ignore[no-untyped-def]
    mean = op.ReduceMean(op.Pow(hidden, two), axes, keepdims=1, _allow_other_attributes=True)
    return op.Mul(op.Mul(hidden, op.Reciprocal(op.Sqrt(op.Add(mean, epsilon)))), weight)


def _named(op, hidden, weight, epsilon, **_):  # type: ignore[no-untyped-def]
    value = float(epsilon.const_value.numpy().item())
    return op.CustomRMSNorm(hidden, weight, epsilon=value, _domain=DOMAIN, _version=1)


def _is_norm(context, hidden, two, axes, epsilon, weight, **_):  # type: ignore[no-untyped-def]
    return (
        _constant(two) == 2
        and _constant(axes) == -1
        and _constant(epsilon) is not None
        and hidden.dtype == ir.DataType.FLOAT
        and weight.shape is not None
        and len(weight.shape) == 1
    )


def _constant(value: ir.Value) -> float | None:
    """The number that a value is; None when it is none."""
    tensor = ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None
