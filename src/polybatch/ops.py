"""The custom operators that exported graphs call: schemas, shape rules and plain PyTorch implementations.

The ``eager`` target runs these implementations; the ``cpu`` target replaces them by native kernels with the same
schemas (``targets/cpu/kernels``). Importing this module registers the operators once per process.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INT8_LARGEST = 127.0

_LIBRARY = torch.library.Library("polybatch", "DEF")

_LIBRARY.define(
    "slot_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) cache, Tensor batch_index, Tensor position_ids, "
    "Tensor? sinks, int k_offset, int v_offset, int ctx_len, float scale, int window, float softcap, "
    "Tensor? rope_cos=None, Tensor? rope_sin=None) -> Tensor"
)
_LIBRARY.define(
    "packed_linear(Tensor x, Tensor weight, Tensor? bias, int out_features, bool float_result=False, "
    "bool gated=False, Tensor? norm_weight=None, Tensor? norm_bias=None, float norm_eps=0.0, "
    "Tensor? residual=None) -> Tensor"
)
_LIBRARY.define("expert_linear(Tensor x, Tensor weight, Tensor? bias, Tensor expert_index) -> Tensor")
_LIBRARY.define(
    "packed_expert_linear(Tensor x, Tensor weight, Tensor? bias, Tensor expert_index, int out_features) -> Tensor"
)
_LIBRARY.define(
    "packed_linear_int8(Tensor x, Tensor weight, Tensor scale, Tensor? bias, int out_features, "
    "bool narrow_activations, bool float_result=False, bool gated=False, Tensor? norm_weight=None, "
    "Tensor? norm_bias=None, float norm_eps=0.0, Tensor? residual=None) -> Tensor"
)
_LIBRARY.define(
    "packed_expert_linear_int8(Tensor x, Tensor weight, Tensor scale, Tensor? bias, Tensor expert_index, "
    "int out_features, bool narrow_activations) -> Tensor"
)


def slot_attention(
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
    window: int,
    softcap: float,
    rope_cos: Tensor | None = None,
    rope_sin: Tensor | None = None,
) -> Tensor:
    """Write a step's K/V rows into their slots, then attend over each slot's live positions.

    Shapes: ``q`` [b, heads, s, d], ``k`` [b, kv_heads, s, d], ``v`` [b, kv_heads, s, dv], ``cache`` [slots, elements]
    of the same dtype (changed in place), ``batch_index`` int64 [b, 1], ``position_ids`` int64 [b, s] with -1 for
    padding, ``sinks`` float [heads] or None. This layer's keys lie at ``k_offset`` as [kv_heads, ctx_len, d], its
    values at ``v_offset`` as [kv_heads, ctx_len, dv]. ``window`` 0 and ``softcap`` 0.0 mean none. With ``rope_cos``
    and ``rope_sin``, float32 [b, s, d], q and k are rotated first: x * cos + (-x[d/2:], x[:d/2]) * sin.
    Where s is 1, neighbouring rows may name one slot if their positions ascend: they are tokens of one sequence.
    Returns [b, s, heads, dv]; padding rows are zero. Arithmetic is float32.
    """
    if rope_cos is not None and rope_sin is not None:
        q, k = _rotate(q, rope_cos, rope_sin), _rotate(k, rope_cos, rope_sin)
    batch, heads, steps, _ = q.shape
    out = q.new_zeros(batch, steps, heads, v.shape[-1])
    for row in range(batch):
        positions = position_ids[row]
        live = (positions >= 0).nonzero().flatten()
        if live.numel() == 0:
            continue
        slot = cache[batch_index[row, 0]]
        keys = _head_view(slot, k_offset, k.shape[1], ctx_len, k.shape[-1])
        values = _head_view(slot, v_offset, v.shape[1], ctx_len, v.shape[-1])
        at = positions[live]
        keys[:, at] = k[row][:, live]
        values[:, at] = v[row][:, live]
        end = int(at.max()) + 1
        attended = _attend(q[row][:, live], keys[:, :end], values[:, :end], at, sinks, scale, window, softcap)
        out[row, live] = attended.transpose(0, 1).to(out.dtype)
    return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [b, heads, s, d] in float32, rounded to x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    rotated = x.float() * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
    return rotated.to(x.dtype)


def _head_view(slot: Tensor, offset: int, heads: int, ctx_len: int, dim: int) -> Tensor:
    return slot[offset : offset + heads * ctx_len * dim].view(heads, ctx_len, dim)


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, at: Tensor, sinks: Tensor | None, scale: float, window: int, softcap: float
) -> Tensor:
    """Attention of one sequence: q [heads, t, d] at positions ``at`` over keys [kv_heads, end, d]; float32."""
    groups = q.shape[0] // keys.shape[0]
    keys = keys.float().repeat_interleave(groups, dim=0)
    values = values.float().repeat_interleave(groups, dim=0)
    scores = torch.matmul(q.float(), keys.transpose(1, 2)) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    index = torch.arange(keys.shape[1])
    hidden = index[None, :] > at[:, None]
    if window:
        hidden |= index[None, :] <= at[:, None] - window
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        sink = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : keys.shape[1]]
    # A masked position may hold anything, NaN too: 0 * NaN must not reach the sum.
    values = values.masked_fill(hidden.all(dim=0)[None, :, None], 0.0)
    return torch.matmul(weights, values)


def expert_linear(x: Tensor, weight: Tensor, bias: Tensor | None, expert_index: Tensor) -> Tensor:
    """Row i of ``x`` [rows, k] times ``weight[expert_index[i]]`` ([experts, n, k]) plus its bias; [rows, n]."""
    out = x.new_zeros(x.shape[0], weight.shape[1])
    for expert in expert_index.unique().tolist():
        rows = (expert_index == expert).nonzero().flatten()
        out[rows] = torch.nn.functional.linear(x[rows], weight[expert], None if bias is None else bias[expert])
    return out


def rounded_rows(x: Tensor) -> Tensor:
    """Each row of x as integers of at most 127 times a scale of its own, as the int8 kernels take it."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    factor = torch.where(largest > 0, _INT8_LARGEST / largest, 0.0)
    return (x * factor).round() * (largest / _INT8_LARGEST)


