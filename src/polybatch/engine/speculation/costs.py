"""What a decode step costs, for the choice of K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polybatch.engine.protocols import TableLike

_FIXED_TOKENS = 24
"""Without measured times: reading the weights takes as long as the arithmetic of this many tokens.

That is near what a model of 135 million bfloat16 weights shows on a CPU with wide vector units. Measured times are
better: they come with every compile that is not told to leave them out.
"""


class StepCosts:
    """Milliseconds of a decode step over some rows at some K, from the times measured at compile.

    Where the program holds no times at all, a step is taken to cost 24 + its tokens, padding included (the unit is then
    not the millisecond, which changes no choice). Where it holds some, a K that was not measured is never chosen.
    """

    def __init__(self, table: TableLike, step_ms: Mapping[Any, float] | None, lengths: Sequence[int]) -> None:
        self._table = table
        self._step_ms = step_ms or {}
        self._lengths = tuple(lengths)
        self._known: dict[int, dict[int, float]] = {}

    @property
    def measured(self) -> bool:
        """Whether costs are milliseconds."""
        return bool(self._step_ms)

    def by_length(self, rows: int) -> Mapping[int, float]:
        """The cost of the steps that cover ``rows`` rows, for every K of the table that it is known for."""
        if rows not in self._known:
            self._known[rows] = self._compute(rows)
        return self._known[rows]

    def _compute(self, rows: int) -> dict[int, float]:
        costs: dict[int, float] = {}
        largest = float("inf")
        for drafted in reversed(self._lengths):
            cost = self._cover_cost(rows, drafted)
            if cost is not None:  # fewer tokens never cost more: where it was measured so, that was noise
                costs[drafted] = largest = min(cost, largest)
        return costs

    def _cover_cost(self, rows: int, drafted: int) -> float | None:
        parts = self._table.cover(rows, self._step_ms or None, proposal_len=drafted)
        if not self._step_ms:
            return float(sum(_FIXED_TOKENS + part.batch_size * part.seq_len for part in parts))
        times = [self._step_ms.get(part) for part in parts]
        return None if None in times else sum(ms for ms in times if ms is not None)
