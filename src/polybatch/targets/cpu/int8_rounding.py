"""Rounding a weight to int8 so that its product keeps its value, not each of its elements.

The columns are rounded one after the other, and what rounding one does to the product is made up for by those that are
still to come, as far as the inputs move together (Optimal Brain Surgeon; the order and the use of one Cholesky factor
are those of GPTQ, arXiv 2210.17323).
"""

from __future__ import annotations

import torch
from torch import Tensor

from polybatch.targets.cpu.packing import int8_scale, to_int8

_BLOCK = 1024  # columns that make up for each other; more would cost time with the square of a wide weight
_STEP = 64  # columns between two updates of those behind them
# Added to the diagonal, of its mean: a few hundred examples say little about how a thousand channels move together.
_DAMPING = 0.3


def round_weight(weight: Tensor, inputs: Tensor | None) -> tuple[Tensor, Tensor]:
    """A weight [n, k] as (int8 [n, k], scale float32 [n]); ``inputs`` [rows, k] are examples of what it multiplies."""
    scale = int8_scale(weight)
    if inputs is None or not torch.isfinite(inputs).all():
        return to_int8(weight, scale), scale
    blocks = -(-weight.shape[1] // _BLOCK)
    parts = zip(weight.chunk(blocks, dim=1), inputs.chunk(blocks, dim=1), strict=True)
    return torch.cat([_round_block(part.float(), scale, seen.float()) for part, seen in parts], dim=1), scale


def _round_block(weight: Tensor, scale: Tensor, inputs: Tensor) -> Tensor:
    moments = inputs.T @ inputs
    strength = moments.diagonal()
    moments += torch.eye(len(strength)) * (_DAMPING * strength.mean()).clamp(min=1e-30)
    order = strength.argsort(descending=True, stable=True)
    factor = _inverse_factor(moments[order][:, order])
    rest = weight[:, order]
    rounded = torch.empty(rest.shape, dtype=torch.int8)
    for start in range(0, rest.shape[1], _STEP):
        end = min(start + _STEP, rest.shape[1])
        errors = torch.empty(rest.shape[0], end - start)
        for column in range(start, end):
            rounded[:, column] = to_int8(rest[:, column : column + 1], scale)[:, 0]
            missed = rest[:, column] - rounded[:, column] * scale
            errors[:, column - start] = missed / factor[column, column]
            rest[:, column:end] -= errors[:, column - start, None] * factor[column, column:end]
        rest[:, end:] -= errors @ factor[start:end, end:]
    return rounded[:, order.argsort()]


def _inverse_factor(matrix: Tensor) -> Tensor:
    """Upper triangular U with U.T @ U the inverse of a positive definite matrix."""
    lower = torch.linalg.cholesky(matrix.double())
    factor: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True).float()
    return factor
