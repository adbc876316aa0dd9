import numpy as np
import pytest

from polybatch.engine.sampler import Sampler
from polybatch.engine.sampling_params import SamplingParams

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0], np.float32)


def draws(params, count=200, logits=LOGITS):
    sampler = Sampler(params)
    return [sampler.sample(logits) for _ in range(count)]


def test_greedy_takes_the_lowest_id_of_equals():
    assert draws(SamplingParams(), 3) == [1, 1, 1]


def test_a_seed_replays_and_another_does_not():
    first = draws(SamplingParams(temperature=0.8, seed=42))
    assert first == draws(SamplingParams(temperature=0.8, seed=42))
    assert first != draws(SamplingParams(temperature=0.8, seed=43))


def test_unseeded_requests_differ():
    assert draws(SamplingParams(temperature=1.0)) != draws(SamplingParams(temperature=1.0))


def test_frequencies_follow_the_softmax():
    counts = np.bincount(draws(SamplingParams(temperature=2.0, seed=0), 20000), minlength=5) / 20000
    expected = np.exp(LOGITS / 2.0) / np.exp(LOGITS / 2.0).sum()
    np.testing.assert_allclose(counts, expected, atol=0.015)


def test_top_k_keeps_the_k_most_probable():
    logits = np.array([0.0, 3.0, 2.0, 1.0], np.float32)
    assert set(draws(SamplingParams(temperature=5.0, top_k=2, seed=0), logits=logits)) == {1, 2}
    assert set(draws(SamplingParams(temperature=5.0, top_k=99, seed=0), logits=logits)) == {0, 1, 2, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = np.log(np.array([0.1, 0.5, 0.3, 0.1], np.float32))
    assert set(draws(SamplingParams(temperature=1.0, top_p=0.45, seed=0), logits=logits)) == {1}
    assert set(draws(SamplingParams(temperature=1.0, top_p=0.79, seed=0), logits=logits)) == {1, 2}


def test_min_p_keeps_what_is_at_least_so_probable():
    logits = np.log(np.array([0.1, 0.5, 0.3, 0.1], np.float32))
    assert set(draws(SamplingParams(temperature=1.0, min_p=0.5, seed=0), logits=logits)) == {1, 2}
    assert set(draws(SamplingParams(temperature=1.0, min_p=0.61, seed=0), logits=logits)) == {1}
    assert set(draws(SamplingParams(temperature=1.0, min_p=0.19, seed=0), logits=logits)) == {0, 1, 2, 3}


def test_a_tiny_temperature_is_greedy_without_warnings():
    logits = np.array([0.0, 3.0, 2.0], np.float32)
    assert set(draws(SamplingParams(temperature=1e-308, seed=0), logits=logits)) == {1}


@pytest.mark.parametrize("bad", [[0.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_finite_maximum_are_refused(bad, temperature):
    with pytest.raises(ValueError, match="no finite maximum"):
        Sampler(SamplingParams(temperature=temperature)).sample(np.array(bad, np.float32))


def test_masked_logits_are_never_drawn():
    logits = np.array([-np.inf, 0.0, 0.0], np.float32)
    assert set(draws(SamplingParams(temperature=1.0, seed=1), logits=logits)) == {1, 2}
