"""Answers keep to their grammar, alone or among others, with and without drafts."""

import json
import re

import numpy as np
import pytest
from engine_harness import Harness
from engine_mock import mock_program, next_token
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted
from tiny_tokenizers import byte_level

from polybatch.engine import StructuredOutput
from polybatch.engine.batch import best_tokens
from polybatch.engine.request import Completion, Request
from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.sequence import Sequence
from polybatch.engine.speculation.proposal import Proposal
from polybatch.engine.structured.grammar import GrammarCompiler
from polybatch.errors import InvalidGrammarError

TOKENIZER = byte_level("al", "ph", "12", '":', "ab")
EOS = TOKENIZER.eos_token_id
VOCAB = len(TOKENIZER) + 3  # a model may pad its vocabulary
GRAMMARS = GrammarCompiler(TOKENIZER, VOCAB, [EOS])
REGEX = StructuredOutput("regex", "(al|a)+[0-9]{1,3}(ph)?x*")
SCHEMA = StructuredOutput(
    "json_schema",
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
)
CHOICE = StructuredOutput("choice", ["alpha", 'a "quoted\\" \n text', "al", "phé"])
GRAMMAR = StructuredOutput("grammar", 'start: "a" start "b" | "12"')


def noise(tokens):
    """Logits [VOCAB] that differ from sequence to sequence and make no text that anyone would write."""
    return np.random.default_rng(next_token(tokens) + 1000 * len(tokens)).normal(0, 3, VOCAB).astype(np.float32)


def program(batches=(1, 2, 4), lengths=None, **options):
    return mock_program(
        batches,
        ctx_len=96,
        text_tokenizer=TOKENIZER,
        vocab_size=VOCAB,
        eos_token_ids=(EOS,),
        logits_after=noise,
        table_options={"num_speculative_tokens": lengths} if lengths else None,
        **options,
    )


def answer(prompt, **params):
    """The completion of a request alone, without drafts."""
    harness = Harness(program([1], full_batch_size=1), grammars=GRAMMARS)
    harness.add(prompt, **params)
    (outcome,) = harness.finish()
    assert isinstance(outcome, Completion), outcome
    return outcome


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_an_answer_matches_its_grammar(temperature, seed):
    params = {"temperature": temperature, "seed": seed, "max_tokens": 90, "logit_bias": {EOS: 5}}
    assert re.fullmatch("(al|a)+[0-9]{1,3}(ph)?x*", answer([seed], structured=REGEX, **params).text)
    assert answer([seed], structured=CHOICE, **params).text in CHOICE.value
    outcome = answer([seed], structured=SCHEMA, **params)
    assert outcome.finish_reason == "stop"
    read = json.loads(outcome.text)
    assert set(read) == {"name", "age"}
    assert isinstance(read["age"], int)
    outcome = answer([seed], structured=GRAMMAR, **params)
    if outcome.finish_reason == "stop":
        assert re.fullmatch("a*12b*", outcome.text)
        assert outcome.text.count("a") == outcome.text.count("b")


def test_an_answer_ends_when_nothing_may_follow_whatever_ignore_eos_and_min_tokens_say():
    alpha = StructuredOutput("choice", ["alx"])
    outcome = answer([1], structured=alpha, ignore_eos=True, min_tokens=20, max_tokens=20)
    assert (outcome.text, outcome.finish_reason) == ("alx", "stop")
    assert EOS not in outcome.token_ids


def test_eos_comes_where_the_grammar_may_end():
    outcome = answer([1], structured=StructuredOutput("regex", "a+"), logit_bias={EOS: 100}, max_tokens=20)
    assert (outcome.text, outcome.token_ids[-1], outcome.finish_reason) == ("a", EOS, "stop")


def test_min_tokens_puts_eos_off_where_the_grammar_can_go_on():
    wanted = StructuredOutput("regex", "a+")
    outcome = answer([1], structured=wanted, logit_bias={EOS: 100}, max_tokens=20, min_tokens=7)
    assert len(outcome.token_ids) == 8
    assert re.fullmatch("a+", outcome.text)


def test_max_tokens_cuts_an_answer():
    outcome = answer([1], structured=StructuredOutput("regex", "[a-c]{30}"), max_tokens=5)
    assert outcome.finish_reason == "length"
    assert re.fullmatch("[a-c]{1,10}", outcome.text)


def test_logprobs_are_those_of_the_model_and_not_of_the_grammar():
    outcome = answer([1], structured=CHOICE, logprobs=1)
    tokens = [1]
    for item in outcome.logprobs:
        assert item.top[0][0] == int(noise(tokens).argmax())
        tokens.append(item.token_id)
    assert any(item.top[0][0] != item.token_id for item in outcome.logprobs)


def test_spaces_between_the_parts_of_json_come_to_an_end():
    space = 32
    outcome = answer([1], structured=StructuredOutput("json_object"), logit_bias={space: 100}, max_tokens=90)
    assert len(outcome.text.split("{")[1]) - len(outcome.text.split("{")[1].lstrip()) == 40


def test_a_grammar_that_llguidance_gives_up_on_fails_its_request_alone():
    harness = Harness(program(), grammars=GRAMMARS)
    failed = harness.add([1], max_tokens=20, structured=REGEX)
    harness.add([2], max_tokens=20, structured=REGEX)
    harness.step(2)
    harness.core._sequences[failed].request.constraint._matcher.consume_token(3)  # an error that it stays in
    outcomes = harness.finish()
    assert isinstance(outcomes[failed], InvalidGrammarError)
    assert outcomes[1].token_ids == answer([2], max_tokens=20, structured=REGEX).token_ids


