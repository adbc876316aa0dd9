"""Calls of the native kernels on torch tensors: the structs of kernels/api.h, filled in and checked."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from polybatch.targets.cpu.packing import (
    LINEAR_PANEL,
    VECTOR,
    elements_per_group,
    packed_int8_shape,
    packed_linear_shape,
)

_int64 = ctypes.c_int64
_pointer = ctypes.c_void_p
_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1}


class _LinearCall(ctypes.Structure):
    """``PolybatchLinear`` of kernels/api.h."""

    _fields_ = [
        ("element", _int64),
        ("rows", _int64),
        ("in_features", _int64),
        ("out_features", _int64),
        ("x", _pointer),
        ("x_row_stride", _int64),
        ("weight", _pointer),
        ("weight_element", _int64),
        ("bias", _pointer),
        ("y", _pointer),
        ("scale", _pointer),
        ("narrow_rows", _int64),
        ("float_result", _int64),
        ("gated", _int64),
        ("norm_weight", _pointer),
        ("norm_bias", _pointer),
        ("norm_eps", ctypes.c_float),
        ("residual", _pointer),
        ("residual_row_stride", _int64),
    ]


class _ExpertLinearCall(ctypes.Structure):
    """``PolybatchExpertLinear`` of kernels/api.h."""

    _fields_ = [("linear", _LinearCall), ("expert_index", _pointer), ("experts", _int64)]


class _SlotAttentionCall(ctypes.Structure):
    """``PolybatchSlotAttention`` of kernels/api.h."""

    _fields_ = [
        ("element", _int64),
        ("batch", _int64),
        ("heads", _int64),
        ("kv_heads", _int64),
        ("tokens", _int64),
        ("head_dim", _int64),
        ("value_dim", _int64),
        ("q", _pointer),
        ("q_strides", _int64 * 3),
        ("k", _pointer),
        ("k_strides", _int64 * 3),
        ("v", _pointer),
        ("v_strides", _int64 * 3),
        ("cache", _pointer),
        ("slot_elements", _int64),
        ("k_offset", _int64),
        ("v_offset", _int64),
        ("ctx_len", _int64),
        ("batch_index", _pointer),
        ("position_ids", _pointer),
        ("batch_index_stride", _int64),
        ("position_strides", _int64 * 2),
        ("sinks", _pointer),
        ("rope_cos", _pointer),
        ("rope_sin", _pointer),
        ("rope_strides", _int64 * 2),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window", _int64),
        ("out", _pointer),
    ]


KERNELS: dict[str, type[ctypes.Structure]] = {
    "packed_linear": _LinearCall,
    "packed_expert_linear": _ExpertLinearCall,
    "slot_attention": _SlotAttentionCall,
}
"""The kernels by name, with the struct that each takes a pointer to."""


@dataclass(frozen=True)
class KernelCall:
    """The arguments of one kernel, checked. ``KernelLibrary.run`` can run it any number of times."""

    kernel: str
    arguments: ctypes.Structure
    result: Tensor
    lent: tuple[Tensor | None, ...]
    """The tensors that ``arguments`` points to, kept alive."""


@dataclass(frozen=True)
class Int8:
    """How int8 weights are to be used."""

    scale: Tensor
    """float32 [N], from ``pack_linear_int8``; of experts, [E, N]."""
    narrow_activations: bool
    """Whether each row of x becomes int8 too, or integers that hold it: 16 bits of bfloat16, 23 of float32."""


@dataclass(frozen=True)
class Norm:
    """The root mean square norm of each row of x: float32 vectors [K]."""

    weight: Tensor
    eps: float
    bias: Tensor | None = None


def packed_linear_call(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_features: int,
    int8: Int8 | None = None,
    float_result: bool = False,
    gated: bool = False,
    norm: Norm | None = None,
    residual: Tensor | None = None,
) -> KernelCall:
    """x [..., K] times a weight from ``pack_linear``, plus an fp32 bias [N]: [..., N] in x's dtype.

    For float32 x the packed weight may be bfloat16 too, which is widened exactly.

    With ``int8`` the weight is from ``pack_linear_int8``; with ``float_result`` the sums come back as they are, fp32.
    ``gated`` (where the library ``has_gates``): weight, scale and bias are ``packing.interleaved`` ones of a gate and
    of what belongs to it, N in all, and the result is silu(gate) * the other, [..., N / 2].
    ``norm`` is applied to x first. ``residual`` [..., N] of x's dtype is added before the result is rounded.
    """
    linear, result, lent = _linear_arguments(x, weight, bias, out_features, int8, (), float_result, gated)
    if norm is not None:
        _require_vectors((x.shape[-1],), norm_weight=norm.weight, norm_bias=norm.bias)
        linear.norm_weight, linear.norm_eps = norm.weight.data_ptr(), norm.eps
        linear.norm_bias = None if norm.bias is None else norm.bias.data_ptr()
        lent = (*lent, norm.weight, norm.bias)
    if residual is not None:
        if residual.shape != result.shape or residual.dtype != result.dtype or gated or out_features % VECTOR:
            raise ValueError(f"the residual {residual.dtype} {list(residual.shape)} does not fit {list(result.shape)}")
        rows = residual.reshape(-1, out_features).contiguous()
        linear.residual, linear.residual_row_stride = rows.data_ptr(), out_features
        lent = (*lent, rows)
    return KernelCall("packed_linear", linear, result, lent)


def packed_expert_linear_call(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    expert_index: Tensor,
    out_features: int,
    int8: Int8 | None = None,
) -> KernelCall:
    """Row i of x [rows, K] times expert ``expert_index[i]`` of stacked packed weights [E, ...]; bias [E, N]."""
    experts = weight.shape[0]
    if x.dim() != 2 or expert_index.dtype != torch.int64 or tuple(expert_index.shape) != (x.shape[0],):
        raise ValueError(f"x {list(x.shape)} and expert_index {list(expert_index.shape)} do not fit together")
    if ((expert_index < 0) | (expert_index >= experts)).any():
        raise ValueError(f"expert_index must be in 0..{experts - 1}")
    linear, result, lent = _linear_arguments(x, weight, bias, out_features, int8, (experts,))
    expert_index = expert_index.contiguous()
    arguments = _ExpertLinearCall(linear, expert_index.data_ptr(), experts)
    return KernelCall("packed_expert_linear", arguments, result, (*lent, expert_index))


def _linear_arguments(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_features: int,
    int8: Int8 | None,
    stack: tuple[int, ...],
    float_result: bool = False,
    gated: bool = False,
) -> tuple[_LinearCall, Tensor, tuple[Tensor | None, ...]]:
    """A linear's arguments, its result and the tensors they point to; what is constant has leading sizes ``stack``."""
    in_features = x.shape[-1]
    dtypes: tuple[torch.dtype, ...]
    if int8 is None:
        dtypes, shape = (x.dtype, torch.bfloat16), packed_linear_shape(out_features, in_features, x.dtype)
    else:
        dtypes, shape = (torch.int8,), packed_int8_shape(out_features, in_features)
    if x.dtype not in _ELEMENTS or weight.dtype not in dtypes or tuple(weight.shape) != (*stack, *shape):
        raise ValueError(f"x {x.dtype} {list(x.shape)} does not fit weight {weight.dtype} {list(weight.shape)}")
    scale = None if int8 is None else int8.scale
    _require_vectors((*stack, out_features), bias=bias, scale=scale)
    if gated and out_features % LINEAR_PANEL:
        raise ValueError(f"gated columns come in whole panels of {LINEAR_PANEL}, not {out_features}")
    rows = x.reshape(-1, in_features) if in_features else x.new_empty(x.shape[:-1].numel(), 0)
    rows = rows if in_features <= 1 or rows.stride(-1) == 1 else rows.contiguous()
    weight = weight.contiguous()
    bias, scale = (None if vector is None else vector.contiguous() for vector in (bias, scale))
    columns = out_features // 2 if gated else out_features
    y = x.new_empty(*x.shape[:-1], columns, dtype=torch.float32 if float_result else x.dtype)
    call = _LinearCall(
        _ELEMENTS[x.dtype],
        rows.shape[0],
        in_features,
        out_features,
        rows.data_ptr(),
        rows.stride(0),
        weight.data_ptr(),
        _ELEMENTS.get(weight.dtype, -1),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        None if scale is None else scale.data_ptr(),
        int8 is not None and int8.narrow_activations,
        float_result,
        gated,
    )
    return call, y, (rows, weight, bias, scale)


