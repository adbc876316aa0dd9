"""Log-probabilities of generated tokens: of the model's own logits, whatever chose the token."""

import numpy as np
import pytest
from engine_harness import Harness
from engine_mock import mock_program, near_next_token, next_token
from scripted import Scripted
from speculation.mock_scripts import wrong_at

from polybatch.engine.logprobs import token_logprobs
from polybatch.engine.request import Delta


def log_softmax(logits):
    exact = logits.astype(np.float64)
    return exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_they_are_the_log_softmax_and_the_top_is_in_order(scale):
    logits = (np.random.default_rng(1).normal(size=5000) * scale).astype(np.float32)
    expected = log_softmax(logits)
    found = token_logprobs(logits, 17, 20)
    assert found.token_id == 17
    assert found.logprob == pytest.approx(expected[17], abs=1e-4)
    assert [token for token, _ in found.top] == np.argsort(-expected)[:20].tolist()
    np.testing.assert_allclose([logprob for _, logprob in found.top], np.sort(expected)[::-1][:20], atol=1e-4)


def test_equals_come_in_the_order_of_their_ids():
    logits = np.array([0.0, 2.0, 1.0, 2.0, 1.0, 1.0], np.float32)
    assert [token for token, _ in token_logprobs(logits, 0, 4).top] == [1, 3, 2, 4]
    assert len(token_logprobs(logits, 0, 20).top) == 6
    assert token_logprobs(logits, 0, 0).top == ()


def run(speculation=None, **params):
    table_options = {"num_speculative_tokens": [0, 3]} if speculation else None
    harness = Harness(mock_program([1, 2], table_options=table_options), speculation)
    harness.add([5], max_tokens=9, **params)
    harness.add([6], max_tokens=9)
    first, other = harness.finish()
    assert other.logprobs is None
    deltas = [event for event in harness.events[0] if isinstance(event, Delta)]
    return deltas, first


@pytest.mark.parametrize("speculation", [None, Scripted(wrong_at(2))])
def test_every_token_of_a_delta_has_its_own(speculation):
    deltas, completion = run(speculation, logprobs=3)
    assert [len(delta.logprobs) for delta in deltas] == [len(delta.token_ids) for delta in deltas]
    assert sum((delta.logprobs for delta in deltas), ()) == completion.logprobs
    tokens = [5]
    for item, token in zip(completion.logprobs, completion.token_ids, strict=True):
        assert item.token_id == token == item.top[0][0] == next_token(tokens)
        assert item.logprob == pytest.approx(log_softmax(near_next_token(tokens))[token], abs=1e-5)
        assert len(item.top) == 3
        tokens.append(token)


def test_no_sampling_parameter_changes_them():
    _, completion = run(logprobs=1, logit_bias={9: 100}, frequency_penalty=1.0, temperature=0.3, seed=1)
    tokens = [5]
    for item in completion.logprobs:
        assert item.token_id == 9
        assert item.logprob == pytest.approx(log_softmax(near_next_token(tokens))[9], abs=1e-5)
        tokens.append(9)


def test_an_aborted_request_has_those_of_its_tokens():
    harness = Harness(mock_program())
    harness.add([5], max_tokens=9, logprobs=0)
    harness.step(3)
    harness.core.abort(0)
    delta, completion = harness.events[0][-2:]
    assert (delta.logprobs, len(completion.logprobs)) == ((), len(completion.token_ids))
