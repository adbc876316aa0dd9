"""Drafted tokens of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Proposal:
    """Tokens that may come next.

    distributions: what each token was drawn from, float64 [len(token_ids), vocab] of probabilities; None when the
        tokens are no draws but the proposer's one guess, whatever the sequence's sampling parameters are.
    evidence: a class of guesses that tend to be accepted alike; acceptance is estimated for each by itself.
    """

    token_ids: tuple[int, ...]
    distributions: NDArray[np.float64] | None = None
    evidence: int = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    def trimmed(self, limit: int) -> Proposal:
        """The first ``limit`` tokens."""
        if len(self) <= limit:
            return self
        rows = None if self.distributions is None else self.distributions[:limit]
        return Proposal(self.token_ids[:limit], rows, self.evidence)

    def accepted(self, new_tokens: Sequence[int]) -> int:
        """How many of the drafted tokens, from the first on, are among the tokens that came."""
        count = 0
        for drafted, token in zip(self.token_ids, new_tokens, strict=False):
            if drafted != token:
                break
            count += 1
        return count


NOTHING = Proposal(())
"""No proposal."""
