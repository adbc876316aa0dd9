"""How likely a drafted token is to be accepted, estimated from what happened to earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

from polybatch.engine.speculation.proposal import Proposal

_FIRST_GUESS = 0.5
_PRIOR_TOKENS = 2.0
"""A prior counts as much as this many drafted tokens."""
_MEMORY_TOKENS = 64.0
"""Tokens drafted longer ago than this fade."""


class RunningRate:
    """Accepted over tried, recent trials before old ones; without trials it is the prior."""

    def __init__(self) -> None:
        self._accepted = 0.0
        self._tried = 0.0

    def add(self, accepted: int, tried: int) -> None:
        keep = max(0.0, 1.0 - tried / _MEMORY_TOKENS)
        self._accepted = self._accepted * keep + accepted
        self._tried = self._tried * keep + tried

    def value(self, prior: float) -> float:
        return (_PRIOR_TOKENS * prior + self._accepted) / (_PRIOR_TOKENS + self._tried)


class AcceptanceEstimates:
    """A rate per request and kind of evidence, starting from what the engine has seen of such evidence before."""

    def __init__(self) -> None:
        self._overall: dict[int, RunningRate] = {}
        self._requests: dict[int, dict[int, RunningRate]] = {}

    def rate(self, request_id: int, evidence: int) -> float:
        """The probability that a drafted token is accepted once those before it are."""
        overall = self._overall.get(evidence)
        prior = _FIRST_GUESS if overall is None else overall.value(_FIRST_GUESS)
        own = self._requests.get(request_id, {}).get(evidence)
        return prior if own is None else own.value(prior)

    def score(self, request_id: int, tried: Proposal, new_tokens: Sequence[int]) -> None:
        """``new_tokens`` came where all of ``tried`` was up for acceptance; a wrong token hides those after it."""
        if not tried:
            return
        accepted = tried.accepted(new_tokens)
        trials = min(accepted + 1, len(tried))
        for rates in (self._requests.setdefault(request_id, {}), self._overall):
            rates.setdefault(tried.evidence, RunningRate()).add(accepted, trials)

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)


def expected_tokens(rate: float, drafted: int) -> float:
    """Tokens that a step gives a sequence: the accepted ones and the one after them (Leviathan et al. 2023, eq. 1)."""
    return float(drafted + 1) if rate >= 1.0 else (1.0 - rate ** (drafted + 1)) / (1.0 - rate)
