"""The arrays of a step under the names that the graph gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polybatch.specialization import Specialization
from polybatch.targets.base import Int64Array


def step_inputs(
    row: Specialization,
    names: Iterable[str],
    input_ids: Int64Array,
    position_ids: Int64Array,
    batch_index: Int64Array,
) -> dict[str, NDArray[Any]]:
    """Those of ``names`` that are sent with each step; of the two lengths only the shape counts, they hold zeros."""
    arrays: dict[str, Int64Array] = {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "batch_index": batch_index,
        "comp_ctx_lengths": np.zeros(row.readable_positions, np.int64),
        "num_logits_to_keep": np.zeros((row.logits_rows, 1), np.int64),
    }
    return {name: np.ascontiguousarray(arrays[name]) for name in names if name in arrays}
