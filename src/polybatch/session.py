"""InferenceSession: validated steps over one retained KV cache, the same for every target."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polybatch.errors import NoMatchingSpecializationError, StepInputError
from polybatch.specialization import Specialization, SpecializationTable
from polybatch.targets.base import FixedShapeRunner, LiveRunner, StepArrays
from polybatch.targets.live_logits import live_logits

if TYPE_CHECKING:
    from polybatch.program import Program
    from polybatch.targets.base import SlotKV, StepRunner

_OPTIONAL_INPUTS = frozenset({"comp_ctx_lengths", "num_logits_to_keep"})

_THREADS_PER_CORE = 4
"""More than this many threads per core only wait for each other."""

Arrays = dict[str, NDArray[Any]]
_InputKey = tuple[tuple[str, tuple[int, ...], np.dtype[Any]] | None, ...]
"""Name, shape and dtype of each input of a step; None for what is not just an array."""


def open_session(program: Program, threads: int | None = None) -> InferenceSession:
    """A session of ``program`` with an empty cache; ProgramError when its files cannot be used."""
    import torch

    from polybatch.kv_layout import CacheSpec, LayerKV
    from polybatch.targets import get_target
    from polybatch.targets.base import DeviceTarget

    manifest = program.manifest
    target = get_target(manifest.target)
    if program.device_ids is not None:
        if not isinstance(target, DeviceTarget):
            raise ValueError(f"a program of target {manifest.target} runs on no devices; open it without device ids")
        target = target.on_devices(program.device_ids)
    layers = tuple(LayerKV(kv.kv_heads, kv.key_dim, kv.value_dim) for kv in manifest.kv_cache.layers)
    count = torch.get_num_threads() if threads is None else _thread_count(threads)
    cache = CacheSpec(layers, manifest.model.dtype, program.ctx_len, program.full_batch_size)
    runner = target.open(program.path, cache, count)
    return InferenceSession(program.table, runner, manifest.model.vocab_size)


def _thread_count(threads: int) -> int:
    if isinstance(threads, bool) or not hasattr(threads, "__index__"):
        raise TypeError(f"threads must be an int, not {threads!r}")
    count = operator.index(threads)
    most = _THREADS_PER_CORE * (os.cpu_count() or 1)
    if not 1 <= count <= most:
        raise ValueError(f"threads must be from 1 to {most} on this machine, not {count}")
    return count


class InferenceSession:
    """Runs the steps of one program over one KV cache that it owns.

    ``run`` takes the inputs of a step by name and returns ``{"logits": float32 [b, n, vocab]}``:

    * ``input_ids`` int64 [b, s]; ``position_ids`` int64 [b, s], -1 in padding columns and rows
    * ``batch_index`` int64 [b, 1], the slot of each row (continuous batching only)
    * ``comp_ctx_lengths`` [L] and ``num_logits_to_keep`` [n, 1]: only the length counts; both may be left out

    n is K+1 for a speculative decode row; otherwise 1, the last live token. Padding rows get meaningless, finite
    logits. Every check is made before anything runs, so after an error the cache is as before. One step runs at a
    time; calls from several threads wait for each other.
    """

    def __init__(self, table: SpecializationTable, runner: StepRunner, vocab_size: int) -> None:
        self._table = table
        self._runner: StepRunner | None = runner
        self._select = runner.select if isinstance(runner, FixedShapeRunner) else None
        self._run_live = runner.run_live if isinstance(runner, LiveRunner) else None
        self._skips_padding = runner.skips_padding
        self._copies_slots = runner.copies_slots
        self._vocab_size = vocab_size
        continuous = table.config.continuous_batching
        self._allowed_shapes = tuple(row.input_shapes(continuous) for row in table.rows)
        self._input_names = frozenset().union(*self._allowed_shapes)
        self._rows_by_inputs: dict[_InputKey, Specialization] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self.last_specialization: Specialization | None = None

    @property
    def skips_padding(self) -> bool:
        """Whether padding is left out of steps, as on target ``cpu``: a decode step costs what its live tokens cost."""
        return self._skips_padding

    @property
    def copies_slots(self) -> bool:
        """Whether the target can copy positions from slot to slot."""
        return self._copies_slots

    @property
    def allowed_shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """The input shapes of every row of the table, by input name."""
        return self._allowed_shapes

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """One step.

        Raises :class:`NoMatchingSpecializationError` when no row of the table has these shapes, and
        :class:`StepInputError` (both are ValueErrors) for a wrong dtype, slot, position or token id.
        """
        row, arrays = self._checked(inputs)
        with self._lock:
            logits = self._runner_for(row).run(*arrays)
            self.last_specialization = row
        return {"logits": logits}

    def run_live(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """``run``, and of its logits only those of live tokens: float32 [live, vocab], row after row.

        Of a step with padding this takes less time where ``skips_padding``: nothing is put in its place.
        """
        row, arrays = self._checked(inputs)
        with self._lock:
            runner = self._runner_for(row)
            if self._run_live is not None:
                logits = self._run_live(*arrays)
            else:
                _, positions, _, wanted = arrays
                logits = live_logits(runner.run(*arrays), positions, wanted)
            self.last_specialization = row
        return logits

    def reset(self) -> None:
        """Forget every sequence."""
        with self._lock:
            self._open_runner().reset()

    def read_slot(self, slot: int) -> SlotKV:
        """A copy of one slot's keys and values, for tests and debugging; IndexError for a slot that is not there."""
        self._check_slot(slot)
        with self._lock:
            return self._open_runner().read_slot(slot)

    def copy_slot(self, source: int, target: int, positions: int) -> None:
        """Make the first ``positions`` positions of slot ``target`` those of ``source``; what follows means nothing.

        Raises IndexError for a slot that is not there, ValueError for positions that are not, and RuntimeError on a
        target that cannot do it (``copies_slots``).
        """
        self._check_slot(source)
        self._check_slot(target)
        if not 0 <= positions <= self._table.config.ctx_len:
            raise ValueError(f"{positions} positions are out of range; a slot has {self._table.config.ctx_len}")
        with self._lock:
            self._open_runner().copy_slot(source, target, positions)

    def close(self) -> None:
        """Release the cache; safe to call twice."""
        with self._lock:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._table.config.full_batch_size:
            raise IndexError(f"slot {slot} is out of range; the program has {self._table.config.full_batch_size} slots")

    def _checked(self, inputs: Mapping[str, NDArray[Any]]) -> tuple[Specialization, StepArrays]:
        """The specialization of a step, and what its runner takes."""
        row = self._row_of(inputs)
        positions = inputs["position_ids"]
        padded = self._check_positions(positions, row)
        slots = self._slots(inputs, row)
        ids = self._token_ids(inputs["input_ids"], positions, padded)
        return row, (ids, positions, slots, _wanted_columns(positions, row.logits_rows))

    def _runner_for(self, row: Specialization) -> StepRunner:
        """The runner, about to run ``row``."""
        runner = self._open_runner()
        if self._select is not None:
            self._select(row)
        return runner

    def _open_runner(self) -> StepRunner:
        if self._runner is None:
            raise RuntimeError("this session has been closed; open another with program.session()")
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this session belongs to process {self._process}; open one in each process after the fork"
            )
        return self._runner

    def _row_of(self, inputs: Mapping[str, NDArray[Any]]) -> Specialization:
        """The row that these inputs match. What has once been checked and found is looked up."""
        key = tuple(
            (name, array.shape, array.dtype) if type(array) is np.ndarray else None for name, array in inputs.items()
        )
        row = self._rows_by_inputs.get(key)
        if row is None:
            self._check_arrays(inputs)
            row, by_shapes = self._match(inputs)
            if by_shapes and None not in key:
                self._rows_by_inputs[key] = row
        return row

    def _check_arrays(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        known = self._input_names
        unknown = sorted(inputs.keys() - known)
        if unknown:
            raise StepInputError(f"unknown inputs {', '.join(unknown)}; this program takes {', '.join(sorted(known))}")
        missing = sorted(known - inputs.keys() - _OPTIONAL_INPUTS)
        if missing:
            raise StepInputError(f"missing inputs {', '.join(missing)}; pass them as int64 arrays")
        for name, array in inputs.items():
            if not isinstance(array, np.ndarray):
                raise StepInputError(f"{name} must be a numpy array, not {type(array).__name__}")
            if array.dtype != np.int64 and name not in _OPTIONAL_INPUTS:
                raise StepInputError(f"{name} must be int64, not {array.dtype}; convert it with .astype(np.int64)")

    def _match(self, inputs: Mapping[str, NDArray[Any]]) -> tuple[Specialization, bool]:
        """The row, and whether the shapes alone say so."""
        shapes = {name: array.shape for name, array in inputs.items()}
        candidates = self._table.candidates(shapes)
        if len(candidates) == 1:
            return candidates[0], True
        readable = self._smallest_readable(candidates, inputs["position_ids"])
        if readable is not None:
            return readable, False
        allowed = "; ".join(
            f"{row.name}: {shape}" for row, shape in zip(self._table.rows, self.allowed_shapes, strict=True)
        )
        raise NoMatchingSpecializationError(
            f"no specialization has the shapes {shapes}; compiled: {allowed}. "
            "Pad the inputs to one of these or recompile with the shape that is missing"
        )

    def _smallest_readable(
        self, candidates: tuple[Specialization, ...], positions: NDArray[Any]
    ) -> Specialization | None:
        """With ``comp_ctx_lengths`` left out: the smallest CCL above the largest position + K (rule 7)."""
        if not candidates or len({(row.phase, row.num_logits_to_keep) for row in candidates}) > 1:
            return None
        # Of rows that are all filled in part the rest counts too, as where the table chooses (choose_decode).
        decoding = candidates[0].phase == "decode"
        unfilled = int((positions < 0).sum(axis=1).min()) if decoding and positions.max() >= 0 else 0
        largest = min(int(positions.max()) + unfilled, candidates[0].ctx_len - 1)
        fitting = [row for row in candidates if row.readable_positions > largest]
        return min(
            fitting or candidates, key=lambda row: row.readable_positions if fitting else -row.readable_positions
        )

    def _check_positions(self, positions: NDArray[Any], row: Specialization) -> bool:
        """Whether any of them is padding."""
        limit = row.readable_positions
        smallest, largest = _span(positions)
        if smallest < -1 or largest >= limit:
            bad = smallest if smallest < -1 else largest
            what = f"ctx_len={limit}" if row.comp_ctx_length is None else f"comp_ctx_length={limit}"
            raise StepInputError(f"position {bad} is out of range for {row.name}: 0 to {limit - 1} ({what}), or -1")
        if positions.shape[1] > 1 and (smallest < 0 or (positions[:, 1:] <= positions[:, :-1]).any()):
            _check_order(positions)
        return smallest < 0

    def _slots(self, inputs: Mapping[str, NDArray[Any]], row: Specialization) -> NDArray[np.int64]:
        if "batch_index" not in inputs:
            return np.arange(row.batch_size, dtype=np.int64)[:, None]
        slots = inputs["batch_index"]
        total = self._table.config.full_batch_size
        named = slots.ravel().tolist()
        if min(named) < 0 or max(named) >= total:
            raise StepInputError(f"batch_index {named} is out of range; slots are 0 to {total - 1}")
        if len(set(named)) < len(named):
            raise StepInputError(f"batch_index {named} names a slot twice; give every row, padding rows too, its own")
        return slots

    def _token_ids(self, ids: NDArray[Any], positions: NDArray[Any], padded: bool) -> NDArray[np.int64]:
        """Token ids with 0 in padding columns, which may hold anything (-1 is common)."""
        safe: NDArray[np.int64] = np.where(positions >= 0, ids, 0) if padded else ids
        smallest, largest = _span(safe)
        if smallest < 0 or largest >= self._vocab_size:
            bad = smallest if smallest < 0 else largest
            raise StepInputError(f"token id {bad} is out of range; the vocabulary has {self._vocab_size} tokens")
        return safe


def _span(array: NDArray[Any]) -> tuple[int, int]:
    """The smallest and the largest element.

    By way of a list: a step leaves nothing of numpy in the processor's caches, and its reductions then take longer.
    """
    values = array.ravel().tolist()
    return min(values), max(values)


def _check_order(positions: NDArray[Any]) -> None:
    for index, live in enumerate(positions):
        live = live[live >= 0]
        if live.size > 1 and (np.diff(live) <= 0).any():
            raise StepInputError(f"the positions of row {index} do not increase: {live.tolist()}")


def _wanted_columns(positions: NDArray[Any], n: int) -> NDArray[np.int64]:
    """The columns [b, n] whose logits are returned: the n that end at each row's last live token.

    With fewer than n live tokens up to it, the first n columns (the rule of the accelerator's speculative graphs).
    """
    columns = _first_columns(positions.shape[0], n)
    if positions.shape[1] == n:
        return columns
    last = positions.argmax(axis=1)
    return columns + np.where(last < n, 0, last + 1 - n)[:, None]


@lru_cache
def _first_columns(rows: int, n: int) -> NDArray[np.int64]:
    """0 .. n-1 for each row; one array for all callers, not to be written to."""
    return np.tile(np.arange(n, dtype=np.int64), (rows, 1))
