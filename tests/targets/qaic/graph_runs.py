"""Runs the same random steps through an exported graph and through the eager target."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from architectures import SUPPORTED, VOCAB, make_model

from polybatch.kv_layout import CacheSpec
from polybatch.models import attention, experts
from polybatch.models.guard import check_supported
from polybatch.session import InferenceSession
from polybatch.specialization import Specialization, SpecializationTable
from polybatch.targets.eager.target import EagerRunner, _layout
from polybatch.targets.qaic.export import export_onnx
from polybatch.targets.qaic.onnx_runner import OnnxRunner

Step = dict[str, np.ndarray]


def open_both(name: str, table: SpecializationTable) -> tuple[InferenceSession, InferenceSession]:
    """(exported graph through ONNX Runtime, eager target) of a tiny model of that architecture."""
    model, reference = make_model(SUPPORTED[name]), make_model(SUPPORTED[name])
    cache = CacheSpec(check_supported(model), "float32", table.config.ctx_len, table.config.full_batch_size)
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(model, cache.layers, table.config, Path(folder), plain=False)
        exported = InferenceSession(table, OnnxRunner(Path(folder), cache, 2), VOCAB)
    reference.set_attn_implementation(attention.IMPLEMENTATION)
    reference.set_experts_implementation(experts.IMPLEMENTATION)
    return exported, InferenceSession(table, EagerRunner(reference, _layout(cache), cache.slots, 2), VOCAB)


class RandomSteps:
    """Steps in which any slots take part, some rows are idle, and rows are filled in part; as an engine could."""

    def __init__(self, table: SpecializationTable, seed: int = 0) -> None:
        self._table = table
        self._rng = np.random.default_rng(seed)
        self._lengths = [0] * table.config.full_batch_size

    def step(self, row: Specialization) -> Step:
        """Inputs of the row's shapes; a sequence that is full begins again."""
        rng, continuous = self._rng, self._table.config.continuous_batching
        slots = np.arange(row.batch_size) if not continuous else rng.permutation(len(self._lengths))[: row.batch_size]
        shape = (row.batch_size, row.seq_len)
        positions = np.full(shape, -1)
        for index, slot in enumerate(slots.tolist()):
            if rng.random() < 0.2:
                continue
            count = int(rng.integers(1, row.seq_len + 1))
            if row.phase == "decode" and self._lengths[slot] == 0 and rng.random() < 0.9:
                continue
            if self._lengths[slot] + count > row.readable_positions:
                self._lengths[slot] = 0
            start = self._lengths[slot]
            positions[index, :count] = np.arange(start, start + count)
            self._lengths[slot] += int(rng.integers(1, count + 1))  # the rest is written over, as rejected drafts are
        inputs: dict[str, Any] = {
            "input_ids": rng.integers(0, VOCAB, shape),
            "position_ids": positions,
        }
        shapes = row.input_shapes(continuous)
        inputs |= {name: np.zeros(shapes[name], np.int64) for name in shapes if name not in inputs}
        if continuous:
            inputs["batch_index"] = slots[:, None].astype(np.int64)
        return inputs


def assert_equal_steps(
    exported: InferenceSession, eager: InferenceSession, table: SpecializationTable, rounds: int = 4
) -> None:
    """Every row of the table ``rounds`` times, in random order; logits of live rows within 1e-3, all of them finite."""
    steps = RandomSteps(table)
    order = np.random.default_rng(1)
    rows = [row for row in table.prefill for _ in range(6)]
    for _ in range(rounds):
        rows += [table.rows[index] for index in order.permutation(len(table.rows))]
    compared = 0
    for row in rows:
        inputs = steps.step(row)
        got, expected = exported.run(inputs)["logits"], eager.run(inputs)["logits"]
        assert np.isfinite(got).all()
        live = _live(inputs["position_ids"], row)
        np.testing.assert_allclose(got[live], expected[live], atol=1e-3, rtol=0)
        compared += int(live.sum())
    assert compared > len(rows)


def _live(positions: np.ndarray, row: Specialization) -> np.ndarray:
    """[b, n]: which logits belong to a live token."""
    last = positions.argmax(axis=1)
    start = np.where(last < row.logits_rows, 0, last + 1 - row.logits_rows)
    wanted = start[:, None] + np.arange(row.logits_rows)
    return np.take_along_axis(positions, wanted, 1) >= 0
