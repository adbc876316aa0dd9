"""The layout of weights that the native kernels read; the same for every instruction set.

``kernels/linear_panels.h`` holds the C++ side.
"""

from __future__ import annotations

import torch
from torch import Tensor

LINEAR_PANEL = 32
"""Output columns of one panel of a packed weight."""

VECTOR = 16
"""Output columns that a kernel writes at once."""

_INT8_GROUP = 4
_INT8_LARGEST = 127


def elements_per_group(dtype: torch.dtype) -> int:
    """Elements of the reduced dimension that one step of a kernel takes: 1 for float32, 2 for bfloat16."""
    if dtype == torch.float32:
        return 1
    if dtype == torch.bfloat16:
        return 2
    raise ValueError(f"the kernels have no {dtype} mode; choose torch.float32 or torch.bfloat16")


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is not below ``value``."""
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
    padded_k = round_up(in_features, group)
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


def interleaved(tensor: Tensor) -> Tensor:
    """A packed weight [panels, steps, 32, group], or a vector [n], of first gate then up, as gated linears take it.

    Half a panel of gate columns, then the half that belongs to them. Each of the two has whole panels.
    """
    if tensor.dim() == 1:
        halves = tensor.reshape(2, -1, LINEAR_PANEL // 2)
        return halves.transpose(0, 1).reshape(tensor.shape).contiguous()
    panels, steps, _, *group = tensor.shape
    # [gate or up, panel, step, half, lane, group] to [panel, half, step, gate or up, lane, group]
    halves = tensor.reshape(2, panels // 2, steps, 2, LINEAR_PANEL // 2, -1).permute(1, 3, 2, 0, 4, 5)
    return halves.reshape(panels, steps, LINEAR_PANEL, *group).contiguous()
