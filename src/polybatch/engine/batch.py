"""From rows of tokens to the input arrays of a step, and back to each row's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        shape = (self.specialization.batch_size, self.specialization.seq_len)
        input_ids = np.zeros(shape, np.int64)
        position_ids = np.full(shape, -1, np.int64)
        for index, row in enumerate(self.rows):
            at, count = self._array_row(index), len(row.token_ids)
            input_ids[at, :count] = row.token_ids
            position_ids[at, :count] = np.arange(row.start, row.start + count)
        arrays: StepArrays = {"input_ids": input_ids, "position_ids": position_ids}
        if self.continuous:
            arrays["batch_index"] = np.array(self._slots(), np.int64).reshape(-1, 1)
        return arrays

    def row_logits(self, logits: Logits, index: int) -> Logits:
        """Logits [1 + proposed tokens, vocab] of ``rows[index]``; ``logits`` is float32 [b, n, vocab].

        The first follow the row's own last token and each of the rest a proposed one. n is 1 (the last live token
        only), or seq_len in a program compiled for speculation (every token).
        """
        row, at = self.rows[index], self._array_row(index)
        count = 1 if logits.shape[1] == 1 else len(row.token_ids)
        wanted: Logits = logits[at, count - 1 - len(row.proposal) : count]
        return wanted

    def best_tokens(self, logits: Logits) -> list[int | None]:
        """Of each row of a step of one token per row, the most probable next token; None where it is not finite.

        One call for all rows takes half the time of one for each. Steps of more tokens get None throughout: how many of
        their logits are looked at depends on what is accepted.
        """
        if logits.shape[1] > 1 or self.specialization.seq_len > 1:
            return [None] * len(self.rows)
        live = logits[: len(self.rows), 0] if self.continuous else logits[[row.slot for row in self.rows], 0]
        best = live.argmax(axis=1)
        finite = np.isfinite(live[np.arange(len(best)), best])
        return [token if fine else None for token, fine in zip(best.tolist(), finite.tolist(), strict=True)]

    def _array_row(self, index: int) -> int:
        return index if self.continuous else self.rows[index].slot

    def _slots(self) -> list[int]:
        slots = [row.slot for row in self.rows]
        used = set(slots)
        candidate = 0
        while len(slots) < self.specialization.batch_size:
            if candidate not in used:
                slots.append(candidate)
            candidate += 1
        return slots


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
    return [
        Batch(table.choose_decode(part.batch_size, *_reach(taken)), taken, True)
        for part, taken in split_rows(rows, parts)
    ]


def _reach(rows: Sequence[StepRow]) -> tuple[int, int]:
    """The K that decode rows need, and the position whose row of the table then holds every one of their tokens."""
    drafted = max(len(row.token_ids) for row in rows) - 1
    return drafted, max(row.last_position for row in rows) - drafted
