"""A proposer that knows the answers and is wrong as often as it is told: speed as a function of acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polybatch.engine.speculation.proposal import Proposal
from polybatch.engine.speculation.proposer import Ask

Answers = Mapping[tuple[int, ...], tuple[int, ...]]
"""Generated token ids by prompt."""


class Oracle:
    """Drafts the known answers; each token is right with probability ``acceptance``, once those before it are."""

    def __init__(self, answers: Answers, acceptance: float, seed: int = 0) -> None:
        self._answers = answers
        self._acceptance = acceptance
        self._rng = np.random.default_rng(seed)

    def open(self, program: object, threads: int | None) -> Oracle:
        """Itself: it is as stateless as its random numbers."""
        return self

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """As many tokens as are wanted."""
        return [self._propose(ask) for ask in asks]

    def draft_ms(self, rows: int) -> float:
        """Knowing is free."""
        return 0.0

    def forget(self, request_id: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""

    def _propose(self, ask: Ask) -> Proposal:
        known = self._answers[tuple(ask.sequence.request.prompt_token_ids)]
        at = len(ask.sequence.token_ids)
        right = self._rng.random(ask.limit) < self._acceptance
        return Proposal(
            tuple(t if ok else 1 - min(t, 1) for t, ok in zip(known[at : at + ask.limit], right, strict=False))
        )
