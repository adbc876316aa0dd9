"""Rejection sampling: a drafted token becomes a sample of the target's distribution.

Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2 and theorem 1. A drafted token that was no draw (the
draft's distribution is a point mass) needs none of this: draw from the target as ever and see whether it is the same
token. That accepts with the same probability, leaves the same distribution after a rejection, and takes the random
numbers of decoding without speculation, so a seed gives the same tokens with and without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]
"""[vocab], sums to 1."""


def accepts(target: Probabilities, draft: Probabilities, token: int, uniform: float) -> bool:
    """Whether ``token``, drawn from ``draft``, is kept; ``uniform`` is in [0, 1)."""
    return bool(uniform * draft[token] < target[token])


def residual(target: Probabilities, draft: Probabilities) -> Probabilities:
    """The weights (they do not sum to 1) of the token that takes a rejected one's place."""
    rest: Probabilities = np.maximum(target - draft, 0.0)
    # Rounding may leave nothing where the two are equal, in which case a rejection has probability 0 but for rounding.
    return rest if rest.any() else target
