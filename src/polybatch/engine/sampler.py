"""Choosing the next token of one sequence from its logits (numpy only).

A sequence's choice depends on its own logits, parameters and generator, and on nothing else in the batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polybatch.engine.adjustments import Adjustments
from polybatch.engine.protocols import Logits
from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.speculation import acceptance
from polybatch.engine.speculation.acceptance import Probabilities

Weights = NDArray[np.float32]

_LOWEST_TEMPERATURE = 1e-30
"""Of float32 logits the maximum alone is left long before; dividing by less would overflow."""
_BLOCK = 256


class Sampler:
    """The token choices of one request; holds that request's own random generator (PCG64).

    Exactly one random number is drawn per sampled token, so a seed replays whatever else runs. Only tokens drawn by a
    draft model take more; requests with a seed get none of those.
    """

    def __init__(self, params: SamplingParams, adjustments: Adjustments | None = None) -> None:
        """adjustments: of the sequence's logits; without, they are taken as they are."""
        self._params = params
        self._adjustments = adjustments
        self._generator = np.random.Generator(np.random.PCG64(params.seed))

    def sample(self, logits: Logits, best: int | None = None) -> int:
        """Choose a token id.

        logits: float32 [vocab]; not modified. best: the id of their finite maximum, where it is known already.
        Raises ValueError when the logits hold no finite maximum (NaN, +inf, or everything masked).
        """
        if best is None or (self._adjustments is not None and self._adjustments.active):
            logits, best = self._adjusted(logits)
        if self._params.temperature == 0:
            return best
        return self.draw(_weights(logits, logits[best], self._params))

    def distribution(self, logits: Logits) -> Probabilities:
        """What ``sample`` draws from at a temperature above 0: float64 [vocab] that sums to 1. Raises as it does."""
        logits, best = self._adjusted(logits)
        weights = _weights(logits, logits[best], self._params).astype(np.float64)
        weights /= weights.sum()
        return weights

    def draw(self, weights: Weights | Probabilities) -> int:
        """A token id by its weight, [vocab]."""
        return _draw(weights, self._generator.random())

    def verify(self, logits: Logits, drafted: int, draft: Probabilities) -> int:
        """Choose a token id, likely the ``drafted`` one, which was drawn from ``draft``; distributed as ``sample``."""
        if self._params.temperature == 0:
            return self.sample(logits)
        target = self.distribution(logits)
        if acceptance.accepts(target, draft, drafted, self._generator.random()):
            return drafted
        return self.draw(acceptance.residual(target, draft))

    def _adjusted(self, logits: Logits) -> tuple[Logits, int]:
        """The logits to choose from, and the id of their maximum."""
        if self._adjustments is not None:
            logits = self._adjustments.apply(logits)
        best = int(np.argmax(logits))  # the first of equals; the first NaN if there is one
        if not np.isfinite(logits[best]):
            raise ValueError(f"the logits have no finite maximum: token {best} has {logits[best]}")
        return logits, best


def _weights(logits: Logits, maximum: np.float32, params: SamplingParams) -> Weights:
    """Unnormalized probabilities, float32 [vocab], zero where min_p, top_k or top_p removes a token.

    The most probable token has the weight 1. Ties stay together.
    """
    temperature = np.float32(max(params.temperature, _LOWEST_TEMPERATURE))
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the maximum to -inf, as it should
        weights: Weights = logits - maximum
        weights /= temperature
        np.exp(weights, out=weights)
    least = np.float32(params.min_p)
    if 0 < params.top_k < weights.size:
        least = max(least, np.partition(weights, -params.top_k)[-params.top_k])
    if least > 0:
        weights *= weights >= least
    if params.top_p < 1:
        weights *= weights >= _least_of_top_p(weights, params.top_p)
    return weights


def _least_of_top_p(weights: Weights, top_p: float) -> np.float32:
    """The smallest weight in the smallest set of tokens that has ``top_p`` of all weight."""
    total = weights.sum(dtype=np.float64)
    # All tokens below the average of what is left out add up to less than that, so the last one kept is above it.
    descending = np.sort(weights[weights > (1 - top_p) * total / weights.size])[::-1]
    last = int(np.searchsorted(np.cumsum(descending, dtype=np.float64), top_p * total))
    least: np.float32 = descending[min(last, descending.size - 1)]
    return least


def _draw(weights: Weights | Probabilities, uniform: float) -> int:
    """Inverse of the cumulative distribution, in order of token id; ``uniform`` is in [0, 1).

    Goes by blocks first: a cumulative sum over a whole vocabulary takes longer than everything else together.
    """
    starts = np.arange(0, weights.size, _BLOCK)
    ends = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = uniform * ends[-1]
    block = min(int(np.searchsorted(ends, target, side="right")), ends.size - 1)
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    before = ends[block - 1] if block else 0.0
    index = int(np.searchsorted(np.cumsum(inside, dtype=np.float64), target - before, side="right"))
    if index < inside.size:
        return block * _BLOCK + index
    return int(np.flatnonzero(weights[: (block + 1) * _BLOCK])[-1])  # rounding left the target beyond the last
