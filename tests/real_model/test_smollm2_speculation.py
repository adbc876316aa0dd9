"""SmolLM2-135M-Instruct: speculation gives the tokens of decoding one at a time, whoever proposes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from real_model.smollm2 import MORE_PROMPTS, PROMPTS, load_model
from scripted import Script, Scripted

from polybatch import DraftModel, Engine, Program, PromptLookup, SamplingParams

pytestmark = pytest.mark.real_model

MAX_TOKENS = 128
GREEDY = SamplingParams(max_tokens=MAX_TOKENS)
SEEDED = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=17)
ALL_PROMPTS = (*PROMPTS, *MORE_PROMPTS)
SHAPES = {"batch_size": [1, 2, 4, 8], "continuous_batching": True, "full_batch_size": 8, "ctx_len": 512}
Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("smollm2")
    return load_model("bfloat16").compile(folder / "bf16.poly", num_speculative_tokens=[0, 3, 7], **SHAPES)


@pytest.fixture(scope="module")
def short_draft(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The first four layers of the model: a draft that is often wrong."""
    wrapped = load_model("bfloat16")
    model = wrapped._loaded.model
    del model.model.layers[4:]
    model.config.num_hidden_layers = len(model.model.layers)
    shapes = {**SHAPES, "batch_size": [1, 4], "full_batch_size": 4}
    return wrapped.compile(tmp_path_factory.mktemp("draft") / "draft.poly", **shapes)


def answers(program: Program, params: SamplingParams, *args: object, **options: object) -> tuple[list[Tokens], Engine]:
    with Engine(program, *args, **options) as engine:
        return [answer.token_ids for answer in engine.generate(list(ALL_PROMPTS), params)], engine.stats


@pytest.fixture(scope="module")
def expected(program: Program) -> list[Tokens]:
    assert len(ALL_PROMPTS) == 50
    return answers(program, GREEDY)[0]


@pytest.mark.parametrize("fixed_k", [None, 3, 7])
def test_prompt_lookup(program: Program, expected: list[Tokens], fixed_k: int | None) -> None:
    got, stats = answers(program, GREEDY, PromptLookup(), fixed_k=fixed_k)
    assert got == expected
    assert stats.speculation.accepted > 500


@pytest.mark.parametrize("fixed_k", [None, 7])
def test_a_draft_model_that_is_often_wrong(
    program: Program, short_draft: Program, expected: list[Tokens], fixed_k: int | None
) -> None:
    got, stats = answers(program, GREEDY, DraftModel(short_draft), fixed_k=fixed_k)
    assert got == expected
    assert stats.speculation.drafted > 0
    assert fixed_k is None or 0 < stats.speculation.acceptance < 0.9


def test_the_model_as_its_own_draft(program: Program, expected: list[Tokens]) -> None:
    """Every draft is what the program itself would say, bit by bit, unless EOS ends the answer before."""
    got, stats = answers(program, GREEDY, DraftModel(program), fixed_k=7)
    assert got == expected
    assert stats.speculation.acceptance > 0.95


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_drafts_that_are_right_as_often_as_this(program: Program, expected: list[Tokens], right: float) -> None:
    script = _known(program, expected, right)
    assert answers(program, GREEDY, Scripted(script), fixed_k=7)[0] == expected
    assert answers(program, GREEDY, Scripted(script))[0] == expected


def test_a_seed_gives_the_same_tokens(program: Program, short_draft: Program) -> None:
    plain = answers(program, SEEDED)[0]
    assert answers(program, SEEDED, PromptLookup())[0] == plain
    assert answers(program, SEEDED, DraftModel(short_draft), fixed_k=3)[0] == plain


def _known(program: Program, expected: Sequence[Tokens], right: float) -> Script:
    rng = np.random.default_rng(0)
    prompts = [program.tokenizer().encode(prompt) for prompt in ALL_PROMPTS]

    def script(step: int, tokens: list[int], limit: int) -> list[int]:
        which = max((i for i, p in enumerate(prompts) if tokens[: len(p)] == p), key=lambda i: len(prompts[i]))
        known = expected[which][len(tokens) - len(prompts[which]) :][:limit]
        return [token if rng.random() < right else (token + 1) % 49152 for token in known]

    return script
