from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thread_service.text.mentions import (
    Mention,
    QueryName,
    find_mentions,
    head,
    heads,
    is_linkable,
    name_key,
    query_names,
)

WORDS = st.sampled_from("abc")
NAMES = st.sets(st.lists(WORDS, min_size=1, max_size=4).map(" ".join), max_size=8)


@pytest.mark.parametrize(
    "spelling",
    [
        "Ada Quill",
        "ada quill",
        "tidal-ledger",
        "Jaguar",
        "iPhone",
        "ipv6",
        "2024",
        "Élan",
        "東京",
        "O'Brien",
    ],
)
def test_distinctive_names_are_linked(spelling: str) -> None:
    assert is_linkable(spelling)


@pytest.mark.parametrize(
    "spelling", ["", " ", "!?", "👍", "\0", "jaguar", "The", "IT", "of the", "The Who", "東", "été"]
)
def test_plain_words_and_stop_words_are_not_linked(spelling: str) -> None:
    assert not is_linkable(spelling)


def test_keys_and_heads() -> None:
    assert name_key("  The “Tidal—Ledger” \0 of ADA ") == "the tidal ledger of ada"
    assert name_key("!?") == ""
    assert head("the tidal ledger of ada") == "the tidal"
    assert head("ada quill") == "ada quill"
    assert head("ada") == "ada"
    assert heads(["a", "b", "c"]) == {"a", "b", "c", "a b", "b c"}
    assert heads([]) == set()


def test_the_leftmost_and_then_the_longest_name_wins() -> None:
    tokens = ["the", "new", "york", "city", "hall", "of", "new", "york"]
    names = {"new york", "new york city", "york city hall", "city hall", "hall", "york"}
    assert find_mentions(tokens, names) == [
        Mention(1, 4, "new york city"),
        Mention(4, 5, "hall"),
        Mention(6, 8, "new york"),
    ]


def test_a_name_longer_than_the_rest_of_the_text_is_not_found() -> None:
    assert find_mentions(["new", "york"], {"new york city", "new york"}) == [Mention(0, 2, "new york")]
    assert find_mentions(["new"], {"new york", "", "ne"}) == []
    assert find_mentions([], {"a"}) == find_mentions(["a"], set()) == []


@given(st.lists(WORDS, max_size=12), NAMES)
def test_mentions_equal_those_of_a_plain_scan(tokens: list[str], names: set[str]) -> None:
    expected, at = [], 0
    while at < len(tokens):
        ends = [end for end in range(at + 1, len(tokens) + 1) if " ".join(tokens[at:end]) in names]
        if ends:
            expected.append(Mention(at, ends[-1], " ".join(tokens[at : ends[-1]])))
        at = ends[-1] if ends else at + 1
    assert find_mentions(tokens, names) == expected
    assert all(head(mention.name) in heads(tokens) for mention in expected)


def test_mentions_in_a_long_text_take_linear_time() -> None:
    tokens = [f"w{number % 1000}" for number in range(100_000)]
    names = [f"w{first} w{first + 1} w{last}" for first in range(0, 900, 10) for last in range(500)]
    started = time.process_time()
    assert len(find_mentions(tokens, names)) == 5000
    assert time.process_time() - started < 3.0


def test_names_that_nearly_match_everywhere_cost_little() -> None:
    names = [" ".join(["a"] * length + ["b"]) for length in range(1, 64)]
    started = time.process_time()
    assert find_mentions(["a"] * 50_000, names) == []
    assert time.process_time() - started < 3.0
    assert is_linkable("a " * 63 + "b")
    assert not is_linkable("a " * 64 + "b")


def test_names_of_several_words_weigh_most_in_a_query() -> None:
    names = {"ada quill", "jaguar", "ipv6", "ledger"}
    assert query_names("Did ADA QUILL’s ledger list a Jaguar over ipv6?", names) == [
        QueryName("ada quill", 1.0),
        QueryName("ledger", 0.2),
        QueryName("jaguar", 0.7),
        QueryName("ipv6", 0.7),
    ]


def test_a_longer_name_takes_its_words_wherever_it_starts() -> None:
    names = {"new york", "york city hall", "york", "hall", "new"}
    assert query_names("new York city hall", names) == [QueryName("new", 0.2), QueryName("york city hall", 1.0)]
    assert query_names("New York, York", names) == [QueryName("new york", 1.0), QueryName("york", 0.7)]


def test_a_name_that_occurs_twice_has_its_greatest_weight_at_its_first_place() -> None:
    assert query_names("jaguar or ada: Jaguar", {"ada", "jaguar"}) == [QueryName("jaguar", 0.7), QueryName("ada", 0.2)]


def test_stop_words_are_never_names_of_a_query() -> None:
    assert query_names("The Who, or what is IT to be", {"the", "who", "the who", "it", "to be", ""}) == []
    assert query_names("the who live", {"the who live"}) == [QueryName("the who live", 1.0)]


def test_names_in_scripts_without_spaces_are_found() -> None:
    assert query_names("今天去東京塔", {"東 京", "京 塔"}) == [QueryName("東 京", 1.0)]


@given(st.text(), NAMES)
def test_any_query_is_answered_the_same_way_whatever_the_order_of_names(query: str, names: set[str]) -> None:
    assert query_names(query, sorted(names)) == query_names(query, sorted(names, reverse=True))
