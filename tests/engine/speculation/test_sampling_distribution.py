"""Speculation keeps the distribution of sampled tokens: chi-square over 20,000 draws of the next three tokens.

The model forgets everything after three tokens, so an answer of 3n tokens holds n independent draws. Steps of up to
four tokens cross from one draw to the next in every way there is.
"""

import itertools

import numpy as np
import pytest
import torch
from engine_harness import Harness
from engine_mock import VOCAB, mock_program
from scripted import Scripted

from polybatch.engine.sampler import Sampler
from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.speculation import acceptance
from polybatch.engine.speculation.draft_model import DraftModel
from polybatch.engine.speculation.proposal import Proposal

TOKENS = 5  # the others have no probability
DRAWS = 20_000
PER_ANSWER = 100
CTX_LEN = 1 + 3 * PER_ANSWER
PLAIN = {"temperature": 0.9}
FILTERED = {"temperature": 1.1, "top_k": 4, "top_p": 0.85}


def forgetful(table):
    """``logits_after`` of a model whose next token depends on what it said since the last multiple of three."""

    def logits_after(tokens):
        phase = (len(tokens) - 1) % 3
        first, second = ([*tokens[len(tokens) - phase :], TOKENS, TOKENS])[:2]
        logits = np.full(VOCAB, -np.inf, np.float32)
        logits[:TOKENS] = table[phase, first, second]
        return logits

    return logits_after


_RNG = np.random.default_rng(1)
_TABLE, _NOISE = _RNG.normal(size=(2, 3, TOKENS + 1, TOKENS + 1, TOKENS))
TARGET = forgetful(_TABLE)
DRAFT = forgetful(_TABLE + 0.7 * _NOISE)


def program(logits_after, lengths=(0, 1, 3), **more):
    options = {"num_speculative_tokens": list(lengths)} if lengths else None
    return mock_program(
        [8], full_batch_size=8, ctx_len=CTX_LEN, table_options=options, logits_after=logits_after, **more
    )


class Drawing(Scripted):
    """Drafts drawn from another model's distribution, of changing length; or that model's best guesses."""

    def __init__(self, *, best_guess=False):
        super().__init__(None)
        self.best_guess = best_guess
        self.lengths = np.random.default_rng(7)
        self.sampler = Sampler(SamplingParams(temperature=0.0 if best_guess else 1.3, seed=7))

    def _propose(self, ask):
        tokens, drafted, rows = ask.tokens(0, len(ask)), [], []
        for _ in range(min(ask.limit, int(self.lengths.integers(0, 4)))):
            logits = DRAFT(tokens + drafted)
            if not self.best_guess:
                rows.append(self.sampler.distribution(logits))
            drafted.append(self.sampler.sample(logits))
        return Proposal(tuple(drafted), np.stack(rows) if rows else None)


def draws(params, speculation=None, seeded=True):
    """How often each of the triples came."""
    harness = Harness(program(TARGET, (0, 1, 3) if speculation else None), speculation, 3 if speculation else None)
    answers = DRAWS // PER_ANSWER
    for i in range(answers):
        harness.add([0], max_tokens=3 * PER_ANSWER, ignore_eos=True, **params, **({"seed": i} if seeded else {}))
    counts = np.zeros((TOKENS,) * 3)
    for outcome in harness.finish():
        np.add.at(counts, tuple(np.array(outcome.token_ids).reshape(-1, 3).T), 1)
    assert counts.sum() == DRAWS
    return counts, harness.stats.snapshot().speculation


def probabilities(params):
    """Of each triple, worked out."""
    sampler = Sampler(SamplingParams(**params))
    found = np.zeros((TOKENS,) * 3)
    for triple in itertools.product(range(TOKENS), repeat=3):
        found[triple] = np.prod([sampler.distribution(TARGET([0, *triple[:i]]))[triple[i]] for i in range(3)])
    return found


def chi_square_p(counts, expected):
    """The probability of a sample at least this far off; cells that expect fewer than five go together."""
    counts, expected = counts.ravel(), expected.ravel()
    assert counts[expected == 0].sum() == 0, "a token that the filters remove was drawn"
    small = expected < 5
    counts, expected = (np.append(values[~small], values[small].sum()) for values in (counts, expected))
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    half_df = torch.tensor((counts.size - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_df, torch.tensor(statistic / 2, dtype=torch.float64)))


@pytest.mark.parametrize(("params", "best_guess"), [(PLAIN, False), (FILTERED, False), (FILTERED, True)])
def test_the_next_three_tokens_are_distributed_as_without_speculation(params, best_guess):
    counts, stats = draws(params, Drawing(best_guess=best_guess))
    assert all(0.1 < rate < 0.9 for rate in stats.acceptance_at)
    assert chi_square_p(counts, DRAWS * probabilities(params)) > 0.01


def test_without_speculation_the_same_check_passes():
    counts, _ = draws(FILTERED)
    assert chi_square_p(counts, DRAWS * probabilities(FILTERED)) > 0.01


def test_a_naive_acceptance_rule_fails_the_check(monkeypatch):
    """Drawing again from the target after a rejection favours what the draft proposes."""
    monkeypatch.setattr(acceptance, "residual", lambda target, draft: target)
    counts, _ = draws(PLAIN, Drawing())
    assert chi_square_p(counts, DRAWS * probabilities(PLAIN)) < 1e-6


def test_a_draft_model_keeps_the_distribution(monkeypatch):
    seeds, generator = itertools.count(), np.random.PCG64
    monkeypatch.setattr(np.random, "PCG64", lambda seed=None: generator(next(seeds) if seed is None else seed))
    counts, stats = draws(PLAIN, DraftModel(program(DRAFT, None)), seeded=False)
    assert all(0.1 < rate < 0.9 for rate in stats.acceptance_at)
    assert chi_square_p(counts, DRAWS * probabilities(PLAIN)) > 0.01
