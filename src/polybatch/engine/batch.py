"""From rows of tokens to the input arrays of a step, and back to each row's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isfinite
from typing import TypeVar

import numpy as np

from polybatch.engine.protocols import Logits, ProgramLike, SpecializationLike, StepArrays
from polybatch.engine.speculation.proposal import NOTHING, Proposal

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class StepRow:
    """Consecutive tokens of one sequence: ``token_ids[i]`` has position ``start + i`` in ``slot``.

    The last ``len(proposal)`` of them are only proposed.
    """

    request_id: int
    slot: int
    start: int
    token_ids: tuple[int, ...]
    proposal: Proposal = NOTHING

    @property
    def last_position(self) -> int:
        return self.start + len(self.token_ids) - 1

    def proposing(self, proposal: Proposal) -> StepRow:
        """This row with proposed tokens after its own."""
        if not proposal.token_ids:
            return self
        return replace(self, token_ids=self.token_ids + proposal.token_ids, proposal=proposal)


@dataclass(frozen=True)
class Batch:
    """Rows that run as one step of one specialization.

    Under continuous batching row i of the arrays is ``rows[i]`` and ``batch_index`` names its slot; padding rows name
    the lowest slots that no row uses. Otherwise row i of the arrays is slot i.
    """

    specialization: SpecializationLike
    rows: tuple[StepRow, ...]
    continuous: bool

    @property
    def padding_rows(self) -> int:
        return self.specialization.batch_size - len(self.rows)

    def inputs(self) -> StepArrays:
        """input_ids, position_ids int64 [b, s], padded on the right with token 0 at position -1; batch_index [b, 1]."""
        width = self.specialization.seq_len
        input_ids = [[0] * width for _ in range(self.specialization.batch_size)]
        position_ids = [[-1] * width for _ in range(self.specialization.batch_size)]
        for index, row in enumerate(self.rows):  # lists: after a step nothing of numpy is in the processor's caches
            at, count = index if self.continuous else row.slot, len(row.token_ids)
            input_ids[at][:count] = row.token_ids
            position_ids[at][:count] = range(row.start, row.start + count)
        arrays = {"input_ids": np.array(input_ids, np.int64), "position_ids": np.array(position_ids, np.int64)}
        if self.continuous:
            arrays["batch_index"] = np.array([self._slots()], np.int64).T
        return arrays

    def logits_rows(self, logits: Logits) -> list[slice]:
        """Which of a step's logits, float32 [live, vocab], belong to each row: [1 + proposed tokens, vocab].

        The first follow the row's own last token and each of the rest a proposed one. A step gives logits for each
        row's last live token only, or, in a program compiled for speculation, for every live token.
        """
        last_only = len(logits) == len(self.rows)
        ends = accumulate(1 if last_only else len(row.token_ids) for row in self.rows)
        return [slice(end - 1 - len(row.proposal), end) for row, end in zip(self.rows, ends, strict=True)]

    def _slots(self) -> list[int]:
        slots = [row.slot for row in self.rows]
        used = set(slots)
        candidate = 0
        while len(slots) < self.specialization.batch_size:
            if candidate not in used:
                slots.append(candidate)
            candidate += 1
        return slots


def best_tokens(logits: Logits) -> list[int | None]:
    """The most probable next token by logits [n, vocab], of equals the first; None where it is not finite."""
    best = logits.argmax(axis=1).tolist()  # one call for all takes half the time of one for each
    return [token if isfinite(logits.item(index, token)) else None for index, token in enumerate(best)]


def split_rows(
    rows: Sequence[_Row], parts: Sequence[SpecializationLike]
) -> list[tuple[SpecializationLike, tuple[_Row, ...]]]:
    """Deal rows, in order, to the specializations that cover them; each takes up to its batch size.

    Raises ValueError when the parts have fewer rows than are live.
    """
    dealt = []
    at = 0
    for part in parts:
        if taken := tuple(rows[at : at + part.batch_size]):
            dealt.append((part, taken))
        at += part.batch_size
    if at < len(rows):
        raise ValueError(f"{len(rows)} live rows, but the specializations chosen for them hold only {at}")
    return dealt


def decode_batches(program: ProgramLike, rows: tuple[StepRow, ...], *, skips_padding: bool) -> list[Batch]:
    """Split decode rows over the cheapest cover; each part then gets the shortest row of the table that holds it.

    Where padding costs nothing, one step is cheaper than two, whatever its full batch would take. Without continuous
    batching one step holds them all. Raises NoMatchingSpecializationError as the table does.
    """
    table = program.table
    longest, position = _reach(rows)
    if not table.config.continuous_batching:
        return [Batch(table.choose_decode(program.full_batch_size, longest, position), rows, False)]
    step_ms = None if skips_padding else program.step_ms
    parts = table.cover(len(rows), step_ms, proposal_len=longest, max_position=position)
    if len(parts) == 1:
        return [Batch(parts[0], rows, True)]
    return [
        Batch(table.choose_decode(part.batch_size, *_reach(taken)), taken, True)
        for part, taken in split_rows(rows, parts)
    ]


def _reach(rows: Sequence[StepRow]) -> tuple[int, int]:
    """The K that decode rows need, and the position whose row of the table then holds every one of their tokens."""
    drafted = max(len(row.token_ids) for row in rows) - 1
    return drafted, max(row.last_position for row in rows) - drafted
