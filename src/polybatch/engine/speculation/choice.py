"""How many tokens to draft and verify in a step: by step times and acceptance so far, or as the user fixed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

from polybatch.engine.batch import split_rows
from polybatch.engine.speculation.costs import StepCosts
from polybatch.engine.speculation.estimate import AcceptanceEstimates, expected_tokens
from polybatch.engine.speculation.proposal import Proposal
from polybatch.engine.speculation.proposer import Ask

_PROBE_STEPS = 32
"""Drafting that costs time and does not pay is tried again after this many steps, as the text may have changed."""
_REST_AFTER = 32
_REST_BELOW = 0.03
_GAIN_MEMORY = 32
_REST_STEPS = 4
"""Free drafting takes some time too, a few percent of a step of a small model. Where nothing was worth verifying for so
many steps, or a row got fewer tokens of it a step than this (over about so many rows and steps that drafted), one step
in so many drafts."""
_MARGIN = 1.1
"""How much more it is taken to cost to verify than was measured: acceptance takes time too, and where the gain is small
it is the error of its estimate."""
_DRAFT_SHARE = 0.25
"""Where step times are missing: what drafting a token takes, as a part of the cheapest step."""


class LengthChoice(Protocol):
    """Decides on K, twice per decode step, and hears what came of it."""

    def rests(self) -> bool:
        """Whether to ask for no drafts in this step although they are free."""
        ...

    def to_draft(self, asks: Sequence[Ask], draft_ms: float | None) -> int:
        """The most tokens to draft for each row; one more for all rows costs ``draft_ms`` (None: unknown)."""
        ...

    def to_verify(self, asks: Sequence[Ask], proposals: Sequence[Proposal]) -> list[int]:
        """How many tokens of each proposal to verify, at most."""
        ...

    def score(self, request_id: int, offered: Proposal, verified: int, new_tokens: Sequence[int]) -> None:
        """``new_tokens`` came where the first ``verified`` tokens of ``offered`` were verified."""
        ...

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        ...


class FixedLength:
    """Up to ``drafted`` tokens for every row of every step."""

    def __init__(self, drafted: int) -> None:
        self._drafted = drafted

    def rests(self) -> bool:
        return False

    def to_draft(self, asks: Sequence[Ask], draft_ms: float | None) -> int:
        return self._drafted

    def to_verify(self, asks: Sequence[Ask], proposals: Sequence[Proposal]) -> list[int]:
        return [self._drafted] * len(proposals)

    def score(self, request_id: int, offered: Proposal, verified: int, new_tokens: Sequence[int]) -> None:
        """There is nothing to learn."""

    def forget(self, request_id: int) -> None:
        """Nothing is kept."""


class AdaptiveLength:
    """The K of the table with the most expected tokens per millisecond, K=0 included.

    Where a step costs what its live tokens cost, every row gets a K of its own: of the drafted tokens of all rows of a
    step, so many of the likeliest are verified as promise most per millisecond.

    Before drafting, its cost counts and the proposals are taken to be as long as they may be; once they are there, what
    they cost is spent. Drafting that is free is asked for even where it has not paid: a proposal that is not
    verified still shows by its first token whether it would have been accepted.
    """

    def __init__(self, costs: StepCosts, lengths: Sequence[int]) -> None:
        self._costs = costs
        self._lengths = tuple(lengths)
        self._estimates = AcceptanceEstimates()
        self._steps_without = 0
        self._probing = False
        self._gain = 1.0

    def rests(self) -> bool:
        self._steps_without += 1
        rests = self._steps_without > _REST_AFTER or self._gain < _REST_BELOW
        return rests and self._steps_without % _REST_STEPS > 0

    def to_draft(self, asks: Sequence[Ask], draft_ms: float | None) -> int:
        if draft_ms == 0.0:
            return self._lengths[-1]
        costs = self._costs.by_length(len(asks))
        if draft_ms is None or not self._costs.measured:
            draft_ms = _DRAFT_SHARE * min(costs.values(), default=0.0)
        chances = [Chance(ask.limit, self._estimates.rate(ask.request_id, 0)) for ask in asks]
        drafted = self._best(chances, {drafted: ms + drafted * draft_ms for drafted, ms in costs.items()})
        self._steps_without = 0 if drafted else self._steps_without + 1
        self._probing = self._steps_without > _PROBE_STEPS
        return next(length for length in self._lengths if length) if self._probing else drafted

    def to_verify(self, asks: Sequence[Ask], proposals: Sequence[Proposal]) -> list[int]:
        if self._probing:
            return [len(proposal) for proposal in proposals]
        chances = [
            Chance(min(len(proposal), ask.limit), self._estimates.rate(ask.request_id, proposal.evidence))
            for ask, proposal in zip(asks, proposals, strict=True)
        ]
        if self._costs.skips_padding:
            best = self._by_row(chances)
        else:
            costs = self._costs.by_length(len(asks))
            dearer = {length: _MARGIN * ms if length else ms for length, ms in costs.items()}
            best = [self._best(chances, dearer)] * len(chances)
        if any(best):
            self._steps_without = 0
        return best

    def _by_row(self, chances: Sequence[Chance]) -> list[int]:
        best: list[int] = []
        for part, rows in split_rows(chances, self._costs.cover(len(chances))):
            most = sum(chance.length for chance in rows)
            plain, *drafting = self._costs.of_tokens(part.batch_size)[len(rows) : len(rows) + most + 1]
            best += best_lengths(rows, [plain, *(_MARGIN * cost for cost in drafting)])
        return best

    def score(self, request_id: int, offered: Proposal, verified: int, new_tokens: Sequence[int]) -> None:
        if self._probing and verified:
            self._steps_without = 0
        accepted = min(offered.accepted(new_tokens), verified)
        self._gain += (accepted - self._gain) / _GAIN_MEMORY
        self._estimates.score(request_id, offered.trimmed(max(verified, 1)), new_tokens)

    def forget(self, request_id: int) -> None:
        self._estimates.forget(request_id)

    def _best(self, chances: Sequence[Chance], costs: Mapping[int, float]) -> int:
        best = best_length(chances, costs)
        return self._lengths[0] if best is None else best


@dataclass(frozen=True)
class Chance:
    """Of one row: how many tokens are or can be proposed, and the probability that each is accepted."""

    length: int
    rate: float


def best_length(chances: Sequence[Chance], costs: Mapping[int, float]) -> int | None:
    """The K with the most expected tokens per cost of a step over these rows, the smallest of equals.

    costs: of a step with everything that it takes, by K; None is the answer when it is empty.
    """
    speeds = {
        drafted: sum(expected_tokens(chance.rate, min(drafted, chance.length)) for chance in chances) / cost
        for drafted, cost in costs.items()
    }
    return min(speeds, key=lambda drafted: (-speeds[drafted], drafted), default=None)


def best_lengths(chances: Sequence[Chance], costs: Sequence[float]) -> list[int]:
    """Each row's K with the most expected tokens per cost of a step over these rows, the fewest of equals.

    costs: of a step with 0, 1, 2 ... drafted tokens in all. A row's tokens are ever less likely to be accepted, so the
    likeliest of all rows together are always the first ones of each.
    """
    tokens = [(chance.rate**n, row) for row, chance in enumerate(chances) for n in range(1, chance.length + 1)]
    tokens.sort(key=itemgetter(0), reverse=True)
    expected = float(len(chances))
    best, most = 0, expected / costs[0]
    for drafted, (probability, _) in enumerate(tokens, 1):
        expected += probability
        if expected / costs[drafted] > most:
            best, most = drafted, expected / costs[drafted]
    taken = Counter(row for _, row in tokens[:best])
    return [taken[row] for row in range(len(chances))]
