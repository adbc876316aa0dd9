import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, sentencepiece

from polybatch.engine.detokenizer import Detokenizer, TokenTexts

PIECES = ("\u2581Hello", "\u2581", "\u2581\u2581", "world", "!", "\u2581there", "a")


def deltas(tokenizer, ids):
    detokenizer = Detokenizer(TokenTexts(tokenizer))
    return [*(detokenizer.add(token) for token in ids), detokenizer.finish()]


def one_shot(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_an_emoji_of_four_byte_tokens_appears_whole():
    tokenizer = byte_level()
    ids = list("hi \U0001f600!".encode())
    out = deltas(tokenizer, ids)
    assert out == ["h", "i", " ", "", "", "", "\U0001f600", "!", ""]


def test_text_before_an_incomplete_character_is_not_delayed():
    tokenizer = byte_level("ab")
    assert deltas(tokenizer, [256, 0xC3, 0xA9])[:3] == ["ab", "", "é"]


def test_an_emoji_in_byte_fallback_tokens_appears_whole():
    tokenizer = sentencepiece(*PIECES)
    ids = [256, 257, *"\U0001f600".encode(), 260]
    out = deltas(tokenizer, ids)
    assert "".join(out) == "Hello \U0001f600!"
    assert not any("\ufffd" in text for text in out)


def test_only_the_first_space_is_stripped():
    tokenizer = sentencepiece(*PIECES)
    assert deltas(tokenizer, [256, 261, 257, 259, 258, 262]) == ["Hello", " there", " ", "world", "  ", "a", ""]


def test_a_long_run_of_byte_tokens_does_not_hold_the_text_for_ever():
    tokenizer = sentencepiece(*PIECES)
    out = deltas(tokenizer, list("สวัสดีครับ สวัสดีครับ".encode()))
    assert "".join(out) == "สวัสดีครับ สวัสดีครับ"
    assert any(out[:-1])


def test_a_sequence_that_ends_inside_a_character_decodes_as_the_tokenizer_does():
    tokenizer = byte_level()
    ids = [ord("a"), 0xF0, 0x9F]
    out = deltas(tokenizer, ids)
    assert out == ["a", "", "", "\ufffd"]
    assert "".join(out) == one_shot(tokenizer, ids)


@pytest.mark.parametrize("name", ["<s>", "</s>", "<|reserved|>"])
def test_special_tokens_are_left_out(name):
    tokenizer = byte_level()
    special = tokenizer.convert_tokens_to_ids(name)
    assert deltas(tokenizer, [special, ord("a"), special, ord("b"), special]) == ["", "a", "", "b", "", ""]


@given(st.lists(st.integers(0, 260), max_size=40))
def test_byte_level_deltas_add_up_to_the_one_shot_decode(ids):
    tokenizer = byte_level("ab", "\u00e9\u00e9")
    assert "".join(deltas(tokenizer, ids)) == one_shot(tokenizer, ids)


# Runs of byte tokens are shorter than the bound up to which they are held.
@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(0, 255), max_size=6).map(lambda run: [*run, 256]), st.lists(st.integers(256, 265))
        )
    )
)
def test_sentencepiece_deltas_add_up_to_the_one_shot_decode(runs):
    tokenizer = sentencepiece(*PIECES)
    ids = [token for run in runs for token in run]
    assert "".join(deltas(tokenizer, ids)) == one_shot(tokenizer, ids)


@given(st.text(max_size=30))
def test_no_delta_of_valid_text_shows_a_replacement_character(text):
    text = text.replace("\ufffd", "")
    for tokenizer, ids in ((byte_level(), list(text.encode())), (sentencepiece(*PIECES), list(text.encode()))):
        out = deltas(tokenizer, ids)
        assert not any("\ufffd" in delta for delta in out)
        assert "".join(out) == one_shot(tokenizer, ids)


def test_a_step_decodes_a_window_and_not_the_whole_text():
    tokenizer = byte_level()
    lengths = []

    class Counting:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def decode(self, ids, **options):
            lengths.append(len(ids))
            return tokenizer.decode(ids, **options)

    assert "".join(deltas(Counting(), list(b"abcdefgh" * 50))) == "abcdefgh" * 50
    assert max(lengths) <= 2


def test_a_tokenizer_with_a_decoder_of_its_own_is_asked():
    class Shouting(type(byte_level())):
        def _decode(self, token_ids, **options):
            return super()._decode(token_ids, **options).upper()

    tokenizer = Shouting(tokenizer_object=byte_level("ab").backend_tokenizer)
    assert "".join(deltas(tokenizer, [256, ord("c")])) == "ABC"
