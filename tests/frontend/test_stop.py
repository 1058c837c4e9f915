"""Stop strings: the same outcome however the text is cut, nothing shown that is not final."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.frontend.stop import StopStrings

TEXT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4, unique=True)


def first_match(text: str, stops: list[str]) -> str | None:
    """By definition: the stop string that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[:end][: -len(max(found, key=len))] + "|" + max(found, key=len)
    return None


def run(pieces: list[str], stops: list[str], include: bool) -> tuple[list[str], str | None]:
    """Shown pieces, until a match or the end, and the match."""
    matcher = StopStrings(stops, include=include)
    shown = []
    for piece in pieces:
        shown.append(matcher.append(piece))
        if matcher.matched is not None:
            return shown, matcher.matched
    shown.append(matcher.finish())
    return shown, None


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(TEXT, STOPS, st.booleans(), st.lists(st.integers(0, 30)))
def test_any_cut_gives_the_definition(text: str, stops: list[str], include: bool, places: list[int]) -> None:
    shown, matched = run(cut(text, places), stops, include)
    expected = first_match(text, stops)
    if expected is None:
        assert ("".join(shown), matched) == (text, None)
    else:
        before, stop = expected.split("|")
        assert ("".join(shown), matched) == (before + stop * include, stop)


@given(TEXT, STOPS)
def test_no_more_than_needed_is_held_back(text: str, stops: list[str]) -> None:
    """After each character everything is shown but what may still become a stop string."""
    matcher = StopStrings(stops, include=False)
    shown = ""
    for end, char in enumerate(text, 1):
        shown += matcher.append(char)
        if matcher.matched is not None:
            return
        pending = text[len(shown) : end]
        assert len(pending) < max(map(len, stops))
        assert not pending or any(stop.startswith(pending) for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "matched"),
    [
        (["go E", "ND now"], ["END"], ["go ", ""], "END"),
        (["go E", "at"], ["END"], ["go ", "Eat", ""], None),
        (["EEN", "D"], ["END"], ["E", ""], "END"),
        (["xaab", "y"], ["aab", "b"], ["x"], "aab"),
        (["abc"], ["abc", "b"], ["a"], "b"),
        (["a", "<", "/thi", "nk>"], ["</think>"], ["a", "", "", ""], "</think>"),
        (["E", "N"], ["END"], ["", "", "EN"], None),
        (["🙂E", "ND"], ["🙂END"], ["", ""], "🙂END"),
    ],
)
def test_examples(pieces: list[str], stops: list[str], shown: list[str], matched: str | None) -> None:
    assert run(pieces, stops, include=False) == (shown, matched)


def test_included_stop_strings_hold_nothing_back() -> None:
    assert run(["go E", "ND now"], ["END"], include=True) == (["go E", "ND"], "END")


def test_a_match_that_may_not_stop_is_passed_over_but_one_that_ends_later_counts() -> None:
    stops = StopStrings(["END"], include=False)
    assert stops.append("xEND", may_stop=False) + stops.append("yEN", may_stop=False) == "xENDy"
    assert (stops.append("D"), stops.matched) == ("", "END")
    overlapping = StopStrings(["abab"], include=False)
    assert overlapping.append("abab", may_stop=False) == "ab"
    assert (overlapping.append("ab"), overlapping.matched) == ("", "abab")


def test_a_long_repetitive_stop_string_is_held_back_exactly() -> None:
    pattern = "a" * 1000 + "b"
    stops = StopStrings([pattern], include=False)
    text = "a" * 5000
    assert stops.append(text) == "a" * 4000
    assert stops.append("b") == ""
    assert stops.matched == pattern
