"""What a decode step costs, for the choice of K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polybatch.engine.batch import split_rows
from polybatch.engine.protocols import SpecializationLike, TableLike

_FIXED_TOKENS = 24
"""Without measured times: reading the weights takes as long as the arithmetic of this many tokens.

That is near what a model of 135 million bfloat16 weights shows on a CPU with wide vector units. Measured times are
better: they come with every compile that is not told to leave them out.
"""


class StepCosts:
    """Milliseconds of a decode step over some rows at some K, from the times measured at compile.

    skips_padding: the step costs what its live tokens cost, and its time is read off between the measured steps of its
        batch size with the next fewer and the next more tokens (each sequence adds its attention to a step, so what
        as many tokens of fewer sequences take is too little). Otherwise it costs what was measured for its shape.

    Where the program holds no times at all, a step is taken to cost 24 + its tokens (the unit is then not the
    millisecond, which changes no choice). Where it holds some, a K that was not measured is never chosen.
    """

    def __init__(
        self, table: TableLike, step_ms: Mapping[Any, float] | None, lengths: Sequence[int], *, skips_padding: bool
    ) -> None:
        self._table = table
        self._step_ms = step_ms or {}
        self._lengths = tuple(lengths)
        self.skips_padding = skips_padding
        self._token_costs: dict[int, list[float]] = {}
        self._known: dict[int, dict[int, float]] = {}
        self._covers: dict[tuple[int, int], Sequence[SpecializationLike]] = {}

    @property
    def measured(self) -> bool:
        """Whether costs are milliseconds."""
        return bool(self._step_ms)

    def by_length(self, rows: int) -> Mapping[int, float]:
        """The cost of the steps that cover ``rows`` rows with full proposals, for every K for which it is known."""
        if rows not in self._known:
            costs: dict[int, float] = {}
            largest = float("inf")
            for drafted in reversed(self._lengths):
                steps = split_rows(range(rows), self.cover(rows, drafted))
                cost = sum(self._step_cost(part, len(taken) * (drafted + 1)) for part, taken in steps)
                if np.isfinite(cost):  # fewer tokens never cost more: where it was measured so, that was noise
                    costs[drafted] = largest = min(cost, largest)
            self._known[rows] = costs
        return self._known[rows]

    def of_tokens(self, batch_size: int) -> Sequence[float]:
        """The cost of a step by the number of its live tokens where padding is left out; inf where unknown."""
        if batch_size not in self._token_costs:
            tokens = np.arange(batch_size * (self._lengths[-1] + 1) + 1)
            costs = (_FIXED_TOKENS + tokens).astype(np.float64)
            if self._step_ms:
                counts, times = _by_tokens(self._step_ms, batch_size)
                costs = np.interp(tokens, counts or [0], times or [np.inf], right=np.inf)
            self._token_costs[batch_size] = costs.tolist()
        return self._token_costs[batch_size]

    def cover(self, rows: int, drafted: int = 0) -> Sequence[SpecializationLike]:
        """The rows of the table that such a decode step runs; where padding is left out the same for every K."""
        if (rows, drafted) not in self._covers:
            step_ms = None if self.skips_padding or not self._step_ms else self._step_ms
            self._covers[rows, drafted] = tuple(self._table.cover(rows, step_ms, proposal_len=drafted))
        return self._covers[rows, drafted]

    def _step_cost(self, row: SpecializationLike, live_tokens: int) -> float:
        if self.skips_padding:
            return self.of_tokens(row.batch_size)[live_tokens]
        if not self._step_ms:
            return float(_FIXED_TOKENS + row.seq_len * row.batch_size)
        return self._step_ms.get(row, np.inf)


def _by_tokens(step_ms: Mapping[Any, float], batch_size: int) -> tuple[list[int], list[float]]:
    """Token counts, ascending, and times of the measured steps of a batch size; below it, of one token a row.

    Fewer tokens never take longer: where it was measured so, that was noise.
    """
    decode = [(row.batch_size, row.seq_len, ms) for row, ms in step_ms.items() if row.phase == "decode"]
    shapes = [(b * s, ms) for b, s, ms in decode if b == batch_size or (b < batch_size and s == 1)]
    counts = sorted({tokens for tokens, _ in shapes})
    return counts, [min(ms for tokens, ms in shapes if tokens >= count) for count in counts]