def _require_vectors(shape: tuple[int, ...], **vectors: Tensor | None) -> None:
    for name, vector in vectors.items():
        if vector is not None and (vector.dtype != torch.float32 or tuple(vector.shape) != shape):
            raise ValueError(f"the {name} must be float32 {list(shape)}, not {vector.dtype} {list(vector.shape)}")


def slot_attention_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    batch_index: Tensor,
    position_ids: Tensor,
    sinks: Tensor | None,
    k_offset: int,
    v_offset: int,
    ctx_len: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    rope_cos: Tensor | None = None,
    rope_sin: Tensor | None = None,
) -> KernelCall:
    """Write k, v into ``cache`` [slots, slot_elements] in place, then attend to the live positions of each slot.

    q [B, H, S, D], k [B, HK, S, D], v [B, HK, S, DV], batch_index [B] or [B, 1], position_ids [B, S] with -1 for
    padding, sinks float32 [H] or None, rope_cos and rope_sin float32 [B, S, D] (one layout) or None.
    Returns [B, S, H, DV].
    """
    batch, heads, tokens, head_dim = q.shape
    kv_heads, value_dim = k.shape[1], v.shape[3]
    elements_per_group(q.dtype)
    if not q.dtype == k.dtype == v.dtype == cache.dtype:
        raise ValueError(f"q {q.dtype}, k {k.dtype}, v {v.dtype} and cache {cache.dtype} must have one dtype")
    if tuple(k.shape) != (batch, kv_heads, tokens, head_dim) or tuple(v.shape) != (
        batch,
        kv_heads,
        tokens,
        value_dim,
    ):
        raise ValueError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not fit together")
    if heads % kv_heads or tuple(position_ids.shape) != (batch, tokens) or batch_index.numel() != batch:
        raise ValueError("heads, batch_index or position_ids do not fit q and k")
    live = position_ids >= 0
    slots = batch_index.reshape(batch)[live.any(dim=1)]
    if (position_ids >= ctx_len).any() or (slots < 0).any() or (slots >= cache.shape[0]).any():
        raise ValueError(f"a position is not below {ctx_len}, or a slot is not in 0..{cache.shape[0] - 1}")
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    batch_index = batch_index.reshape(batch)
    out = q.new_empty(batch, tokens, heads, value_dim)
    call = _SlotAttentionCall(
        _ELEMENTS[q.dtype], batch, heads, kv_heads, tokens, head_dim, value_dim,
        q.data_ptr(), (_int64 * 3)(*q.stride()[:3]),
        k.data_ptr(), (_int64 * 3)(*k.stride()[:3]),
        v.data_ptr(), (_int64 * 3)(*v.stride()[:3]),
        cache.data_ptr(), cache.shape[1], k_offset, v_offset, ctx_len,
        batch_index.data_ptr(), position_ids.data_ptr(), batch_index.stride(0),
        (_int64 * 2)(*position_ids.stride()),
        None if sinks is None else sinks.data_ptr(), *_rope(rope_cos, rope_sin), scale, softcap, window, out.data_ptr(),
    )  # fmt: skip
    return KernelCall(
        "slot_attention", call, out, (q, k, v, cache, batch_index, position_ids, sinks, rope_cos, rope_sin)
    )


def _rope(cos: Tensor | None, sin: Tensor | None) -> tuple[object, ...]:
    if cos is None or sin is None:
        return None, None, (_int64 * 2)()
    return cos.data_ptr(), sin.data_ptr(), (_int64 * 2)(*cos.stride()[:2])
