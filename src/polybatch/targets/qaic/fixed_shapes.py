"""What runs the exported graph has in common, wherever it runs: the shapes are those of a specialization."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polybatch.specialization import Specialization
from polybatch.targets.base import Float32Array, Int64Array

Arrays = dict[str, NDArray[Any]]


class GraphRunner(ABC):
    """The part of a :class:`polybatch.targets.base.FixedShapeRunner` that names a step's arrays as the graph does."""

    skips_padding = False
    copies_slots = False

    def __init__(self, inputs: tuple[str, ...]) -> None:
        """inputs: the names of the graph's inputs, retained state included."""
        self._inputs = inputs
        self._row: Specialization | None = None

    def select(self, row: Specialization) -> None:
        """The specialization that the next step runs."""
        self._row = row

    def run(
        self, input_ids: Int64Array, position_ids: Int64Array, batch_index: Int64Array, logits_index: Int64Array
    ) -> Float32Array:
        """See :class:`polybatch.targets.base.StepRunner`; which logits are wanted is a matter of the shapes."""
        row = self._row
        assert row is not None
        # Of the last two only the shape counts.
        arrays: dict[str, Int64Array] = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "batch_index": batch_index,
            "comp_ctx_lengths": np.zeros(row.readable_positions, np.int64),
            "num_logits_to_keep": np.zeros((row.logits_rows, 1), np.int64),
        }
        named = {name: np.ascontiguousarray(arrays[name]) for name in self._inputs if name in arrays}
        return self._run_row(row, named)

    @abstractmethod
    def _run_row(self, row: Specialization, arrays: Arrays) -> Float32Array:
        """The logits of one step of ``row``, [b, n, vocab]."""

    def copy_slot(self, source: int, target: int, positions: int) -> None:
        """RuntimeError: the cache cannot be reached between steps."""
        raise RuntimeError("this target cannot copy positions from slot to slot; run the tokens again instead")
