from __future__ import annotations

import time

import pytest
from apsw.unicode import grapheme_iter
from hypothesis import given
from hypothesis import strategies as st

from thread_service.text.chunker import DEFAULT_MAX_CHARS, chunk

PIECES = [
    "word ",
    "Mr. ",
    "end. ",
    "\n",
    "\n\n",
    "\r\n",
    " \t",
    "文。",
    "e\u0301",
    "👩‍💻",
    "\0",
    "\ud800",
    "\u2029",
    "x" * 9,
]


def inked(texts: list[str]) -> str:
    return "".join("".join(texts).split())


@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=80), max_size=4),
    st.integers(1, 40),
)
def test_chunks_are_bounded_and_not_blank_and_lose_nothing_but_white_space(texts: list[str], max_chars: int) -> None:
    chunks = chunk(texts, max_chars)
    assert all(0 < len(piece) <= max_chars and not piece.isspace() for piece in chunks)
    assert inked(chunks) == inked(texts)
    assert chunks == [piece for text in texts for piece in chunk([text], max_chars)]


@given(
    st.lists(st.sampled_from(["e\u0301", "👩‍💻", "🇫🇷", "한", "a", "\u0e19\u0e49\u0e33", "x "]), max_size=80).map(
        "".join
    )
)
def test_clusters_that_fit_are_never_cut(text: str) -> None:
    def clusters(texts: list[str]) -> list[str]:
        return [cluster for text in texts for cluster in grapheme_iter(text) if not cluster.isspace()]

    assert clusters(chunk([text], 12)) == clusters([text])


@pytest.mark.parametrize("text", ["", " ", "\n\n\t", "\u3000" * 5000])
def test_blank_text_gives_no_chunk(text: str) -> None:
    assert chunk([text]) == []


@pytest.mark.parametrize("text", ["hi", "  kept as it is \n\n\n\n so ", "x" * DEFAULT_MAX_CHARS])
def test_text_within_the_limit_is_one_unchanged_chunk(text: str) -> None:
    assert chunk([text]) == [text]


def test_neighbouring_paragraphs_are_merged_while_they_fit() -> None:
    text = "aaaa\n\nbbbb\n \t\n\ncccc\n\ndddddddddd\n\n  e\n"
    assert chunk([text], 16) == ["aaaa\n\nbbbb\n\ncccc", "dddddddddd\n\n  e"]
    assert chunk([text], 15) == ["aaaa\n\nbbbb", "cccc", "dddddddddd\n\n  e"]


def test_texts_are_not_merged_with_each_other() -> None:
    assert chunk(["a", "", "b"]) == ["a", "b"]


def test_a_long_paragraph_is_split_at_sentence_ends() -> None:
    text = "One is here. Two is 3.5 long! Is three? Four etc. and so on."
    assert chunk([text], 29) == ["One is here. Two is 3.5 long!", "Is three?", "Four etc. and so on."]
    assert chunk(["一二三。四五六。七八九。"], 8) == ["一二三。四五六。", "七八九。"]


def test_a_wrapped_line_is_no_sentence_end() -> None:
    text = "First one\nwraps here. Second one\r\nwraps too."
    assert chunk([text], 24) == ["First one\nwraps here.", "Second one\r\nwraps too."]


def test_short_paragraphs_stay_apart_from_the_pieces_of_a_long_one() -> None:
    assert chunk(["Head\n\nOne is here. Two is here.\n\nTail"], 15) == ["Head", "One is here.", "Two is here.", "Tail"]


def test_a_long_sentence_is_split_at_a_line_end_or_at_white_space() -> None:
    assert chunk(["alpha beta gamma delta"], 12) == ["alpha beta", "gamma delta"]
    assert chunk(["row one 1\nrow two 2\nrow three"], 16) == ["row one 1", "row two 2", "row three"]


def test_text_without_white_space_is_split_by_length() -> None:
    assert chunk(["x" * 2500]) == ["x" * 1200, "x" * 1200, "x" * 100]
    assert chunk(["ab " + "x" * 20], 10) == ["ab xxxxxxx", "x" * 10, "xxx"]


def test_hard_splits_keep_grapheme_clusters_whole() -> None:
    assert chunk(["👩‍💻" * 5], 7) == ["👩‍💻👩‍💻", "👩‍💻👩‍💻", "👩‍💻"]
    assert chunk(["e\u0301" * 5], 3) == ["e\u0301"] * 5
    assert chunk(["🇫🇷🇩🇪🇮🇹"], 3) == ["🇫🇷", "🇩🇪", "🇮🇹"]


def test_a_cluster_over_the_limit_is_split_by_code_points() -> None:
    zalgo = "a" + "\u0301" * 25
    assert chunk([zalgo], 10) == ["a" + "\u0301" * 9, "\u0301" * 10, "\u0301" * 6]


@pytest.mark.parametrize("max_chars", [0, -1])
def test_a_limit_below_one_is_refused(max_chars: int) -> None:
    with pytest.raises(ValueError, match="max_chars"):
        chunk(["a"], max_chars)


@pytest.mark.parametrize(
    "unit",
    ["A sentence of plain English words. ", "x", "\u0301", " ", "\n", ".\n", "a. 1 ", "文", "Para.\n\n", "👩‍💻"],
)
def test_time_is_linear_in_hostile_text(unit: str) -> None:
    started = time.process_time()
    chunk([unit * (1_000_000 // len(unit))])
    assert time.process_time() - started < 3.0
