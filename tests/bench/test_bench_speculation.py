"""The arithmetic of the benchmark of speculation, and its oracle."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from bench.speculation.measure import Sample, groups_of, token_acceptance, total
from bench.speculation.oracle import Oracle
from bench.speculation.report import markdown
from bench.speculation.results import BASE, Workload
from polybatch.engine.speculation.proposer import Ask


def sample(variant: str, seconds: float, group: int = 0, drafted: tuple[int, ...] = (), accepted: tuple[int, ...] = ()):
    return Sample(group, variant, seconds, 0.5, 100, drafted, accepted)


def workload(**changes) -> Workload:
    samples = (
        sample(BASE, 2.0),
        sample("adaptive", 1.0, 0, (10, 8), (8, 4)),
        sample("adaptive", 2.0, 1, (2,), (0,)),
        sample(BASE, 4.0, 1),
    )
    return Workload(**{"name": "quote", "batch": 1, "acceptance": None, "least": 1.3, "samples": samples, **changes})


def test_speed_is_compared_over_all_groups_of_one_run():
    measured = workload()
    assert measured.tokens_per_second(BASE) == 200 / 6
    assert measured.speed_up("adaptive") == 2.0
    assert measured.speed_up("adaptive", decode_only=True) == 5 / 2
    assert measured.tokens_per_draft("adaptive") == (20, 12)


def test_a_token_counts_as_tried_when_those_before_it_were_accepted():
    assert token_acceptance((10, 8), (8, 4)) == 12 / 18
    assert token_acceptance((10, 10), (5, 5)) == 10 / 15
    assert token_acceptance((), ()) is None
    assert workload().token_acceptance("adaptive") == 12 / 20
    assert total([(1, 2), (3,), ()]) == (4, 2)


def test_one_prompt_is_queued_at_a_time_or_all_of_them_twice():
    assert [len(group) for group in groups_of(["a", "b", "c"], 1)] == [1, 1, 1]
    assert [len(group) for group in groups_of(["a", "b", "c"], 4)] == [6]


def test_results_survive_the_way_through_a_file():
    measured = workload()
    assert Workload.from_json(json.loads(json.dumps(measured.to_json()))) == measured


@pytest.mark.parametrize(("least", "mark"), [(1.3, "at least 1.3: passed"), (2.5, "at least 2.5: **failed**")])
def test_the_report_says_what_passed(least, mark):
    text = "\n".join(markdown([workload(least=least), workload(name="sweep", acceptance=0.5)]))
    assert f"| 2.000 | 2.000 to 2.000 | 2.500 | 20 | 60% | {mark} |" in text
    assert "| 50% | 1 | 2.50 |" in text


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
def test_the_oracle_is_right_as_often_as_it_is_told(acceptance):
    answer = tuple(range(2, 1002))
    request = SimpleNamespace(request_id=0, prompt_token_ids=(7,))
    oracle = Oracle({(7,): answer}, acceptance)
    (proposal,) = oracle.propose([Ask(SimpleNamespace(request=request, token_ids=list(answer[:10])), 900)])
    right = sum(a == b for a, b in zip(proposal.token_ids, answer[10:910], strict=True))
    assert right / 900 == pytest.approx(acceptance, abs=0.05)
