"""/v1/completions as the openai client sees it."""

import pytest
from engine.engine_mock import solo_tokens
from server.live_server import NAME
from server.scripted_program import EOS, tokenizer

PROMPT = list(b"Once upon")


def solo_text(prompt, max_tokens):
    tokens, _ = solo_tokens(prompt, max_tokens, eos=(EOS,))
    return tokenizer().decode(list(tokens), skip_special_tokens=True)


@pytest.fixture
def create(live):
    return lambda **options: live.client.completions.create(
        model=NAME, **{"temperature": 0, "max_tokens": 8, **options}
    )


def test_an_answer_has_text_reason_and_usage(create):
    reply = create(prompt="Once upon")
    assert reply.object == "text_completion"
    assert reply.model == NAME
    assert reply.choices[0].text == solo_text(PROMPT, 8)
    assert reply.choices[0].finish_reason == "length"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (9, 8, 17)


def test_eos_is_finish_reason_stop(live, create):
    live.program.script("say hi", "hi")
    choice = create(prompt="say hi").choices[0]
    assert (choice.text, choice.finish_reason) == ("hi", "stop")


def test_the_default_is_sixteen_tokens(live):
    assert live.client.completions.create(model=NAME, prompt="Once upon", temperature=0).usage.completion_tokens == 16


@pytest.mark.parametrize(
    "prompt",
    ["Once upon", ["Once upon"], PROMPT, [PROMPT]],
    ids=["string", "strings", "ids", "lists of ids"],
)
def test_every_kind_of_prompt_gives_the_same_answer(create, prompt):
    assert create(prompt=prompt).choices[0].text == solo_text(PROMPT, 8)


def test_prompts_are_answered_in_order(create):
    texts = ["one", "two", "three", "four", "five", "six"]
    choices = create(prompt=texts).choices
    assert [choice.index for choice in choices] == list(range(6))
    assert [choice.text for choice in choices] == [solo_text(list(text.encode()), 8) for text in texts]


def test_n_choices_of_a_seed_differ_from_each_other_and_come_again(create):
    texts = [[c.text for c in create(prompt="x", n=3, seed=7, temperature=1.5).choices] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    assert create(prompt="x", seed=7, temperature=1.5).choices[0].text == texts[0][0]


def test_a_seed_of_any_sign_is_a_seed(create):
    texts = [create(prompt="x", seed=seed, temperature=1.5).choices[0].text for seed in (-1, -1, 2**63 - 1)]
    assert texts[0] == texts[1] != texts[2]


def test_n_times_prompts_are_grouped_by_prompt(create):
    choices = create(prompt=["one", "two"], n=2).choices
    one, two = solo_text(list(b"one"), 8), solo_text(list(b"two"), 8)
    assert [choice.text for choice in choices] == [one, one, two, two]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_begins_with_the_prompt(create, stream):
    reply = create(prompt="Once upon", echo=True, stream=stream)
    chunks = list(reply) if stream else [reply]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Once upon" + solo_text(PROMPT, 8)


def test_echo_of_ids_is_their_text(create):
    assert create(prompt=PROMPT, echo=True).choices[0].text.startswith("Once upon")


def test_logprobs_have_one_entry_per_token(live, create):
    live.program.script("abc?", "héy")
    logprobs = create(prompt="abc?", logprobs=2).choices[0].logprobs
    assert logprobs.tokens == ["h", "bytes:\\xc3", "bytes:\\xa9", "y", "</s>"]
    assert logprobs.text_offset == [0, 1, 1, 2, 3]
    assert all(value < 0 for value in logprobs.token_logprobs)
    assert [len(top) for top in logprobs.top_logprobs] == [2] * 5
    assert max(logprobs.top_logprobs[0], key=logprobs.top_logprobs[0].get) == "h"


def test_streamed_logprobs_are_those_of_the_whole_answer(live, create):
    live.program.script("abc?", "héy")
    whole = create(prompt="abc?", logprobs=1).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in create(prompt="abc?", logprobs=1, stream=True)]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for chunk in chunks for value in getattr(chunk, field)] == getattr(whole, field)


def test_a_stream_adds_up_to_the_whole_answer(create):
    chunks = list(create(prompt="Once upon", stream=True, max_tokens=20))
    assert "".join(chunk.choices[0].text for chunk in chunks) == solo_text(PROMPT, 20)
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])


def test_a_stream_of_several_choices_names_them(create):
    texts = ["", "", "", ""]
    for chunk in create(prompt=["one", "two"], n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    one, two = solo_text(list(b"one"), 8), solo_text(list(b"two"), 8)
    assert texts == [one, one, two, two]


def test_usage_of_a_stream_comes_last_and_only_when_asked_for(create):
    *chunks, last = create(prompt=["a", "b"], stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 16)
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in create(prompt="a", stream=True))


def test_a_prompt_that_was_seen_is_counted_as_cached(create):
    text = "a prompt that is used twice"
    create(prompt=text)
    assert create(prompt=text).usage.prompt_tokens_details.cached_tokens > 0


def test_what_the_sampler_is_told_changes_the_answer(live, create):
    live.program.script("abcd", "aaaa")
    assert create(prompt="abcd", logit_bias={"97": -100}).choices[0].text[0] != "a"
    banned = create(prompt="abcd", extra_body={"min_tokens": 6}).usage.completion_tokens
    assert banned >= 6
    assert create(prompt="abcd", extra_body={"ignore_eos": True}).usage.completion_tokens == 8
    assert create(prompt="abcd", frequency_penalty=2.0).choices[0].text != "aaaa"


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, {a + b + c for a in "ab" for b in "ab" for c in "ab"}),
        ({"structured_outputs": {"grammar": 'start: "x" "y"'}}, {"xy"}),
        ({"structured_outputs": {"json": {"const": 12}}}, {"12"}),
    ],
    ids=["choice", "regex", "grammar", "json"],
)
def test_structured_outputs_hold_the_answer_to_a_form(create, form, texts):
    assert create(prompt="Once upon", extra_body=form).choices[0].text in texts


def test_tokenize_and_detokenize_are_inverse(live):
    _, tokens, _ = live.call("/tokenize", {"prompt": "hé alph", "return_token_strs": True})
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert live.call("/detokenize", {"tokens": tokens["tokens"]})[1] == {"prompt": "hé alph"}


def test_the_model_is_listed(live):
    assert [model.id for model in live.client.models.list()] == [NAME]
    assert live.client.models.retrieve(NAME).id == NAME
