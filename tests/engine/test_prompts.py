import numpy as np
import pytest
from engine_mock import mock_program
from tiny_tokenizers import byte_level

from polybatch.engine.prompts import PromptEncoder, prompt_list
from polybatch.errors import ProgramError


@pytest.fixture
def encoder():
    return PromptEncoder(mock_program(ctx_len=64, text_tokenizer=byte_level(), vocab_size=260))


def test_text_is_encoded_by_the_tokenizer(encoder):
    assert encoder.encode("hi") == tuple(b"hi")


@pytest.mark.parametrize("ids", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3])])
def test_token_ids_pass_through_as_plain_ints(encoder, ids):
    encoded = encoder.encode(ids)
    assert encoded == (1, 2, 3)
    assert all(type(token) is int for token in encoded)


def test_chat_messages_go_through_the_template(encoder):
    tokenizer = byte_level()
    expected = tokenizer.encode("<s>user:hey<s>assistant:", add_special_tokens=False)
    assert encoder.encode([{"role": "user", "content": "hey"}]) == tuple(expected)
    assert expected[0] == tokenizer.bos_token_id


@pytest.mark.parametrize("empty", ["", [], ()])
def test_an_empty_prompt_is_refused(encoder, empty):
    with pytest.raises(ValueError, match="empty"):
        encoder.encode(empty)


def test_the_longest_prompt_leaves_room_for_one_token(encoder):
    assert len(encoder.encode([1] * 63)) == 63
    for length in (64, 65):
        with pytest.raises(ValueError, match=rf"{length} tokens, but this program takes at most 63"):
            encoder.encode([1] * length)


def test_a_prefill_ccl_list_limits_the_prompt():
    options = {"comp_ctx_lengths_prefill": [16, 32], "comp_ctx_lengths_decode": [24, 64]}
    encoder = PromptEncoder(mock_program(1, full_batch_size=2, table_options=options))
    with pytest.raises(ValueError, match="33 tokens, but this program takes at most 32"):
        encoder.encode([1] * 33)


@pytest.mark.parametrize("token", [-1, 260])
def test_a_token_outside_the_vocabulary_is_refused(encoder, token):
    with pytest.raises(ValueError, match=rf"token id {token} is out of the vocabulary.*0 to 259"):
        encoder.encode([1, token])


@pytest.mark.parametrize("prompt", [5, None, b"hi", {"role": "user"}, [1.5], [True], ["a"], [None]])
def test_what_is_no_prompt_is_a_type_error(encoder, prompt):
    with pytest.raises(TypeError):
        encoder.encode(prompt)


@pytest.mark.parametrize("message", [{"content": "x"}, {"role": "user"}, {"role": 1, "content": "x"}])
def test_a_malformed_chat_message_is_shown(encoder, message):
    with pytest.raises(ValueError, match="chat message"):
        encoder.encode([{"role": "user", "content": "x"}, message])


def test_without_a_tokenizer_only_token_ids_work():
    encoder = PromptEncoder(mock_program())
    assert encoder.encode([1, 2]) == (1, 2)
    for prompt in ("hi", [{"role": "user", "content": "x"}]):
        with pytest.raises(ProgramError, match="no tokenizer"):
            encoder.encode(prompt)


def test_a_single_prompt_of_any_kind_is_a_list_of_one():
    message = {"role": "user", "content": "x"}
    assert prompt_list("a") == ["a"]
    assert prompt_list([1, 2]) == [[1, 2]]
    assert prompt_list([message]) == [[message]]
    assert prompt_list(["a", [1]]) == ["a", [1]]
    assert prompt_list([]) == []
    assert prompt_list([[]]) == [[]]


@pytest.mark.parametrize("prompts", [5, None, {"role": "user"}, b"hi"])
def test_what_is_no_list_of_prompts_is_a_type_error(prompts):
    with pytest.raises(TypeError, match="prompts is a"):
        prompt_list(prompts)


@pytest.mark.parametrize("prompt", ["caf\udce9", [{"role": "user", "content": "caf\udce9"}], "\ud83d", "a\ude00"])
def test_text_that_is_not_utf_8_is_refused(encoder, prompt):
    with pytest.raises(ValueError, match=r"the prompt is not valid text.*lone surrogate '\\u.*give UTF-8 text"):
        encoder.encode(prompt)


def test_characters_outside_the_basic_plane_are_text(encoder):
    assert encoder.encode("\U0001f600") == tuple("\U0001f600".encode())
