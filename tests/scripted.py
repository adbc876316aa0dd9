"""A proposer that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polybatch.engine.speculation.proposal import Proposal
from polybatch.engine.speculation.proposer import Ask

Script = Callable[[int, list[int], int], Sequence[int]]
"""(step of the request, its tokens so far, limit) -> drafted tokens."""


class Scripted:
    """Speculation and proposer in one; keeps what it was asked for."""

    def __init__(self, script: Script, draft_ms: float | None = 0.0) -> None:
        self.script = script
        self.cost = draft_ms
        self.steps: dict[int, int] = {}
        self.asked: list[dict[int, int]] = []  # limits by request, per engine step
        self.forgotten: list[int] = []
        self.close_calls = 0

    def open(self, program: object, threads: int | None) -> Scripted:
        return self

    def draft_ms(self, rows: int) -> float | None:
        return self.cost

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        self.asked.append({ask.request_id: ask.limit for ask in asks})
        return [self._propose(ask) for ask in asks]

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)

    def close(self) -> None:
        self.close_calls += 1

    def _propose(self, ask: Ask) -> Proposal:
        step = self.steps[ask.request_id] = self.steps.get(ask.request_id, -1) + 1
        drafted = tuple(self.script(step, ask.tokens(0, len(ask)), ask.limit))[: ask.limit]
        return Proposal(drafted)
