"""Text under speculation: stop strings, characters and limits inside a run of accepted tokens (cases 9 and 10)."""

import re

import numpy as np
import pytest
from engine_harness import Harness
from engine_mock import mock_program
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted
from tiny_tokenizers import byte_level

from polybatch.engine.request import Delta

PROMPT = [1]


def say(token_ids, texts, fixed_k=7, eos=(), **params):
    """A model that says ``token_ids`` whatever it is given, always drafted right; (deltas, completion)."""
    tokenizer = byte_level(*texts)

    def logits_after(tokens):
        return np.eye(len(tokenizer), dtype=np.float32)[token_ids[min(len(tokens) - 1, len(token_ids) - 1)]]

    program = mock_program(
        [1],
        full_batch_size=1,
        prefill_seq_len=16,
        table_options={"num_speculative_tokens": [0, 3, 7]},
        text_tokenizer=tokenizer,
        vocab_size=len(tokenizer),
        eos_token_ids=eos,
        logits_after=logits_after,
    )
    drafts = Scripted(lambda step, tokens, limit: token_ids[len(tokens) - 1 :][:limit])
    harness = Harness(program, drafts, fixed_k)
    harness.add(PROMPT, **{"max_tokens": len(token_ids), **params})
    (completion,) = harness.finish()
    return [event for event in harness.events[0] if isinstance(event, Delta)], completion


@pytest.mark.parametrize("fixed_k", [0, 3, 7])
def test_a_stop_string_inside_an_accepted_run_ends_the_answer_just_before_it(fixed_k):
    token_ids = [256, 257, 258, 259, *b"xyz"]
    deltas, completion = say(token_ids, ("al", "ph", "a b", "et"), fixed_k, stop="a be")
    assert "".join(delta.text for delta in deltas) == completion.text == "alph"
    assert completion.finish_reason == deltas[-1].finish_reason == "stop"
    assert completion.token_ids == (256, 257, 258, 259)
    assert tuple(token for delta in deltas for token in delta.token_ids) == completion.token_ids


def test_the_second_of_two_runs_may_complete_the_stop_string():
    token_ids = [256, 257, 258, 259, *b"a be!"]
    _, completion = say(token_ids, ("al", "ph", "a b", "ey"), 3, stop="a be!")
    assert completion.text == "alpha bey"


def test_a_stop_string_that_is_never_completed_loses_no_text():
    _, completion = say([256, 257, 258], ("al", "ph", "a b"), stop=("a be",))
    assert (completion.text, completion.finish_reason) == ("alpha b", "length")


@pytest.mark.parametrize("fixed_k", [3, 7])
def test_a_character_in_four_tokens_is_shown_whole(fixed_k):
    token_ids = [*"a😀b".encode(), *"😀".encode(), *b"cd"]
    deltas, completion = say(token_ids, (), fixed_k)
    assert "".join(delta.text for delta in deltas) == completion.text == "a😀b😀cd"
    assert not any("\ufffd" in delta.text for delta in deltas)


def test_eos_inside_a_run_is_the_last_token_and_no_text():
    deltas, completion = say([256, 257, 258, 256, 256], ("al", "pha", "</s>"), eos=(258,))
    assert (completion.text, completion.finish_reason) == ("alpha", "stop")
    assert [delta.token_ids for delta in deltas] == [(256,), (257, 258)]


def test_min_tokens_counts_the_tokens_of_a_run():
    """EOS is drafted, and would be chosen, as the third token; it may come only from the fourth on."""
    token_ids = [256, 257, 258, 258, 258, 258]
    _, completion = say(token_ids, ("al", "pha", "</s>"), eos=(258,), min_tokens=3)
    assert completion.token_ids == (256, 257, 0, 258)


def test_one_delta_holds_the_tokens_of_a_step():
    deltas, _ = say([256] * 9, ("al",), 3)
    assert [delta.token_ids for delta in deltas] == [(256,), (256,) * 4, (256,) * 4]
    assert [delta.text for delta in deltas] == ["al", "al" * 4, "al" * 4]


def cut_at_stop(text, stops):
    """The text before the stop string that is completed first, the longest of those that end there."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(found)[1]] if found else text


@settings(max_examples=100, deadline=None)
@given(
    st.text("ab é\U0001f600", min_size=1, max_size=20),
    st.lists(st.text("ab é\U0001f600", min_size=1, max_size=4), max_size=3),
    st.sampled_from([0, 3, 7]),
)
def test_any_text_and_any_stop_list_stream_as_the_whole_text_cut_once(text, stops, fixed_k):
    pieces = ("ab", "a b", "b é", "ba")
    parts = re.findall("|".join([*pieces, "."]), text)
    token_ids = [t for part in parts for t in ([256 + pieces.index(part)] if part in pieces else part.encode())]
    deltas, completion = say(token_ids, pieces, fixed_k, stop=stops, logprobs=1)
    expected = cut_at_stop(text, stops)
    assert "".join(delta.text for delta in deltas) == completion.text == expected
    assert completion.finish_reason == ("stop" if expected != text else "length")
    assert not any("\ufffd" in delta.text for delta in deltas)
    assert [len(delta.logprobs) for delta in deltas] == [len(delta.token_ids) for delta in deltas]
    assert tuple(item.token_id for item in completion.logprobs) == completion.token_ids
