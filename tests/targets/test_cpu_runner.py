"""What a cpu session costs: nothing for untouched slots, nothing more for the next session."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from steps import prefill

from polybatch import AutoModelForCausalLM, Program

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


def test_a_new_session_leaves_no_thread_waiting_for_the_thread_that_opened_it(program: Program) -> None:
    """With more threads than processors libgomp lets those of a running engine sleep between parallel regions."""

    def openmp_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()

    before_threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        program.session().close()
        before = openmp_threads()
        torch.ones(1 << 20).exp()
        assert openmp_threads() == before + 3
        program.session().close()
        assert openmp_threads() == before
    finally:
        torch.set_num_threads(before_threads)
