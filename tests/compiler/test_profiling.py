"""Step times: measured for the rows the budget allows, kept in the manifest, used by the engine's cover."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from polybatch import AutoModelForCausalLM, Program
from polybatch.compiler.profiling import profile_steps
from polybatch.specialization import build_table

TABLE = build_table(batch_size=[1, 2, 4], continuous_batching=True, full_batch_size=4, ctx_len=64, prefill_seq_len=16)


class _CountingSession:
    """Each step takes as many seconds of a made-up clock as it has tokens, times ``scale``."""

    def __init__(self, scale: float) -> None:
        self.now, self.scale, self.resets = 0.0, scale, 0

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        positions = inputs["position_ids"]
        assert positions.min() >= 0 and positions.max() < TABLE.config.ctx_len
        assert np.unique(inputs["batch_index"]).size == len(positions)
        self.now += self.scale * positions.size
        return {}

    def reset(self) -> None:
        self.resets += 1


def test_every_row_gets_its_median_and_the_session_is_left_empty() -> None:
    session = _CountingSession(scale=0.001)
    times = profile_steps(session, TABLE, seconds=1.0, clock=lambda: session.now)  # type: ignore[arg-type]
    assert {row.name: round(ms, 6) for row, ms in times.items()} == {
        "prefill b=1 s=16": 16.0,
        "decode b=1": 1.0,
        "decode b=2": 2.0,
        "decode b=4": 4.0,
    }
    assert session.resets == 1


def test_the_costliest_rows_go_without_when_the_budget_is_spent() -> None:
    session = _CountingSession(scale=0.5)
    times = profile_steps(session, TABLE, seconds=2.5, clock=lambda: session.now)  # type: ignore[arg-type]
    assert [row.name for row in times] == ["decode b=1"]


def test_a_compiled_program_carries_its_step_times(llama_dir: Path, tmp_path: Path) -> None:
    def times(**options: Any) -> Iterator[float | None]:
        model = AutoModelForCausalLM.from_pretrained(llama_dir)
        model.compile(tmp_path / "out.poly", target="eager", ctx_len=32, prefill_seq_len=8, **options)
        return (row.step_ms for row in Program.load(tmp_path / "out.poly").manifest.specializations)

    first = next(ms for ms in times() if ms is not None)
    assert first > 0
    assert all(ms is None for ms in times(profile=False))
