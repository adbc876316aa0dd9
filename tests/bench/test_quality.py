from __future__ import annotations

import numpy as np
import pytest

from bench.quality import CHUNK, WINDOW, Quality, chunks, markdown, windows


class Words:
    """A tokenizer with one token a word."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}


def test_windows_are_the_starts_of_different_documents() -> None:
    text = windows(Words(), 3)
    assert text.shape == (3, WINDOW)
    assert len({row.tobytes() for row in text}) == 3


def test_more_windows_than_documents_are_refused() -> None:
    with pytest.raises(SystemExit, match="fewer --tokens"):
        windows(Words(), 1000)


def test_every_token_is_read_once_and_compared_with_the_one_that_follows() -> None:
    text = np.arange(2 * WINDOW).reshape(2, WINDOW)
    steps = list(chunks(text))
    assert np.array_equal(np.concatenate([inputs["input_ids"] for inputs, _ in steps], axis=1), text)
    assert np.array_equal(np.concatenate([following for _, following in steps], axis=1), text[:, 1:])
    positions = [inputs["position_ids"] for inputs, _ in steps]
    assert all(chunk.shape == (2, CHUNK) for chunk in positions)
    assert np.array_equal(np.concatenate(positions, axis=1), np.tile(np.arange(WINDOW), (2, 1)))


def test_fp32_is_compared_with_nothing() -> None:
    found = [Quality("fp32", 10, 1.0, 0.0, 0.0, 2.5), Quality("int8", 10, 0.97, 0.004, 0.003, 2.6)]
    assert markdown(found)[2:] == ["| fp32 |  |  |  | 2.500 |", "| int8 | 0.9700 | 0.00400 | 0.00300 | 2.600 |"]
