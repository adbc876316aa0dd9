"""SmolLM2-135M-Instruct: the program's answers against transformers' own, on real weights and real prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from real_model.smollm2 import PROMPTS, load_model
from steps import prefill

from polybatch import Engine, Program, SamplingParams

pytestmark = pytest.mark.real_model

MAX_TOKENS = 64


def _compile(dtype: str, folder: Path) -> Program:
    return load_model(dtype).compile(
        folder / f"{dtype}.poly", batch_size=[1, 2, 4], continuous_batching=True, full_batch_size=4
    )


def test_greedy_answers_are_those_of_transformers_generate(tmp_path: Path) -> None:
    program = _compile("float32", tmp_path)
    with Engine(program) as engine:
        answers = engine.generate(list(PROMPTS), SamplingParams(max_tokens=MAX_TOKENS))
    model = load_model("float32")._loaded.model
    tokenizer = program.tokenizer()
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            expected = model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)[0]
        assert list(answer.prompt_token_ids) == inputs["input_ids"][0].tolist()
        assert list(answer.token_ids) == expected[inputs["input_ids"].shape[1] :].tolist(), prompt


def test_bfloat16_is_no_further_from_float32_than_transformers_bfloat16(tmp_path: Path) -> None:
    program = _compile("bfloat16", tmp_path)
    exact, rounded = load_model("float32")._loaded.model, load_model("bfloat16")._loaded.model
    ours: list[float] = []
    theirs: list[float] = []
    with program.session() as session, torch.no_grad():
        for prompt in PROMPTS:
            tokens = program.tokenizer().encode(prompt)
            ids = torch.tensor([tokens])
            reference = exact(input_ids=ids).logits[0, -1].numpy()
            bf16 = rounded(input_ids=ids).logits[0, -1].float().numpy()
            session.reset()
            logits = prefill(session, program.table, tokens, slot=0)
            ours.append(float(np.abs(logits - bf16).max()))
            theirs.append(float(np.abs(bf16 - reference).max()))
    assert max(ours) <= max(theirs), (max(ours), max(theirs))
