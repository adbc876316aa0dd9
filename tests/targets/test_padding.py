"""Padding is left out of a step and its logits are put back where the caller expects them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from polybatch.targets.base import StepArrays
from polybatch.targets.cpu.padding import live_step
from polybatch.targets.live_logits import live_logits


def step_of(live_tokens: list[int], tokens: int, logits: int) -> StepArrays:
    """Row i has ``live_tokens[i]`` tokens in its first columns; every value names its row and column."""
    rows = len(live_tokens)
    ids = np.arange(rows * tokens).reshape(rows, tokens)
    columns = np.arange(tokens)
    positions = np.where(columns < np.array(live_tokens)[:, None], columns, -1)
    last = np.maximum(np.array(live_tokens) - 1, 0)
    wanted = np.where(last < logits, 0, last + 1 - logits)[:, None] + np.arange(logits)
    return ids, positions, np.arange(rows)[:, None], wanted


def logits_of(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.float32]:
    """A stand-in for the graph: the logits of a token are its id and its id's negative."""
    chosen = np.take_along_axis(ids, wanted, axis=1).astype(np.float32) + 1
    return np.stack([chosen, -chosen], axis=-1)


@given(st.data())
def test_live_tokens_get_the_logits_of_the_whole_step(data: st.DataObject) -> None:
    tokens = data.draw(st.integers(1, 5))
    logits = data.draw(st.sampled_from([1, tokens]))
    live = data.draw(st.lists(st.integers(0, tokens), min_size=1, max_size=6))
    arrays = step_of(live, tokens, logits)
    cropped = live_step(arrays)
    ids, positions, slots, wanted = cropped.arrays
    assert ids.shape == positions.shape and len(slots) == len(ids)
    if logits == tokens:
        assert ids.size == max(1, sum(live))
    else:
        assert ids.shape == (max(1, sum(count > 0 for count in live)), max(max(live), 1))
    assert wanted.min() >= 0 and wanted.max() < ids.shape[1]
    whole = cropped.whole_logits(logits_of(ids, wanted))
    expected = logits_of(arrays[0], arrays[3])
    assert whole.shape == expected.shape and np.isfinite(whole).all()
    for row, count in enumerate(live):
        wanted_and_live = arrays[3][row] < count
        np.testing.assert_array_equal(whole[row][wanted_and_live], expected[row][wanted_and_live])
    alone = live_logits(logits_of(ids, wanted), positions, wanted)
    np.testing.assert_array_equal(alone, live_logits(expected, arrays[1], arrays[3]))
    assert len(alone) == sum(min(count, logits) if logits > 1 else count > 0 for count in live)


def test_a_step_without_padding_is_passed_on_as_it_is() -> None:
    arrays = step_of([3, 3], 3, 1)
    cropped = live_step(arrays)
    for kept, given_array in zip(cropped.arrays, arrays, strict=True):
        np.testing.assert_array_equal(kept, given_array)
    logits = logits_of(arrays[0], arrays[3])
    assert cropped.whole_logits(logits).ctypes.data == logits.ctypes.data
    assert np.shares_memory(live_logits(logits, arrays[1], arrays[3]), logits)


def test_rows_of_different_lengths_run_token_by_token() -> None:
    ids, positions, slots, wanted = live_step(step_of([3, 0, 1], 4, 4)).arrays
    assert ids[:, 0].tolist() == [0, 1, 2, 8]
    assert positions[:, 0].tolist() == [0, 1, 2, 0]
    assert slots[:, 0].tolist() == [0, 0, 0, 2]
    assert wanted[:, 0].tolist() == [0, 0, 0, 0]
