"""Biases and penalties: the formulas, over the tokens that the sequence has."""

import numpy as np
import pytest
from engine_harness import Harness
from engine_mock import VOCAB, mock_program, near_next_token
from hypothesis import given
from hypothesis import strategies as st

from polybatch.engine.adjustments import Adjustments, TokenCounts
from polybatch.engine.sampling_params import SamplingParams

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 0.5], np.float32)


def adjusted(prompt, generated, eos=(), **params):
    adjustments = Adjustments(SamplingParams(**params), eos, prompt)
    for token in generated:
        adjustments.accept(token)
    before = LOGITS.copy()
    result = adjustments.apply(LOGITS)
    np.testing.assert_array_equal(LOGITS, before)
    return result.tolist()


def test_frequency_and_presence_penalties_count_the_answer_alone():
    assert adjusted([1, 1, 2], [0, 0, 3], frequency_penalty=0.5) == [0.0, 3.0, 2.0, -1.5, 0.5]
    assert adjusted([1, 1, 2], [0, 0, 3], presence_penalty=0.5) == [0.5, 3.0, 2.0, -1.5, 0.5]
    assert adjusted([1], [0, 0, 3], presence_penalty=-1, frequency_penalty=1.0) == [0.0, 3.0, 2.0, -1.0, 0.5]


def test_the_repetition_penalty_counts_the_prompt_too_and_each_token_once():
    assert adjusted([1, 3], [0, 0], repetition_penalty=2.0) == [0.5, 1.5, 2.0, -2.0, 0.5]


def test_the_repetition_penalty_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    prompt, generated = [3, 3, 7, 12], [9, 7, 30]
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + generated]), torch.tensor(logits[None]))
    adjustments = Adjustments(SamplingParams(repetition_penalty=1.3), (), prompt)
    for token in generated:
        adjustments.accept(token)
    np.testing.assert_allclose(adjustments.apply(logits), theirs[0].numpy(), rtol=1e-6)


def test_biases_are_added():
    assert adjusted([1], [], logit_bias={0: 100, 3: -0.5}) == [101.0, 3.0, 2.0, -1.5, 0.5]


def test_eos_is_put_off_for_min_tokens():
    assert adjusted([1], [0], eos=[1, 2], min_tokens=2) == [1.0, -np.inf, -np.inf, -1.0, 0.5]
    assert adjusted([1], [0, 0], eos=[1, 2], min_tokens=2) == LOGITS.tolist()


def test_without_any_of_them_the_logits_are_passed_on_as_they_are():
    assert Adjustments(SamplingParams(temperature=0.5, top_k=3)).apply(LOGITS) is LOGITS


@given(st.lists(st.integers(0, 30), max_size=40), st.lists(st.integers(0, 30), max_size=60))
def test_counts_are_those_of_counting_again(prompt, generated):
    counts = TokenCounts(prompt)
    for token in generated:
        counts.add(token)
    assert sorted(counts.seen.tolist()) == sorted(set(prompt + generated))
    ids, times = counts.generated
    assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == {t: generated.count(t) for t in set(generated)}


def test_a_bias_reaches_the_answer():
    harness = Harness(mock_program())
    harness.add([1], max_tokens=5, logit_bias={9: 100})
    harness.add([1], max_tokens=5, logit_bias={9: 100}, frequency_penalty=2.0)
    first, second = harness.finish()
    assert first.token_ids == (9,) * 5
    expected = [1]
    for _ in range(5):
        logits = near_next_token(expected)
        logits[9] += 100
        for token in expected[1:]:
            logits[token] -= 2.0
        expected.append(int(logits.argmax()))
    assert second.token_ids == tuple(expected[1:])
    assert VOCAB > 9