_LIBRARY.impl("slot_attention", slot_attention, "CPU")
_LIBRARY.impl("expert_linear", expert_linear, "CPU")


@torch.library.register_fake("polybatch::slot_attention", lib=_LIBRARY)
def _slot_attention_shape(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    cache,
    batch_index,
    position_ids,
    sinks,
    k_offset,
    v_offset,
    ctx_len,
    scale,
    window,
    softcap,
    rope_cos=None,
    rope_sin=None,
):
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]))


@torch.library.register_fake("polybatch::packed_linear", lib=_LIBRARY)
def _packed_linear_shape(  # type: ignore[no-untyped-def]
    x, weight, bias, out_features, float_result=False, gated=False, *_norm_and_residual
):
    columns = out_features // 2 if gated else out_features
    return x.new_empty((*x.shape[:-1], columns), dtype=torch.float32 if float_result else x.dtype)


@torch.library.register_fake("polybatch::expert_linear", lib=_LIBRARY)
def _expert_linear_shape(x, weight, bias, expert_index):  # type: ignore[no-untyped-def]
    return x.new_empty((x.shape[0], weight.shape[1]))


@torch.library.register_fake("polybatch::packed_expert_linear", lib=_LIBRARY)
def _packed_expert_linear_shape(x, weight, bias, expert_index, out_features):  # type: ignore[no-untyped-def]
    return x.new_empty((x.shape[0], out_features))


@torch.library.register_fake("polybatch::packed_linear_int8", lib=_LIBRARY)
def _packed_linear_int8_shape(  # type: ignore[no-untyped-def]
    x, weight, scale, bias, out_features, narrow_activations, float_result=False, gated=False, *_norm_and_residual
):
    return _packed_linear_shape(x, weight, bias, out_features, float_result, gated)


@torch.library.register_fake("polybatch::packed_expert_linear_int8", lib=_LIBRARY)
def _packed_expert_linear_int8_shape(  # type: ignore[no-untyped-def]
    x, weight, scale, bias, expert_index, out_features, narrow_activations
):
    return x.new_empty((x.shape[0], out_features))


NATIVE_OPS = (
    torch.ops.polybatch.slot_attention.default,
    torch.ops.polybatch.packed_linear.default,
    torch.ops.polybatch.packed_expert_linear.default,
    torch.ops.polybatch.packed_linear_int8.default,
    torch.ops.polybatch.packed_expert_linear_int8.default,
)
"""The operators that ``targets/cpu/kernels`` implement; each takes tensors and plain numbers and gives one tensor."""

PACKED_LINEARS = (torch.ops.polybatch.packed_linear.default, torch.ops.polybatch.packed_linear_int8.default)
"""Those that multiply every row with one weight."""
