"""The memory layouts that the native kernels read; the same for every instruction set.

``kernels/linear_panels.h`` and ``kernels/cache_layout.h`` hold the C++ side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polybatch.kv_layout import LayerKV, LayerOffsets

LINEAR_PANEL = 32
"""Output columns of one panel of a packed weight."""

_INT8_GROUP = 4
_INT8_LARGEST = 127

POSITION_GROUP = 16
"""Positions whose K lie side by side; a slot's ctx_len is rounded up to whole groups."""


def elements_per_group(dtype: torch.dtype) -> int:
    """Elements of the reduced dimension that one step of a kernel takes: 1 for float32, 2 for bfloat16."""
    if dtype == torch.float32:
        return 1
    if dtype == torch.bfloat16:
        return 2
    raise ValueError(f"the kernels have no {dtype} mode; choose torch.float32 or torch.bfloat16")


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def packed_linear_shape(out_features: int, in_features: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Shape of ``pack_linear``'s result: float32 [panels, K, 32]; bfloat16 [panels, ceil(K/2), 32, 2]."""
    panels = -(-out_features // LINEAR_PANEL)
    group = elements_per_group(dtype)
    if group == 1:
        return (panels, in_features, LINEAR_PANEL)
    return (panels, -(-in_features // group), LINEAR_PANEL, group)


def pack_linear(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A weight [N, K] in the panels that ``packed_linear`` reads, converted to ``dtype`` and zero padded.

    ``dtype`` None keeps the weight's own, which must then be float32 or bfloat16.
    """
    dtype = dtype or weight.dtype
    out_features, in_features = weight.shape
    shape = packed_linear_shape(out_features, in_features, dtype)
    group = elements_per_group(dtype)
    padded_k = _round_up(in_features, group)
    rows = torch.zeros(shape[0] * LINEAR_PANEL, padded_k, dtype=dtype)
    rows[:out_features, :in_features] = weight
    panels = rows.reshape(shape[0], LINEAR_PANEL, padded_k // group, group).permute(0, 2, 1, 3)
    return panels.reshape(shape).contiguous()


def unpack_linear(packed: Tensor, out_features: int, in_features: int) -> Tensor:
    """The weight [N, K] that ``pack_linear`` was given, in the packed dtype."""
    group = elements_per_group(packed.dtype)
    steps = packed.shape[1]
    rows = packed.reshape(-1, steps, LINEAR_PANEL, group).permute(0, 2, 1, 3).reshape(-1, steps * group)
    return rows[:out_features, :in_features].contiguous()


def packed_int8_shape(out_features: int, in_features: int) -> tuple[int, ...]:
    """Shape of ``pack_int8``'s result: [panels, 1 + ceil(K/4), 32, 4]."""
    return (-(-out_features // LINEAR_PANEL), 1 + -(-in_features // _INT8_GROUP), LINEAR_PANEL, _INT8_GROUP)


def int8_scale(weight: Tensor) -> Tensor:
    """float32 [N]: what the integers of each row of a weight [N, K] are multiplied with, for the largest to be 127."""
    if weight.shape[1] == 0:
        return torch.zeros(weight.shape[0])
    return weight.float().abs().amax(dim=1) / _INT8_LARGEST


def to_int8(weight: Tensor, scale: Tensor) -> Tensor:
    """A weight [N, K] over ``scale`` [N], to the nearest of -127..127: int8."""
    divisor = torch.where(scale > 0, scale, 1.0)[:, None]
    return (weight.float() / divisor).round().clamp(-_INT8_LARGEST, _INT8_LARGEST).to(torch.int8)


def pack_int8(rows: Tensor) -> Tensor:
    """int8 rows [N, K] as packed weight.

    The first group of a panel holds one int32 for each of its columns: -128 times the sum of what is stored (see
    ``DotU8S8`` in kernels/tile.h).
    """
    out_features, in_features = rows.shape
    shape = packed_int8_shape(out_features, in_features)
    stored = torch.zeros(shape[0] * LINEAR_PANEL, (shape[1] - 1) * _INT8_GROUP, dtype=torch.int8)
    stored[:out_features, :in_features] = rows
    groups = stored.view(shape[0], LINEAR_PANEL, shape[1] - 1, _INT8_GROUP).transpose(1, 2)
    correction = stored.sum(dim=1, dtype=torch.int32) * -128
    header = correction.view(torch.int8).view(shape[0], 1, LINEAR_PANEL, _INT8_GROUP)
    return torch.cat([header, groups], dim=1)


def pack_linear_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A float weight [N, K] as symmetric int8 for each output channel: (packed int8, scale float32 [N]).

    Row n is about ``scale[n]`` times what is stored.
    """
    scale = int8_scale(weight)
    return pack_int8(to_int8(weight, scale)), scale


def unpack_linear_int8(packed: Tensor, scale: Tensor, in_features: int) -> Tensor:
    """The float32 weight [N, K] that ``pack_linear_int8``'s result stands for."""
    rows = packed[:, 1:].transpose(1, 2).reshape(packed.shape[0] * LINEAR_PANEL, -1)
    return rows[: scale.shape[0], :in_features] * scale[:, None]


def kv_head_elements(key_dim: int, value_dim: int, ctx_len: int, dtype: torch.dtype) -> tuple[int, int]:
    """Elements that one head's keys and one head's values take in a slot.

    Keys are [ctx/16][ceil(D/P)][16][P], values [ctx/P][DV][P], with P = ``elements_per_group`` and ctx = ctx_len
    rounded up to 16. A layer's heads lie one after the other.
    """
    ctx = _round_up(ctx_len, POSITION_GROUP)
    return ctx * _round_up(key_dim, elements_per_group(dtype)), ctx * value_dim


def _keys_view(slot: Tensor, offset: int, kv_heads: int, key_dim: int, ctx_len: int) -> Tensor:
    """Keys of one layer in ``slot`` as [HK, ctx/16, 16, ceil(D/P), P], sharing its memory."""
    size, _ = kv_head_elements(key_dim, 0, ctx_len, slot.dtype)
    group = elements_per_group(slot.dtype)
    groups = _round_up(ctx_len, POSITION_GROUP) // POSITION_GROUP
    stored = slot[offset : offset + kv_heads * size].view(kv_heads, groups, -1, POSITION_GROUP, group)
    return stored.permute(0, 1, 3, 2, 4)


def _values_view(slot: Tensor, offset: int, kv_heads: int, value_dim: int, ctx_len: int) -> Tensor:
    """Values of one layer in ``slot`` as [HK, ctx/P, P, DV], sharing its memory."""
    _, size = kv_head_elements(0, value_dim, ctx_len, slot.dtype)
    group = elements_per_group(slot.dtype)
    ctx = _round_up(ctx_len, POSITION_GROUP)
    stored = slot[offset : offset + kv_heads * size].view(kv_heads, ctx // group, value_dim, group)
    return stored.permute(0, 1, 3, 2)


def unpack_keys(slot: Tensor, offset: int, kv_heads: int, key_dim: int, ctx_len: int) -> Tensor:
    """Keys [HK, ctx_len, D] of the layer at element ``offset`` of a flat slot, as a copy."""
    view = _keys_view(slot, offset, kv_heads, key_dim, ctx_len)
    return view.reshape(kv_heads, view.shape[1] * POSITION_GROUP, -1)[:, :ctx_len, :key_dim].clone()


def unpack_values(slot: Tensor, offset: int, kv_heads: int, value_dim: int, ctx_len: int) -> Tensor:
    """Values [HK, ctx_len, DV] of the layer at element ``offset`` of a flat slot, as a copy."""
    view = _values_view(slot, offset, kv_heads, value_dim, ctx_len)
    return view.reshape(kv_heads, -1, value_dim)[:, :ctx_len].clone()


def pack_keys(slot: Tensor, offset: int, keys: Tensor) -> None:
    """Write keys [HK, ctx_len, D] into a flat slot: the inverse of ``unpack_keys``. Padding becomes 0."""
    kv_heads, ctx_len, key_dim = keys.shape
    view = _keys_view(slot, offset, kv_heads, key_dim, ctx_len)
    padded = torch.zeros(kv_heads, view.shape[1] * POSITION_GROUP, view.shape[3] * view.shape[4], dtype=slot.dtype)
    padded[:, :ctx_len, :key_dim] = keys
    view.copy_(padded.view(view.shape))


def pack_values(slot: Tensor, offset: int, values: Tensor) -> None:
    """Write values [HK, ctx_len, DV] into a flat slot: the inverse of ``unpack_values``. Padding becomes 0."""
    kv_heads, ctx_len, value_dim = values.shape
    view = _values_view(slot, offset, kv_heads, value_dim, ctx_len)
    padded = torch.zeros(kv_heads, view.shape[1] * view.shape[2], value_dim, dtype=slot.dtype)
    padded[:, :ctx_len] = values
    view.copy_(padded.view(view.shape))


def copy_positions(
    source: Tensor, target: Tensor, at: LayerOffsets, layer: LayerKV, ctx_len: int, positions: int
) -> None:
    """Copy the first positions of one layer from flat slot to flat slot, in whole groups of them.

    Of the last group more may be copied than asked for; nobody reads that before it is written again.
    """
    heads, group = layer.kv_heads, elements_per_group(source.dtype)
    ctx = _round_up(ctx_len, POSITION_GROUP)
    keys, values = kv_head_elements(layer.key_dim, layer.value_dim, ctx_len, source.dtype)
    for start, size, used in (
        (at.keys, keys, keys * _round_up(positions, POSITION_GROUP) // ctx),
        (at.values, values, values * _round_up(positions, group) // ctx),
    ):
        here, there = (slot[start : start + heads * size].view(heads, size) for slot in (source, target))
        there[:, :used] = here[:, :used]
