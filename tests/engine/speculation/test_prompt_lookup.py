"""Prompt lookup: which earlier occurrence counts, what it proposes, and what a step costs on a long text."""

import numpy as np
import pytest
from engine_harness import Harness, answers
from engine_mock import mock_program, solo_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from request_mixes import BATCHES
from speculation.mixes import REQUESTS, check_any_mix

from polybatch.engine import PromptLookup
from polybatch.engine.speculation.prompt_lookup import NgramIndex


def continuation(tokens, limit=3, max_ngram=3):
    index = NgramIndex(max_ngram)
    index.extend(tokens)
    return list(index.continuation(limit).token_ids)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 3, 1], [2, 3, 1]),
        ([1, 2, 3, 9, 2, 3], [9, 2, 3]),  # the longest match is of two
        ([1, 2, 3, 7, 3, 8, 1, 2, 3], [7, 3, 8]),  # three tokens an early time go before one token a later time
        ([1, 2, 7, 0, 1, 2, 8, 0, 1, 2], [8, 0, 1]),  # of equal matches the later
        ([4, 1, 2, 3, 5, 6, 1, 2, 3, 7, 4, 1, 2, 3], [7, 4, 1]),  # a fourth token that agrees plays no part
        ([5, 5], [5, 5, 5]),
        ([1, 2, 1, 2], [1, 2, 1]),  # the continuation ends before the limit: the repetition goes on
    ],
)
def test_what_followed_the_latest_longest_match_is_proposed(tokens, expected):
    assert continuation(tokens) == expected


def test_max_ngram_bounds_the_match():
    tokens = [1, 2, 7, 3, 2, 8, 1, 2]
    assert continuation(tokens, 1, max_ngram=2) == [7]
    assert continuation(tokens, 1, max_ngram=1) == [8]


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_no_more_than_the_limit(limit):
    assert len(continuation([1, 2, 3, 4, 5, 6, 7, 8, 1], limit)) == limit


def naive(tokens, limit, max_ngram):
    """The definition, by search."""
    for size in range(min(max_ngram, len(tokens)), 0, -1):
        for start in range(len(tokens) - 1, size - 1, -1):
            if tokens[start - size : start] == tokens[-size:]:
                known = list(tokens)
                for _ in range(limit):
                    known.append(known[start + len(known) - len(tokens)])
                return known[len(tokens) :]
    return []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8), st.integers(1, 4), st.integers(0, 9))
def test_the_index_grown_piece_by_piece_finds_what_a_search_finds(pieces, max_ngram, limit):
    index, tokens = NgramIndex(max_ngram), []
    for piece in pieces:
        index.extend(piece)
        tokens += piece
        assert list(index.continuation(limit).token_ids) == naive(tokens, limit, max_ngram)


def test_a_longer_match_is_better_evidence():
    def evidence(common):
        index = NgramIndex(3)
        index.extend([90, *range(common), 91, 92, *range(common)])
        return index.continuation(2).evidence

    assert [evidence(common) for common in (1, 2, 3, 4, 7, 8, 20)] == [1, 2, 3, 4, 4, 8, 8]


def test_a_step_on_a_long_text_touches_only_its_new_tokens():
    class Counting(list):
        reads = 0

        def __getitem__(self, key):
            Counting.reads += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
            return super().__getitem__(key)

    index = NgramIndex(3)
    index.extend(np.random.default_rng(0).integers(0, 50, 5000).tolist())
    index._tokens = Counting(index._tokens)
    index.extend([1])
    index.continuation(7)
    assert Counting.reads < 60


def test_repetition_in_prompt_and_output_is_used_up_to_the_end():
    """The model that repeats its prompt: every token but the first few comes from a verified proposal."""

    def echo(tokens):
        return np.eye(251, dtype=np.float32)[tokens[max(-10, -len(tokens))]]

    program = mock_program([1], full_batch_size=1, logits_after=echo, table_options={"num_speculative_tokens": [0, 3]})
    harness = Harness(program, PromptLookup())
    harness.add(range(10), max_tokens=40)
    (outcome,) = harness.finish()
    assert outcome.token_ids == tuple(range(10)) * 4
    assert outcome.speculation.acceptance > 0.9
    assert len(harness.session.steps) < 16


@settings(max_examples=60, deadline=None)
@given(REQUESTS, BATCHES, st.sampled_from([None, 3, 7]), st.integers(1, 4))
def test_any_mix_of_requests_equals_the_solo_runs(requests, batches, fixed_k, max_ngram):
    repeated = [((prompt * 3)[:31], *rest) for prompt, *rest in requests]
    check_any_mix(repeated, batches, PromptLookup(max_ngram), fixed_k=fixed_k)


def test_a_request_that_ended_leaves_no_index():
    harness = Harness(mock_program(table_options={"num_speculative_tokens": [0, 3]}), PromptLookup())
    harness.add([1, 2], max_tokens=9)
    assert answers(harness.finish()) == [solo_tokens([1, 2], 9)]
    assert harness.core._speculator._proposer._indexes == {}


@pytest.mark.parametrize(("bad", "error"), [(0, ValueError), (2.5, TypeError), (True, TypeError)])
def test_max_ngram_is_a_positive_int(bad, error):
    with pytest.raises(error, match="max_ngram"):
        PromptLookup(max_ngram=bad)
