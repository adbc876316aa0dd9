"""Requests that come, end and are aborted at any time, and what their answers must be."""

from __future__ import annotations

from engine_harness import Harness
from engine_mock import VOCAB, mock_program
from hypothesis import strategies as st

from polybatch.engine.request import Completion

CTX_LEN = 32
EOS = tuple(range(0, VOCAB, 12))
REQUEST = st.tuples(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=31),
    st.integers(1, 40),
    st.integers(0, 6),  # steps before the next request comes
    st.none() | st.integers(0, 8),  # abort after so many steps
    st.sampled_from(
        [
            {},
            {"temperature": 0.8, "seed": 3},
            {"temperature": 1.5, "top_k": 5, "seed": 9},
            {"frequency_penalty": 1.0, "presence_penalty": 0.5, "logit_bias": {7: 3.0}},
            {"repetition_penalty": 1.3, "temperature": 0.7, "min_p": 0.05, "seed": 5, "logprobs": 2},
            {"ignore_eos": True, "logprobs": 0},
        ]
    ),
)
BATCHES = st.sets(st.integers(1, 4), min_size=1).map(sorted)


def run_mix(harness: Harness, requests, eos=EOS) -> None:
    """Run the requests; each must end as it does alone, or as far as it was let."""
    aborts: dict[int, int] = {}
    for prompt, max_tokens, pause, abort_after, params in requests:
        request_id = harness.add(prompt, max_tokens=max_tokens, **params)
        if abort_after is not None:
            aborts[request_id] = abort_after
        for _ in range(pause):
            harness.step()
            aborts = {i: left - 1 for i, left in aborts.items()}
            for i in [i for i, left in aborts.items() if left < 0]:
                harness.core.abort(i)
                del aborts[i]
    for (prompt, max_tokens, _, _, params), outcome in zip(requests, harness.finish(), strict=True):
        expected = _solo(prompt, {"max_tokens": max_tokens, **params}, eos)
        assert isinstance(outcome, Completion), outcome
        if outcome.finish_reason == "abort":
            assert outcome.token_ids == expected.token_ids[: len(outcome.token_ids)]
        else:
            assert (outcome.token_ids, outcome.finish_reason) == (expected.token_ids, expected.finish_reason)
            assert outcome.logprobs == expected.logprobs
    assert harness.core.scheduler.held_slots == frozenset()


def _solo(prompt, params, eos):
    harness = Harness(mock_program([1], full_batch_size=1, ctx_len=CTX_LEN, eos_token_ids=eos))
    harness.add(prompt, **params)
    return harness.finish()[0]
