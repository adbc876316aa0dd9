"""Drives sessions by hand, a sequence at a time, the way the engine does: chunks, padding, slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polybatch.session import InferenceSession
from polybatch.specialization import Specialization, SpecializationTable

Inputs = dict[str, NDArray[Any]]


def empty_step(row: Specialization, table: SpecializationTable) -> Inputs:
    """Inputs of the row's shapes in which every row is padding; slots 0, 1, 2, ..."""
    shapes = row.input_shapes(table.config.continuous_batching)
    inputs: Inputs = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
    inputs["position_ids"][:] = -1
    if "batch_index" in inputs:
        inputs["batch_index"][:, 0] = np.arange(row.batch_size)
    return inputs


def prefill_inputs(table: SpecializationTable, tokens: Sequence[int], slot: int, start: int = 0) -> Inputs:
    """One chunk of a prompt, right padded."""
    row = table.choose_prefill(start + len(tokens) - 1)
    inputs = empty_step(row, table)
    at = 0 if table.config.continuous_batching else slot
    inputs["input_ids"][at, : len(tokens)] = tokens
    inputs["position_ids"][at, : len(tokens)] = np.arange(start, start + len(tokens))
    if "batch_index" in inputs:
        inputs["batch_index"][0, 0] = slot
    return inputs


def prefill(
    session: InferenceSession, table: SpecializationTable, tokens: Sequence[int], slot: int, chunk: int | None = None
) -> NDArray[np.float32]:
    """Prefill ``tokens`` in chunks of ``chunk`` live tokens; logits [vocab] of the last one."""
    size = chunk or table.config.prefill_seq_len
    at = 0 if table.config.continuous_batching else slot
    logits: Any = None
    for start in range(0, len(tokens), size):
        logits = session.run(prefill_inputs(table, tokens[start : start + size], slot, start))["logits"][at, 0]
    result: NDArray[np.float32] = logits
    return result


def decode_inputs(
    table: SpecializationTable, live: Mapping[int, tuple[int, int]], batch_size: int | None = None
) -> Inputs:
    """A decode step of one token per live slot: ``live[slot] = (token, position)``; the rest is padding."""
    row = table.choose_decode(batch_size or len(live), 0, max(position for _, position in live.values()))
    inputs = empty_step(row, table)
    idle = [slot for slot in range(table.config.full_batch_size) if slot not in live]
    slots = [*live, *idle][: row.batch_size]
    if "batch_index" in inputs:
        inputs["batch_index"][:, 0] = slots
    for index, slot in enumerate(live):
        at = index if "batch_index" in inputs else slot
        inputs["input_ids"][at, 0], inputs["position_ids"][at, 0] = live[slot]
    return inputs


def decode(
    session: InferenceSession,
    table: SpecializationTable,
    live: Mapping[int, tuple[int, int]],
    batch_size: int | None = None,
) -> dict[int, NDArray[np.float32]]:
    """Run a decode step; logits [vocab] by slot."""
    logits = session.run(decode_inputs(table, live, batch_size))["logits"]
    continuous = table.config.continuous_batching
    return {slot: logits[index if continuous else slot, 0] for index, slot in enumerate(live)}
