"""Leaves padding out of a step: the graph is symbolic in rows and tokens, so only live ones need to run.

A row's arithmetic does not depend on what else runs, so its logits keep their bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from polybatch.targets.base import Float32Array, Int64Array

StepArrays = tuple[Int64Array, Int64Array, Int64Array, Int64Array]
"""input_ids [b, s], position_ids [b, s], batch_index [b, 1], logits_index [b, n]."""


@dataclass(frozen=True)
class LiveStep:
    """The live rows of a step up to its last live token, and where their logits belong in the whole step's."""

    arrays: StepArrays
    rows: NDArray[np.intp]
    shape: tuple[int, int]
    """Rows and logits per row of the whole step."""

    def whole_logits(self, logits: torch.Tensor) -> Float32Array:
        """Logits [live rows, live columns, vocab] as those of the whole step; 0 where there was padding."""
        count, columns, vocab = logits.shape
        if (count, columns) == self.shape:
            return logits.numpy()
        whole = np.zeros((*self.shape, vocab), np.float32)  # pages that nobody writes cost nothing
        target = torch.from_numpy(whole)[:, :columns]
        if (self.rows == np.arange(count)).all():
            target[:count] = logits
        else:
            target[torch.from_numpy(self.rows)] = logits
        return whole


def live_step(arrays: StepArrays) -> LiveStep:
    """What of a step has to run: its live rows and columns, or its first token where all of it is padding."""
    ids, positions, slots, wanted = arrays
    live = positions >= 0
    live[0, 0] |= not live.any()
    rows = np.flatnonzero(live.any(axis=1))
    tokens = int(np.flatnonzero(live.any(axis=0))[-1]) + 1
    columns = int(np.count_nonzero((wanted[rows] < tokens).any(axis=0)))  # they ascend along a row
    kept = np.minimum(wanted[rows, :columns], tokens - 1)
    return LiveStep((ids[rows, :tokens], positions[rows, :tokens], slots[rows], kept), rows, wanted.shape)
