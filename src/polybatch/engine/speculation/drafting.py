"""One sequence in a draft program: what the cache holds of it, and a proposal in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from polybatch.engine.batch import StepRow
from polybatch.engine.protocols import Logits
from polybatch.engine.sampler import Sampler
from polybatch.engine.speculation.acceptance import Probabilities
from polybatch.engine.speculation.proposal import Proposal
from polybatch.engine.speculation.proposer import Ask


@dataclass
class CachedSequence:
    """What the draft program's cache holds of one sequence: its first ``tokens`` tokens, then the ``guesses``."""

    slot: int
    sampler: Sampler | None  # None: the most probable token is drafted
    tokens: int = 0
    guesses: tuple[int, ...] = ()

    def settle(self, ask: Ask) -> None:
        """Keep the guesses that came true. The last token must be run again even so: its logits are what is wanted."""
        if self.guesses:
            came = ask.tokens(self.tokens, self.tokens + len(self.guesses))
            self.tokens = min(self.tokens + Proposal(self.guesses).accepted(came), len(ask) - 1)
            self.guesses = ()


@dataclass
class Draft:
    """A proposal in the making: ``pending`` tokens from position ``start`` on are still to be run."""

    ask: Ask
    cached: CachedSequence
    start: int
    pending: list[int]
    token_ids: list[int] = field(default_factory=list)
    distributions: list[Probabilities] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.token_ids) >= self.ask.limit

    def row(self, width: int) -> StepRow:
        return StepRow(self.ask.request_id, self.cached.slot, self.start, tuple(self.pending[:width]))

    def ran(self, count: int, logits: Logits) -> None:
        """``count`` pending tokens are cached; after the last of them a token is drafted from float32 [vocab]."""
        self.start += count
        del self.pending[:count]
        if self.pending:
            return
        sampler = self.cached.sampler
        if sampler is None:
            token = int(np.argmax(logits))
        else:
            self.distributions.append(sampler.distribution(logits))
            token = sampler.draw(self.distributions[-1])
        self.token_ids.append(token)
        self.pending.append(token)

    def proposal(self, vocab_size: int | None) -> Proposal:
        if not self.distributions:
            return Proposal(tuple(self.token_ids))
        rows = np.stack(self.distributions)
        missing = 0 if vocab_size is None else vocab_size - rows.shape[1]
        return Proposal(tuple(self.token_ids), np.pad(rows, ((0, 0), (0, max(0, missing)))))
