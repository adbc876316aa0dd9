"""Live sequences in a session: prompts prefilled into slots, and decode steps on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.programs import PREFILL_CHUNK
from polybatch import InferenceSession, Program

POSITION = 512
"""Where every live sequence stands: its prompt has this many tokens."""

Inputs = dict[str, NDArray[Any]]


class Sequences:
    """A session with live sequences: each has a random prompt of ``position`` tokens, the same in every session.

    Sequence i of n slots always lies in the same slot; the slots of neighbouring sequences are scattered.
    """

    def __init__(self, program: Program, threads: int, position: int = POSITION) -> None:
        if position % PREFILL_CHUNK:
            raise ValueError(f"position must be a multiple of {PREFILL_CHUNK}, not {position}")
        self.program = program
        self.position = position
        self.session: InferenceSession = program.session(threads)
        self._slots = np.random.default_rng(1).permutation(program.full_batch_size).astype(np.int64)
        self._filled = 0

    def fill(self, count: int) -> None:
        """Prefill the first ``count`` sequences, as far as they are not there yet."""
        for index in range(self._filled, count):
            for start in range(0, self.position, PREFILL_CHUNK):
                self.session.run(self.prefill_chunk(index, start))
        self._filled = max(self._filled, count)

    def prefill_chunk(self, index: int, start: int) -> Inputs:
        """Inputs of the prefill step of one sequence's prompt from position ``start``."""
        prompt = np.random.default_rng(index).integers(0, self.program.vocab_size, self.position)
        return {
            "input_ids": prompt[None, start : start + PREFILL_CHUNK],
            "position_ids": np.arange(start, start + PREFILL_CHUNK, dtype=np.int64)[None],
            "batch_index": self._slots[None, index : index + 1],
        }

    def decode(self, batch: int, drafted: int = 0) -> Inputs:
        """Inputs of a decode step of the first ``batch`` sequences at :attr:`position`, drafted + 1 tokens each.

        Repeating the step changes nothing: it writes the same keys and values to the same positions.
        """
        self.fill(batch)
        tokens = drafted + 1
        ids = [np.random.default_rng((2, index)).integers(0, self.program.vocab_size, tokens) for index in range(batch)]
        positions = np.arange(self.position, self.position + tokens, dtype=np.int64)
        return {
            "input_ids": np.stack(ids),
            "position_ids": np.tile(positions, (batch, 1)),
            "batch_index": self._slots[:batch, None],
        }

    def close(self) -> None:
        """Release the session's cache."""
        self.session.close()
