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

    def sample(self, logits: Logits) -> int:
        """Choose a token id.

        logits: float32 [vocab]; not modified.
        Raises ValueError when the logits hold no finite maximum (NaN, +inf, or everything masked).
        """
        logits, best = self._adjusted(logits)
        if self._params.temperature == 0:
            return best
        return self.draw(_weights(logits, logits[best], self._params))

    def distribution(self, logits: Logits) -> Probabilities:
        """What ``sample`` draws from at a temperature above 0: float64 [vocab] that sums to 1. Raises as it does."""
        logits, best = self._adjusted(logits)
        weights = _weights(logits, logits[best], self._params)
        weights /= weights.sum()
        return weights

    def draw(self, weights: NDArray[np.float64]) -> int:
        """A token id by its weight, float64 [vocab]."""
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


def _weights(logits: Logits, maximum: np.float32, params: SamplingParams) -> NDArray[np.float64]:
    """Unnormalized probabilities, float64 [vocab], zero where min_p, top_k or top_p removes a token.

    Ties stay together.
    """
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the maximum to -inf, as it should
        weights: NDArray[np.float64] = np.exp((logits.astype(np.float64) - float(maximum)) / params.temperature)
    if params.min_p > 0:
        weights[weights < params.min_p] = 0.0  # the most probable token has the weight 1
    if 0 < params.top_k < weights.size:
        kth = np.partition(weights, -params.top_k)[-params.top_k]
        weights[weights < kth] = 0.0
    if params.top_p < 1:
        descending = np.sort(weights[weights > 0])[::-1]
        mass = np.cumsum(descending)
        last = min(int(np.searchsorted(mass, params.top_p * mass[-1])), descending.size - 1)
        weights[weights < descending[last]] = 0.0
    return weights


def _draw(weights: NDArray[np.float64], uniform: float) -> int:
    """Inverse of the cumulative distribution, in order of token id; ``uniform`` is in [0, 1)."""
    kept = np.flatnonzero(weights)
    mass = np.cumsum(weights[kept])
    index = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
    return int(kept[min(index, kept.size - 1)])
