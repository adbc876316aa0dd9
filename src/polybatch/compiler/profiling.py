"""Measures the step time of each specialization at the end of a compile, for the engine's choice among them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
from numpy.typing import NDArray

from polybatch.session import InferenceSession
from polybatch.specialization import Specialization, SpecializationTable

_POSITION = 512
"""Where the rows of a measured decode step stand (earlier in a shorter context)."""
_WARM_UPS = 1
_SAMPLES = 5

Clock = Callable[[], float]


def profile_steps(
    session: InferenceSession, table: SpecializationTable, seconds: float, clock: Clock = time.perf_counter
) -> dict[Specialization, float]:
    """Median milliseconds per step of as many rows as fit into ``seconds``, the cheapest first.

    The costliest rows may go without a time. Leaves nothing behind: the session is reset.
    """
    deadline = clock() + seconds
    times: dict[Specialization, float] = {}
    for row in sorted(table.rows, key=lambda row: row.batch_size * row.seq_len):
        if clock() >= deadline:
            break
        inputs = _full_step(row, table)
        samples = []
        for _ in range(_WARM_UPS + _SAMPLES):
            started = clock()
            session.run(inputs)
            samples.append((clock() - started) * 1e3)
            if clock() >= deadline:
                break
        times[row] = median(samples[_WARM_UPS:] or samples)
    session.reset()
    return times


def _full_step(row: Specialization, table: SpecializationTable) -> dict[str, NDArray[np.int64]]:
    """A step of the row's shapes in which every row is live."""
    shapes = row.input_shapes(table.config.continuous_batching)
    inputs = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
    start = max(0, min(_POSITION, row.readable_positions - row.seq_len))
    columns = np.arange(row.seq_len)
    inputs["position_ids"] += np.where(start + columns < row.readable_positions, start + columns, -1)
    if "batch_index" in inputs:
        inputs["batch_index"][:, 0] = np.arange(row.batch_size)
    return inputs
