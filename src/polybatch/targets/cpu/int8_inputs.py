"""What is done to the inputs of a product so that 8 bits of them, or of its weight, lose less.

y = W x + b is computed as (W * scale) ((x - shift) / scale) + (b + W shift), and only then W * scale, and perhaps
(x - shift) / scale, are rounded. ``shift`` is what each channel of x is on average: channels that are far from zero and
hardly move would otherwise set the step of a whole row (as in Outlier Suppression+, arXiv 2304.09145). ``scale`` moves
range from x into the weight (as in SmoothQuant, arXiv 2211.10438); powers of two, so that it rounds nothing itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polybatch.ops import rounded_rows
from polybatch.targets.base import InputChange
from polybatch.targets.cpu.packing import pack_linear_int8, unpack_linear_int8

LARGEST_ERROR = 0.02
"""Of a product of int8 inputs and weights, relative to how far its outputs spread; above, the inputs stay in float."""

_INPUT_POWER, _WEIGHT_POWER = 0.5, 0.25  # of the scale; measured, see docs/benchmarks.md
_EXAMPLES = 128  # rows that the error is measured on


def centred(inputs: Tensor) -> InputChange:
    """x minus its mean."""
    shift = inputs.float().mean(dim=0).to(inputs.dtype)
    return InputChange(shift.float(), torch.ones(inputs.shape[1]))


def balanced(weight: Tensor, inputs: Tensor) -> InputChange:
    """x minus its mean, and scaled so that channels differ less in range."""
    shift = centred(inputs).shift
    ranges = (inputs.float() - shift).abs().amax(dim=0)
    columns = weight.float().abs().amax(dim=0)
    exponents = _INPUT_POWER * _log2(ranges) - _WEIGHT_POWER * _log2(columns)
    return InputChange(shift, torch.exp2((exponents - exponents.mean()).round()))


def _log2(values: Tensor) -> Tensor:
    """With values that are nearly nothing, beside the largest, taken as little."""
    return values.clamp(min=max(float(values.max()) * 1e-4, 1e-30)).log2()


def rounding_error(weight: Tensor, inputs: Tensor, change: InputChange) -> float:
    """||rounded - exact|| / ||exact - its mean|| of the product, over some of the inputs."""
    rows = inputs[:: -(-inputs.shape[0] // _EXAMPLES)].float() - change.shift
    exact = rows @ weight.float().T
    rounded = unpack_linear_int8(*pack_linear_int8(weight.float() * change.scale), weight.shape[1])
    error = torch.linalg.norm(rounded_rows(rows / change.scale) @ rounded.T - exact)
    return float(error / torch.linalg.norm(exact - exact.mean(dim=0)).clamp(min=1e-30))
