"""How the cpu target stores the weights of matrix products, and which operator reads each format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polybatch.targets.cpu.packing import pack_linear, pack_linear_int8, unpack_linear_int8

_ops = torch.ops.polybatch

_NARROW = 64
"""Outputs below which int8 saves nothing worth an error: gates of one column, small heads."""


@dataclass(frozen=True)
class PackedWeight:
    """A weight as an operator takes it.

    The operator's arguments are x, the ``constants``, the bias, for experts the expert index, the number of outputs and
    the ``options``.
    """

    op: torch._ops.OpOverload
    constants: dict[str, Tensor]
    """In the operator's order; the keys begin their names in the graph."""
    options: tuple[bool, ...] = ()
    value: Callable[[], Tensor] | None = None
    """The float32 weight that ``constants`` stand for, in the shape of the original; None: the original itself."""


class WeightFormat(Protocol):
    """A way to store weights. What becomes of a row depends on that row alone, so products may be merged."""

    def pack(self, weight: Tensor) -> PackedWeight:
        """Pack the weight [n, k] of a linear, or the weights [experts, n, k] of expert linears."""
        ...


class FloatWeights:
    """Weights in the model's own dtype."""

    def pack(self, weight: Tensor) -> PackedWeight:
        if weight.dim() == 2:
            return PackedWeight(_ops.packed_linear.default, {"packed": pack_linear(weight)})
        packed = torch.stack([pack_linear(expert) for expert in weight])
        return PackedWeight(_ops.packed_expert_linear.default, {"packed": packed})


@dataclass(frozen=True)
class Int8Weights:
    """Symmetric int8 weights, one scale for each output channel (of each expert).

    With ``quantize_activations`` the kernels also round each row of x to int8 and multiply integers; without, they
    multiply in x's dtype.
    """

    quantize_activations: bool

    def pack(self, weight: Tensor) -> PackedWeight:
        if weight.shape[-2] < _NARROW:
            return FloatWeights().pack(weight)
        experts = weight.dim() == 3
        parts = [pack_linear_int8(part) for part in (weight if experts else [weight])]
        packed, scale = (torch.stack(tensors) for tensors in zip(*parts, strict=True))

        def value() -> Tensor:
            unpacked = [unpack_linear_int8(*part, weight.shape[-1]) for part in zip(packed, scale, strict=True)]
            return torch.stack(unpacked) if experts else unpacked[0]

        return PackedWeight(
            _ops.packed_expert_linear_int8.default if experts else _ops.packed_linear_int8.default,
            {"packed": packed, "scale": scale} if experts else {"packed": packed[0], "scale": scale[0]},
            (self.quantize_activations,),
            value,
        )


WEIGHT_FORMATS: dict[str | None, WeightFormat] = {
    None: FloatWeights(),
    "int8": Int8Weights(quantize_activations=True),
    "int8-weight-only": Int8Weights(quantize_activations=False),
}
"""By the name that ``compile(weights=...)`` takes."""
