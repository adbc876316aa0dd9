"""How the cpu target stores the weights of matrix products, and which operator reads each format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polybatch.ops import rounded_rows
from polybatch.targets.base import InputChange
from polybatch.targets.cpu import int8_inputs
from polybatch.targets.cpu.int8_rounding import round_weight
from polybatch.targets.cpu.packing import pack_int8, pack_linear, unpack_linear_int8

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
    change: InputChange | None = None
    """What is to be done to x first."""
    value: Callable[[], Tensor] | None = None
    """The float32 weight that ``constants`` stand for, in the shape of the original; None: the original itself."""


class WeightFormat(Protocol):
    """A way to store weights. What becomes of a row depends on that row alone, so products may be merged."""

    def pack(self, weight: Tensor, inputs: Tensor | None = None) -> PackedWeight:
        """Pack the weight [n, k] of a linear, or the weights [experts, n, k] of expert linears.

        ``inputs`` [rows, k] are examples of what it is multiplied with.
        """
        ...


@dataclass(frozen=True)
class FloatWeights:
    """Weights in the model's own dtype; float32 ones that bfloat16 holds exactly (most checkpoints') as bfloat16.

    The latter are widened as they are multiplied: the same bits from half the memory.
    """

    def pack(self, weight: Tensor, inputs: Tensor | None = None) -> PackedWeight:
        if weight.dim() == 2:
            return PackedWeight(_ops.packed_linear.default, {"packed": _narrowest(pack_linear(weight))})
        packed = torch.stack([pack_linear(expert) for expert in weight])
        return PackedWeight(_ops.packed_expert_linear.default, {"packed": _narrowest(packed)})


def _narrowest(packed: Tensor) -> Tensor:
    narrow = packed.bfloat16()
    return narrow if torch.equal(narrow.to(packed.dtype), packed) else packed


@dataclass(frozen=True)
class Int8Weights:
    """Symmetric int8 weights, one scale for each output channel (of each expert).

    The kernels multiply integers: with ``round_inputs`` each row of x is rounded to int8, unless the examples say that
    this would cost the product too much; without, to 16 bits (23 of float32), beside which the weight's rounding is
    what counts. Where there are examples, x is centred and scaled first (see ``int8_inputs.py``), because a few
    channels would otherwise set the step for all, and the weight is rounded so that its product is kept (see
    ``int8_rounding.py``). docs/benchmarks.md has what each of these is worth.
    """

    round_inputs: bool

    def pack(self, weight: Tensor, inputs: Tensor | None = None) -> PackedWeight:
        if weight.shape[-2] < _NARROW:
            return FloatWeights().pack(weight)
        rounds, change = self.round_inputs, None
        if inputs is not None:
            change = int8_inputs.balanced(weight, inputs) if rounds else int8_inputs.centred(inputs)
            if rounds and int8_inputs.rounding_error(weight, inputs, change) > int8_inputs.LARGEST_ERROR:
                rounds, change = False, int8_inputs.centred(inputs)
        experts = weight.dim() == 3
        examples = _examples(inputs, change, rounds)
        parts = [round_weight(_changed(part, change), examples) for part in (weight if experts else [weight])]
        packed = torch.stack([pack_int8(rows) for rows, _ in parts])
        scale = torch.stack([scale for _, scale in parts])

        def value() -> Tensor:
            unpacked = [unpack_linear_int8(*part, weight.shape[-1]) for part in zip(packed, scale, strict=True)]
            return torch.stack(unpacked) if experts else unpacked[0]

        return PackedWeight(
            _ops.packed_expert_linear_int8.default if experts else _ops.packed_linear_int8.default,
            {"packed": packed, "scale": scale} if experts else {"packed": packed[0], "scale": scale[0]},
            (rounds,),
            change,
            value,
        )


def _examples(inputs: Tensor | None, change: InputChange | None, rounds: bool) -> Tensor | None:
    """The inputs as the weight gets to see them."""
    if inputs is None or change is None:
        return inputs
    changed = (inputs.float() - change.shift) / change.scale
    return rounded_rows(changed) if rounds else changed


def _changed(weight: Tensor, change: InputChange | None) -> Tensor:
    return weight if change is None else weight.float() * change.scale


@dataclass(frozen=True)
class WeightPlan:
    """Formats by the role of a product; what decides which expert a token goes to is always kept in float."""

    layers: WeightFormat
    logits: WeightFormat
    """Of the output projection, whose errors nothing averages out."""


WEIGHT_PLANS: dict[str | None, WeightPlan] = {
    None: WeightPlan(FloatWeights(), FloatWeights()),
    "int8": WeightPlan(Int8Weights(round_inputs=True), Int8Weights(round_inputs=False)),
    "int8-weight-only": WeightPlan(Int8Weights(round_inputs=False), Int8Weights(round_inputs=False)),
}
"""By the name that ``compile(weights=...)`` takes."""
