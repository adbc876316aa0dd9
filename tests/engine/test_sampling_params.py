import pytest

from polybatch.engine import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("seed", -1),
        ("min_tokens", -1),
        ("stop", ""),
        ("stop", ["a", ""]),
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
        ("top_p", None),
        ("top_k", 1.0),
        ("seed", 1.0),
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
