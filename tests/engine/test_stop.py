import itertools

from hypothesis import given
from hypothesis import strategies as st

from polybatch.engine.stop import StopMatcher


def shown(stops, pieces):
    matcher = StopMatcher(stops)
    out = [matcher.feed(piece) for piece in pieces]
    return [*out, "" if matcher.stopped else matcher.finish()], matcher.stopped


def test_a_stop_string_across_tokens_is_never_shown():
    assert shown(["a be"], ["al", "ph", "a b", "et"]) == (["al", "ph", "", "", ""], True)


def test_a_stop_that_never_completes_loses_no_text():
    assert shown(["a be"], ["al", "ph", "a b", "ut"]) == (["al", "ph", "", "a but", ""], False)
    assert shown(["a be"], ["al", "ph", "a b"]) == (["al", "ph", "", "a b"], False)


def test_nothing_follows_a_stop():
    matcher = StopMatcher(["x"])
    assert matcher.feed("axb") == "a"
    assert matcher.feed("more") == ""


def test_without_stop_strings_text_passes_through():
    assert shown([], ["a", "b"]) == (["a", "b", ""], False)


def test_the_stop_completed_first_wins():
    assert shown(["abcd", "bc"], ["abcd"]) == (["a", ""], True)
    assert shown(["bc", "abc"], ["a", "b", "c"]) == (["", "", "", ""], True)


def test_a_repeated_beginning_is_still_found():
    assert shown(["aab"], ["a", "a", "a", "b"])[0] == ["", "", "a", "", ""]


TEXT = st.text("ab", max_size=20)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


@given(TEXT, STOPS, st.lists(st.integers(0, 20)))
def test_the_result_does_not_depend_on_the_pieces(text, stops, cuts):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    by_piece, stopped = shown(stops, pieces)
    by_char, stopped_by_char = shown(stops, list(text))
    assert ("".join(by_piece), stopped) == ("".join(by_char), stopped_by_char)
    assert stopped == any(stop in text for stop in stops)
    assert "".join(by_piece) == text or stopped
    assert not any(stop in "".join(by_piece) for stop in stops)