STRUCTURED = st.sampled_from([None, REGEX, SCHEMA, CHOICE, GRAMMAR, StructuredOutput("json_object")])
SAMPLING = st.sampled_from([{}, {"temperature": 1.0, "seed": 7}, {"frequency_penalty": 1.0, "min_tokens": 3}])
REQUEST = st.tuples(st.integers(0, 200), STRUCTURED, SAMPLING, st.integers(1, 30))


def mostly_right(step, tokens, limit):
    """Drafts what the model would write without a grammar, with valid text thrown in."""
    drafted = [int(noise([*tokens]).argmax())]
    return [*drafted, *b'a12ph": {'][step % 3 : step % 3 + limit]


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=5), st.booleans())
def test_any_mix_gives_the_solo_answers_with_and_without_drafts(requests, speculate):
    made = Harness(
        program(lengths=[0, 3, 7] if speculate else None, prefill_seq_len=9),
        Scripted(mostly_right) if speculate else None,
        prefix_cache=True,
        grammars=GRAMMARS,
    )
    for first, structured, sampling, max_tokens in requests:
        made.add([first, 5], structured=structured, max_tokens=max(max_tokens, 3), **sampling)
        made.step(2)
    for (first, structured, sampling, max_tokens), outcome in zip(requests, made.finish(), strict=True):
        expected = answer([first, 5], structured=structured, max_tokens=max(max_tokens, 3), **sampling)
        assert (outcome.token_ids, outcome.text, outcome.finish_reason) == (
            expected.token_ids,
            expected.text,
            expected.finish_reason,
        )


def allowed(constraint):
    logits = np.zeros(VOCAB, np.float32)
    constraint.mask(logits)
    return np.flatnonzero(logits == 0).tolist()


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([REGEX, SCHEMA, CHOICE, GRAMMAR]),
    st.lists(st.lists(st.sampled_from([*b'al12phx{"name: a', 256, 258, EOS]), max_size=6), max_size=12),
    st.integers(0, 100),
    st.booleans(),
)
def test_the_state_is_that_of_reading_the_accepted_tokens(structured, drafts, first, drawn):
    constraint = GRAMMARS.compile(structured)
    params = SamplingParams(max_tokens=60, structured=structured, temperature=1.0 if drawn else 0.0)
    request = Request(0, (first,), params, lambda _: None, None, constraint)
    sequence = Sequence(request, ctx_len=96, eos_token_ids=[EOS], detokenizer=None)
    for drafted in drafts:
        rows = np.full((len(drafted), VOCAB), 1 / VOCAB) if drawn and drafted else None
        proposal = sequence.allowed(Proposal(tuple(drafted), rows))
        tokens = [first, *sequence.token_ids]
        logits = np.stack([noise([*tokens, *proposal.token_ids[:i]]) for i in range(len(proposal) + 1)])
        delta = sequence.extend(logits, best_tokens(logits), proposal)
        replay = GRAMMARS.compile(structured)
        for token in sequence.token_ids:
            assert token in allowed(replay)
            replay.accept(token)
        assert constraint.complete == replay.complete
        if delta.finish_reason is not None:
            return
        assert allowed(constraint) == allowed(replay)


def test_drafts_that_the_grammar_refuses_are_not_verified():
    made = Harness(
        program([1], lengths=[0, 3], full_batch_size=1, prefill_seq_len=9),
        Scripted(lambda step, tokens, limit: [*b"zzz"][:limit]),
        3,
        grammars=GRAMMARS,
    )
    made.add([1], structured=REGEX, max_tokens=8)
    (outcome,) = made.finish()
    assert outcome.speculation.drafted == 0


class Three:
    """A constraint that always allows the tokens 0, 1 and 2 of four."""

    complete = False

    def mask(self, logits):
        logits[3] = -np.inf

    def accept(self, token_id):
        assert token_id < 3

    def valid_prefix(self, token_ids):
        return next((i for i, token in enumerate(token_ids) if token == 3), len(token_ids))


def test_drawn_drafts_that_are_refused_leave_the_distribution_as_it_is():
    target, draft = np.array([0.1, 0.3, 0.2, 0.4]), np.array([0.3, 0.1, 0.1, 0.5])
    draws = np.random.default_rng(0).choice(4, p=draft, size=6000)
    counts = np.zeros(3)
    logits = np.log(np.stack([target, target])).astype(np.float32)
    params = SamplingParams(temperature=1.0)
    for drawn in draws.tolist():
        sequence = Sequence(
            Request(0, (1,), params, print, None, Three()), ctx_len=9, eos_token_ids=(), detokenizer=None
        )
        proposal = sequence.allowed(Proposal((drawn,), draft[None]))
        counts[sequence.extend(logits[: len(proposal) + 1], best_tokens(logits), proposal).token_ids[0]] += 1
    np.testing.assert_allclose(counts / counts.sum(), target[:3] / target[:3].sum(), atol=0.025)


def test_an_answer_that_must_be_empty_is():
    outcome = answer([1], structured=StructuredOutput("regex", ""), min_tokens=3)
    assert (outcome.text, outcome.token_ids, outcome.finish_reason) == ("", (EOS,), "stop")
