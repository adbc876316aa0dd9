"""Leaves padding out of a step: the graph is symbolic in rows and tokens, so only live ones need to run.

A row's arithmetic does not depend on what else runs, so its logits keep their bits. Where rows of a decode step have
different numbers of live tokens, each token runs as a row of its own: attention takes neighbouring rows of one slot for
one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polybatch.targets.base import Float32Array, StepArrays

_Indices = NDArray[np.intp]


@dataclass(frozen=True)
class LiveStep:
    """What runs of a step, and where its logits belong in the whole step's."""

    arrays: StepArrays
    place: tuple[_Indices, _Indices] | None
    """Row and column in the whole step's logits of all that are computed, as two arrays that broadcast to these.

    None where nothing is left out.
    """
    shape: tuple[int, int]
    """Rows and logits per row of the whole step."""

    def whole_logits(self, computed: Float32Array) -> Float32Array:
        """Logits [rows, columns, vocab] of what ran as those of the whole step; 0 where nothing ran."""
        if self.place is None or computed.shape[:-1] == self.shape:
            return computed
        whole = np.zeros((*self.shape, computed.shape[-1]), np.float32)  # pages that nobody writes cost nothing
        whole[self.place] = computed
        return whole


def live_step(arrays: StepArrays) -> LiveStep:
    """What of a step has to run: its live tokens, or its first one where all of it is padding."""
    ids, positions, slots, wanted = arrays
    if min(positions.ravel().tolist()) >= 0:  # the usual case; where numpy is not in the caches, lists are faster
        return LiveStep(arrays, None, wanted.shape)
    live = positions >= 0
    live[0, 0] |= not live.any()
    rows = np.flatnonzero(live.any(axis=1))
    tokens = int(np.flatnonzero(live.any(axis=0))[-1]) + 1
    if wanted.shape == ids.shape and np.count_nonzero(live) < len(rows) * tokens:
        return _token_by_token(arrays, live)
    columns = int(np.count_nonzero((wanted[rows] < tokens).any(axis=0)))  # they ascend along a row
    kept = np.minimum(wanted[rows, :columns], tokens - 1)
    place = rows[:, None], np.arange(columns)[None]
    return LiveStep((ids[rows, :tokens], positions[rows, :tokens], slots[rows], kept), place, wanted.shape)


def _token_by_token(arrays: StepArrays, live: NDArray[np.bool_]) -> LiveStep:
    """Every live token as a row, where the logits of all are wanted: ``wanted`` then counts the columns."""
    ids, positions, slots, wanted = arrays
    rows, tokens = (index[:, None] for index in np.nonzero(live))
    only = np.zeros_like(tokens)
    return LiveStep((ids[rows, tokens], positions[rows, tokens], slots[rows[:, 0]], only), (rows, tokens), wanted.shape)
