"""compile() as the README writes it, then real continuous batching, against transformers' own generate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import SUPPORTED, VOCAB, make_model

from polybatch import AutoModelForCausalLM, Completion, Engine, Program, SamplingParams

PROMPTS = [np.random.default_rng(seed).integers(0, VOCAB, 3 + 5 * seed % 23).tolist() for seed in range(9)]


@pytest.fixture(scope="module", params=["eager", "cpu"])
def program(request: pytest.FixtureRequest, llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return AutoModelForCausalLM.from_pretrained(llama_dir).compile(
        tmp_path_factory.mktemp("end-to-end") / "out.poly",
        batch_size=[1, 2, 4],
        continuous_batching=True,
        full_batch_size=4,
        ctx_len=64,
        prefill_seq_len=8,
        target=request.param,
    )


def _generate(prompt: list[int], tokens: int) -> list[int]:
    model = make_model(SUPPORTED["llama"])
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return out[0, len(prompt) :].tolist()


def test_more_requests_than_slots_each_get_the_answer_of_generate(program: Program) -> None:
    with Engine(program) as engine:
        answers = engine.generate(PROMPTS, SamplingParams(max_tokens=12, ignore_eos=True))
    assert [list(answer.token_ids) for answer in answers] == [_generate(prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("program", ["cpu"], indirect=True)
def test_three_live_requests_run_at_four_two_at_two_and_one_at_one(program: Program) -> None:
    """One prompt of one chunk each; answers of 4, 8 and 12 tokens."""
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (4, 8, 12)]
    with Engine(program) as engine:
        engine.generate([[1, 2, 3], [4, 5, 6], [7, 8, 9]], params)
        stats = engine.stats.specializations
    rows = {name: (spec.live_rows / spec.steps, spec.padding_rows) for name, spec in stats.items()}
    assert rows["decode b=4"] == (3.0, stats["decode b=4"].steps)
    assert rows["decode b=2"] == (2.0, 0)
    assert rows["decode b=1"] == (1.0, 0)


def test_a_seeded_request_does_not_depend_on_its_neighbours(program: Program) -> None:
    seeded = SamplingParams(max_tokens=10, temperature=0.8, top_p=0.95, seed=42, ignore_eos=True)
    unseeded = SamplingParams(max_tokens=10, temperature=1.2, ignore_eos=True)

    def run(neighbours: int) -> Completion:
        with Engine(program) as engine:
            prompts = [PROMPTS[5], *PROMPTS[:neighbours]]
            return engine.generate(prompts, [seeded, *[unseeded] * neighbours])[0]

    assert len({run(neighbours).token_ids for neighbours in (0, 1, 3, 7, 0)}) == 1


def test_a_shared_prefix_is_reused_and_changes_no_answer(program: Program) -> None:
    """Conversations that go on, begin alike, and come together; on the cpu their logits are those of no reuse."""
    system = list(range(1, 22))
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3)

    def run(prefix_cache: bool) -> tuple[list[Completion], int]:
        with Engine(program, prefix_cache=prefix_cache) as engine:
            first = engine.generate([[*system, 30 + i] for i in range(6)], params)
            turns = [[*answer.prompt_token_ids, *answer.token_ids, 7] for answer in first]
            second = engine.generate(turns, params)
            return [*first, *second], engine.stats.reused_tokens

    (ours, reused), (expected, none) = run(True), run(False)
    assert none == 0
    assert reused == sum(answer.reused_tokens for answer in ours) > 6 * len(system)
    assert [answer.token_ids for answer in ours] == [answer.token_ids for answer in expected]
    if program.manifest.batch_invariant:
        assert [answer.logprobs for answer in ours] == [answer.logprobs for answer in expected]
