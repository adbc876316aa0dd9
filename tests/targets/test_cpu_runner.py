"""What a cpu session costs: nothing for untouched slots, nothing more for the next session."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from steps import prefill

from polybatch import AutoModelForCausalLM, Program
from polybatch.targets.cpu.isa import available_isas

PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.fixture(scope="module")
def program(llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return AutoModelForCausalLM.from_pretrained(llama_dir).compile(
        tmp_path_factory.mktemp("runner") / "out.poly",
        batch_size=[1, 4096],
        continuous_batching=True,
        full_batch_size=4096,
        ctx_len=256,
        profile=False,
        prefill_seq_len=16,
        target="cpu",
    )


def test_untouched_slots_take_no_memory(program: Program) -> None:
    reserved = program.full_batch_size * program.manifest.kv_cache.bytes_per_slot
    program.session().close()  # the libraries and the weights
    before = _resident_bytes()
    with program.session() as session:
        assert _resident_bytes() - before < reserved / 50
        prefill(session, program.table, [1, 2, 3], slot=4095)
        session.reset()
        assert _resident_bytes() - before < reserved / 50


def test_sessions_that_were_closed_leave_no_mapping_behind(program: Program) -> None:
    def mappings() -> int:
        return sum("weights.safetensors" in line for line in Path("/proc/self/maps").read_text().splitlines())

    program.session().close()
    before = mappings()
    for _ in range(10):
        with program.session() as session:
            prefill(session, program.table, [1, 2, 3], slot=0)
    assert mappings() == before


def test_programs_of_every_instruction_set_run_side_by_side(llama_dir: Path, tmp_path: Path) -> None:
    """Each keeps its own kernels: its bits are those it gives alone."""
    model = AutoModelForCausalLM.from_pretrained(llama_dir)
    programs = [
        model.compile(tmp_path / f"{isa.name}.poly", ctx_len=64, prefill_seq_len=16, isa=isa.name)
        for isa in available_isas()
    ]
    tokens = list(range(1, 40))

    def logits(program: Program) -> np.ndarray:
        with program.session() as session:
            return prefill(session, program.table, tokens, slot=0)

    alone = [logits(program) for program in programs]
    sessions = [program.session() for program in programs]
    together = [prefill(session, program.table, tokens, 0) for session, program in zip(sessions, programs, strict=True)]
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    for session in sessions:
        session.close()
