from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from polybatch.engine import SamplingParams
from polybatch.engine.sampler import Sampler


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        pytest.param("temperature", 10**9000, id="too long to print"),
        ("temperature", Fraction(10**400, 3)),
        ("temperature", Decimal("sNaN")),
        ("temperature", Decimal("1e999")),
        ("top_p", 10**400),
        ("top_p", Fraction(3, 2)),
        ("top_k", np.int32(-1)),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("seed", -1),
        ("min_tokens", -1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 5e-324),
        ("repetition_penalty", float("inf")),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: 101}),
        ("logprobs", -1),
        ("logprobs", 21),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", "\udce9"),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", "4"),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", np.True_),
        ("temperature", "0.5"),
        ("temperature", 1j),
        ("temperature", None),
        ("top_p", None),
        ("top_p", False),
        ("max_tokens", np.True_),
        ("top_k", Fraction(4, 1)),
        ("seed", False),
        ("min_tokens", True),
        ("top_k", 1.0),
        ("seed", 1.0),
        ("min_p", "0.1"),
        ("presence_penalty", None),
        ("frequency_penalty", True),
        ("repetition_penalty", "1"),
        ("logit_bias", [(1, 1.0)]),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1: "1"}),
        ("logprobs", True),
        ("logprobs", 1.0),
        ("structured", "json"),
        ("stop", 5),
        ("stop", [1]),
        ("ignore_eos", 1),
    ],
)
def test_a_wrong_type_is_named(name, value):
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: value})


def test_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(ValueError, match=r"min_tokens=5 is above max_tokens=4"):
        SamplingParams(max_tokens=4, min_tokens=5)


def test_stop_is_kept_as_a_tuple():
    assert SamplingParams(stop="x").stop == ("x",)
    assert SamplingParams(stop=["x", "y"]) == SamplingParams(stop=("x", "y"))


@pytest.mark.parametrize("kind", [Fraction, Decimal, np.float32, np.float64, float])
def test_real_numbers_of_any_type_are_kept_as_floats(kind):
    params = SamplingParams(temperature=kind(0.5), top_p=kind(0.25))
    assert (params.temperature, params.top_p) == (0.5, 0.25)
    assert type(params.temperature) is type(params.top_p) is float
    assert Sampler(params).sample(np.zeros(4, np.float32)) in range(4)


class Index:
    def __index__(self):
        return 3


@pytest.mark.parametrize("value", [np.int32(3), np.uint8(3), np.array(3), Index()])
def test_whole_numbers_of_any_type_are_kept_as_ints(value):
    names = ("max_tokens", "min_tokens", "top_k", "seed")
    params = SamplingParams(**dict.fromkeys(names, value))
    for name in names:
        assert getattr(params, name) == 3
        assert type(getattr(params, name)) is int
