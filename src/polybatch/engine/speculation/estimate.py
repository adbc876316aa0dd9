"""How likely a drafted token is to be accepted, estimated from what happened to earlier ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from polybatch.engine.speculation.proposal import Proposal

_FIRST_GUESS = 0.5


class RunningRate:
    """Accepted over tried, recent trials before old ones; without trials it is the prior.

    memory: trials older than this many fade. prior_trials: how many trials the prior counts for.
    """

    def __init__(self, memory: float, prior_trials: float) -> None:
        self._memory = memory
        self._prior_trials = prior_trials
        self._accepted = 0.0
        self._tried = 0.0

    def add(self, accepted: int, tried: int) -> None:
        keep = max(0.0, 1.0 - tried / self._memory)
        self._accepted = self._accepted * keep + accepted
        self._tried = self._tried * keep + tried

    def value(self, prior: float) -> float:
        return (self._prior_trials * prior + self._accepted) / (self._prior_trials + self._tried)


def _own_rate() -> RunningRate:
    """Of one request: its text may soon change."""
    return RunningRate(memory=64.0, prior_trials=8.0)


def _overall_rate() -> RunningRate:
    return RunningRate(memory=512.0, prior_trials=4.0)


class AcceptanceEstimates:
    """A rate per request and kind of evidence, starting from what the engine has seen of such evidence before."""

    def __init__(self) -> None:
        self._overall: defaultdict[int, RunningRate] = defaultdict(_overall_rate)
        self._requests: dict[int, defaultdict[int, RunningRate]] = {}

    def rate(self, request_id: int, evidence: int) -> float:
        """The probability that a drafted token is accepted once those before it are."""
        prior = self._overall[evidence].value(_FIRST_GUESS)
        own = self._requests.get(request_id)
        return prior if own is None else own[evidence].value(prior)

    def score(self, request_id: int, tried: Proposal, new_tokens: Sequence[int]) -> None:
        """``new_tokens`` came where all of ``tried`` was up for acceptance; a wrong token hides those after it."""
        if not tried:
            return
        accepted = tried.accepted(new_tokens)
        trials = min(accepted + 1, len(tried))
        for rates in (self._requests.setdefault(request_id, defaultdict(_own_rate)), self._overall):
            rates[tried.evidence].add(accepted, trials)

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)


def expected_tokens(rate: float, drafted: int) -> float:
    """Tokens that a step gives a sequence: the accepted ones and the one after them (Leviathan et al. 2023, eq. 1)."""
    return float(drafted + 1) if rate >= 1.0 else (1.0 - rate ** (drafted + 1)) / (1.0 - rate)
