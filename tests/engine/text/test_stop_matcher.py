"""The automaton against a search that looks at the whole text at every character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.stop_matcher import StopMatcher


def first_match(text: str, stops: list[str], honoured: list[bool]) -> tuple[int, str] | None:
    """(end, stop) of the match that completes first, the longest of those completing there."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches and honoured[end - 1]:
            return end, max(matches, key=len)
    return None


def held_back(text: str, stops: list[str]) -> str:
    """The longest end of the text that is a true prefix of a stop string."""
    prefixes = {stop[:size] for stop in stops for size in range(1, len(stop))}
    ends = [text[start:] for start in range(len(text))]
    return next((end for end in ends if end in prefixes), "")


# Two letters only: overlaps, nested stop strings and near misses are the rule.
words = st.text(alphabet="ab", max_size=6)
stop_strings = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4)
text_pieces = st.lists(st.tuples(words, st.booleans()), max_size=8)


@settings(deadline=None)
@given(stops=stop_strings, pieces=text_pieces, include=st.booleans())
def test_agrees_with_a_naive_search_at_every_piece(stops, pieces, include):
    text = "".join(piece for piece, _ in pieces)
    match = first_match(text, stops, [honour for piece, honour in pieces for _ in piece])
    matcher = StopMatcher(stops, include_stop=include)
    seen = sent = ""
    for piece, honour in pieces:
        sent += matcher.feed(piece, honour=honour)
        seen += piece
        if matcher.matched is not None:
            break
        assert seen == sent + held_back(seen, stops)
    if match is None:
        assert matcher.matched is None
        assert sent + matcher.flush() == text
    else:
        end, stop = match
        assert matcher.matched == stop
        assert sent == text[: end if include else end - len(stop)]
        assert matcher.flush() == ""


def test_the_longest_of_those_completing_together_wins():
    matcher = StopMatcher(["d", "bcd", "cd"])
    assert matcher.feed("abcde") == "a"
    assert matcher.matched == "bcd"


def test_the_match_that_completes_first_wins_even_if_it_begins_later():
    matcher = StopMatcher(["abcdef", "cd"])
    assert matcher.feed("abcdef") == "ab"
    assert matcher.matched == "cd"


@pytest.mark.parametrize("text", ["hello world", "<<", "<<<END-OF-", "a<<<b"])
def test_only_a_true_prefix_waits(text):
    stop = "<<<END-OF-ANSWER>>>"
    matcher = StopMatcher([stop])
    sent = "".join(matcher.feed(char) for char in text)
    assert sent == text.removesuffix(held_back(text, [stop]))


def test_characters_outside_the_basic_plane_match():
    matcher = StopMatcher(["🙂!"])
    assert [matcher.feed(char) for char in "a🙂🙂!"] == ["a", "", "🙂", ""]
    assert matcher.matched == "🙂!"
