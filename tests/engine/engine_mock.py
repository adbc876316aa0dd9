"""A program whose answers can be worked out by hand, and a session that checks every rule of a step's inputs.

The next token after tokens t0, t1, ... is ``sum((i + 1) * ti) + 7 * count``, modulo the vocabulary. The logits fall
off with the distance from it, so that sampling has something to choose from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polybatch.errors import ProgramError
from polybatch.specialization import SpecializationTable, build_table

VOCAB = 251
StepFault = Callable[[dict[str, np.ndarray], int], None]


def next_token(tokens: Sequence[int]) -> int:
    return (sum((i + 1) * token for i, token in enumerate(tokens)) + 7 * len(tokens)) % VOCAB


def solo_tokens(
    prompt: Sequence[int], max_tokens: int, *, ctx_len: int = 64, eos: Sequence[int] = ()
) -> tuple[tuple[int, ...], str]:
    """The greedy answer and finish reason of one request, worked out without an engine."""
    tokens = list(prompt)
    generated: list[int] = []
    while True:
        generated.append(next_token(tokens))
        tokens.append(generated[-1])
        if generated[-1] in eos:
            return tuple(generated), "stop"
        if len(generated) == max_tokens or len(tokens) == ctx_len:
            return tuple(generated), "length"


def near_next_token(tokens: list[int]) -> np.ndarray:
    """Logits [VOCAB] after ``tokens``: the higher, the less a token lies above the next one."""
    distance = (np.arange(VOCAB) - next_token(tokens)) % VOCAB
    return -0.25 * distance.astype(np.float32)


@dataclass
class Step:
    """What one ``run`` saw: the live rows only."""

    phase: str
    batch_size: int
    slots: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]


class MockSession:
    """Keeps the tokens of every slot; raises AssertionError on any input that breaks a rule."""

    skips_padding = False

    def __init__(self, program: MockProgram) -> None:
        self.program = program
        self.copies_slots = program.copies_slots
        config = program.table.config
        self.cache = np.full((config.full_batch_size, config.ctx_len), -1, np.int64)
        self.steps: list[Step] = []
        self.copies: list[tuple[int, int, int]] = []
        self.fault: StepFault | None = None
        self.delay_s = 0.0
        self.close_calls = 0

    def run_live(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        assert not self.close_calls, "run after close"
        table = self.program.table
        rows = table.candidates({name: array.shape for name, array in inputs.items()})
        assert rows, f"no row of the table has the shapes {[array.shape for array in inputs.values()]}"
        assert all(array.dtype == np.int64 for array in inputs.values())
        slots = self._slots(inputs, len(inputs["input_ids"]))
        writes = [self._check_row(slot, *row) for slot, row in zip(slots, self._rows(inputs), strict=True)]
        assert any(writes), "a step without live rows"
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.fault is not None:
            self.fault(inputs, len(self.steps))
        live = [(slot, write) for slot, write in zip(slots, writes, strict=True) if write]
        positions = tuple(tuple(position for position, _ in write) for _, write in live)
        self.steps.append(Step(rows[0].phase, len(slots), tuple(slot for slot, _ in live), positions))
        wanted = rows[0].logits_rows
        logits = [self._write(slot, write, wanted) for slot, write in zip(slots, writes, strict=True)]
        return np.concatenate(logits)

    def copy_slot(self, source: int, target: int, positions: int) -> None:
        assert self.copies_slots
        assert (self.cache[source, :positions] >= 0).all(), f"slot {source} does not hold {positions} tokens"
        self.copies.append((source, target, positions))
        kept = self.cache[source, :positions].copy()
        self.cache[target] = -1
        self.cache[target, :positions] = kept

    def close(self) -> None:
        self.close_calls += 1

    def _slots(self, inputs: dict[str, np.ndarray], batch: int) -> list[int]:
        config = self.program.table.config
        if not config.continuous_batching:
            assert "batch_index" not in inputs
            return list(range(batch))
        slots = [int(slot) for slot in inputs["batch_index"][:, 0]]
        assert len(set(slots)) == len(slots), f"duplicate slots {slots}"
        assert all(0 <= slot < config.full_batch_size for slot in slots), f"slots out of range {slots}"
        return slots

    def _rows(self, inputs: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        return list(zip(inputs["input_ids"], inputs["position_ids"], strict=True))

    def _check_row(self, slot: int, ids: np.ndarray, positions: np.ndarray) -> list[tuple[int, int]]:
        count = int((positions >= 0).sum())
        assert (positions[count:] == -1).all(), f"padding is not on the right: {positions}"
        assert (ids[count:] == 0).all(), "a padding column has a token"
        if count == 0:
            return []
        start = int(positions[0])
        assert (positions[:count] == np.arange(start, start + count)).all(), f"positions jump: {positions}"
        assert start + count <= self.program.ctx_len, f"position beyond the context: {positions}"
        cached = int((self.cache[slot] >= 0).sum())
        assert start <= cached, f"slot {slot} holds {cached} tokens, the row starts at {start}"
        assert ((ids[:count] >= 0) & (ids[:count] < (self.program.vocab_size or VOCAB))).all()
        return [(start + i, int(ids[i])) for i in range(count)]

    def _write(self, slot: int, write: list[tuple[int, int]], wanted: int) -> np.ndarray:
        """Logits [written, VOCAB]: one row per token written, or the last one's alone."""
        count = min(len(write), wanted)
        logits = np.zeros((count, self.program.vocab_size or VOCAB), np.float32)
        if write:
            self.cache[slot, write[0][0] :] = -1
        for column, (position, token) in enumerate(write):
            self.cache[slot, position] = token
            logits[column if wanted > 1 else 0] = self.program.logits_after(self.cache[slot, : position + 1].tolist())
        return logits


@dataclass
class MockProgram:
    table: SpecializationTable
    eos_token_ids: tuple[int, ...] = ()
    step_ms: dict[Any, float] | None = None
    text_tokenizer: Any = None
    vocab_size: int | None = VOCAB
    copies_slots: bool = True
    logits_after: Callable[[list[int]], np.ndarray] = near_next_token
    sessions: list[MockSession] = field(default_factory=list)
    threads: int | None = None

    @property
    def ctx_len(self) -> int:
        return self.table.config.ctx_len

    @property
    def max_prompt_len(self) -> int:
        return self.table.max_prompt_len

    @property
    def full_batch_size(self) -> int:
        return self.table.config.full_batch_size

    @property
    def prefill_seq_len(self) -> int:
        return self.table.config.prefill_seq_len

    def tokenizer(self) -> Any:
        if self.text_tokenizer is None:
            raise ProgramError("the program has no tokenizer; give token ids")
        return self.text_tokenizer

    def session(self, threads: int | None = None) -> MockSession:
        self.threads = threads
        self.sessions.append(MockSession(self))
        return self.sessions[-1]

    @property
    def last_session(self) -> MockSession:
        return self.sessions[-1]


def mock_program(
    batch_size: int | list[int] = (1, 2, 4),  # type: ignore[assignment]
    *,
    full_batch_size: int | None = 4,
    ctx_len: int = 64,
    prefill_seq_len: int = 8,
    continuous_batching: bool = True,
    table_options: dict[str, Any] | None = None,
    **options: Any,
) -> MockProgram:
    table = build_table(
        batch_size=list(batch_size) if isinstance(batch_size, tuple) else batch_size,
        continuous_batching=continuous_batching,
        full_batch_size=full_batch_size if continuous_batching else None,
        ctx_len=ctx_len,
        prefill_seq_len=prefill_seq_len,
        **(table_options or {}),
    )
    return MockProgram(table, **options)
