"""Compute context lengths end to end: the same answers, from the smallest attention length that reads enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from architectures import VOCAB
from steps import empty_step, prefill

from polybatch import AutoModelForCausalLM, Engine, Program, PromptLookup, SamplingParams, StepInputError

SHAPES = {"batch_size": 2, "continuous_batching": True, "full_batch_size": 2, "ctx_len": 64, "prefill_seq_len": 8}
LENGTHS = {"comp_ctx_lengths_prefill": [16, 48], "comp_ctx_lengths_decode": [32, 64]}
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], np.random.default_rng(0).integers(0, VOCAB, 40).tolist(), [7] * 20]
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module", params=["eager", "cpu"])
def program(request: pytest.FixtureRequest, llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return _compile(llama_dir, tmp_path_factory.mktemp("ccl") / "ccl.poly", request.param, **LENGTHS)


@pytest.fixture(scope="module")
def expected(llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, ...]]:
    """The answers without any such lengths."""
    program = _compile(llama_dir, tmp_path_factory.mktemp("whole") / "whole.poly", "eager")
    with Engine(program) as engine:
        return [answer.token_ids for answer in engine.generate(PROMPTS, PARAMS)]


def _compile(model: Path, path: Path, target: str, **lengths: list[int]) -> Program:
    loaded = AutoModelForCausalLM.from_pretrained(model)
    with pytest.warns(UserWarning, match="lacks 0"):
        return loaded.compile(path, target=target, num_speculative_tokens=3, profile=False, **SHAPES, **lengths)


def test_the_engine_gives_the_same_answers_at_every_length(program: Program, expected: list[tuple[int, ...]]) -> None:
    for speculation in (None, PromptLookup()):
        with Engine(program, speculation) as engine:
            assert [answer.token_ids for answer in engine.generate(PROMPTS, PARAMS)] == expected
            assert engine.stats.specializations.keys() == {
                "prefill b=1 s=8 CCL=16",
                "prefill b=1 s=8 CCL=48",
                "decode b=2 K=3 CCL=32",
                "decode b=2 K=3 CCL=64",
            }


@pytest.mark.parametrize(
    ("start", "live", "length"), [(28, 4, 32), (29, 4, 64), (28, 1, 32), (29, 1, 64), (28, 2, 32), (63, 1, 64)]
)
def test_the_session_chooses_the_smallest_length_above_the_last_position_and_k(
    program: Program, start: int, live: int, length: int
) -> None:
    row = program.table.decode[-1]
    inputs = empty_step(row, program.table)
    del inputs["comp_ctx_lengths"]
    inputs["position_ids"][0, :live] = np.arange(start, start + live)
    with program.session() as session:
        session.run(inputs)
        assert session.last_specialization is not None
        assert session.last_specialization.comp_ctx_length == length
        assert program.table.choose_decode(1, 0, start).comp_ctx_length == length or live > 1


def test_a_length_that_is_passed_is_the_one_that_runs(program: Program) -> None:
    with program.session() as session:
        prefill(session, program.table, [1, 2, 3], 0)
        inputs = empty_step(program.table.decode[-1], program.table)
        inputs["position_ids"][0, 0] = 3
        long = session.run(inputs)["logits"][0, 0]
        assert session.last_specialization is not None
        assert session.last_specialization.comp_ctx_length == 64
        short = session.run({**inputs, "comp_ctx_lengths": np.zeros(32, np.int64)})["logits"][0, 0]
        assert session.last_specialization.comp_ctx_length == 32
        np.testing.assert_array_equal(short, long)
        inputs["position_ids"][0, 0] = 32
        with pytest.raises(StepInputError, match=r"position 32 is out of range.*comp_ctx_length=32"):
            session.run({**inputs, "comp_ctx_lengths": np.zeros(32, np.int64)})


def test_a_prompt_that_no_prefill_length_reads_is_refused_with_both_numbers(program: Program) -> None:
    assert program.max_prompt_len == 48
    with Engine(program) as engine:
        with pytest.raises(ValueError, match=r"49.*48"):
            engine.generate([[1] * 49], PARAMS)
        assert len(engine.generate([[1] * 48], SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4
