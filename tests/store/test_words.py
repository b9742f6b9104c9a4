"""The lexical channel: what is looked for, BM25, and the filters inside the index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from opened_store import Opened, opened_store

from thread_service.store import words
from thread_service.store.words import WordIndex


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path) as store:
        yield store


def best(store: Opened, query: str, *tokens: str, media: str | None = None, limit: int = 10) -> dict[int, float]:
    with store.store.read() as connection:
        return WordIndex().best(connection, query, tokens or ("o1",), media, limit)


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("Who keeps the Ledger of the ledger?", ["keeps", "ledger"]),
        ("the of and", []),
        ("", []),
        ("東京都", ["東 京", "京 都"]),
        ("私", ["私"]),
        ("東京 tower 塔", ["東 京", "tower", "塔"]),
        ('X-7734 "quoted" AND (near)', ["x", "7734", "quoted"]),
    ],
)
def test_terms_are_words_without_stop_words_and_pairs_of_spaceless_characters(query: str, terms: list[str]) -> None:
    assert words.terms(query) == terms


def test_no_query_asks_for_more_terms_than_the_bound() -> None:
    assert len(words.terms(" ".join(f"w{n}" for n in range(1_000)))) == words.TERMS_MAX


def test_the_score_is_bm25(store: Opened) -> None:
    texts = ["heron heron creek", "heron in a long sentence about boats and tides", "boats", "tides", "creek"]
    for number, text in enumerate(texts):
        store.file("ann", str(number), text)
    lengths = [len(text.split()) + 2 for text in texts]  # the readers count into a row's length
    average = sum(lengths) / len(lengths)
    idf = math.log((5 - 2 + 0.5) / (2 + 0.5))
    expected = {
        number + 1: idf * count * 2.2 / (count + 1.2 * (1 - 0.75 + 0.75 * lengths[number] / average))
        for number, count in ((0, 2), (1, 1))
    }
    assert best(store, "Heron?") == pytest.approx(expected)
    assert list(best(store, "heron", limit=1)) == [1]


def test_inflected_forms_are_found(store: Opened) -> None:
    store.file("ann", "a", "The clocks were running.")
    store.file("ann", "b", "Nothing.")
    store.file("ann", "c", "Nowhere.")
    assert list(best(store, "run a clock")) == [1]


def test_readers_and_media_type_are_filtered_inside_the_index(store: Opened) -> None:
    for number in range(20):
        store.file("ann", f"a{number}", f"heron {number}")
    for number in range(20):
        store.file("ben", f"b{number}", f"filler {number}")
    store.file("ben", "b", "heron of ben")
    store.file("ben", "code", "heron of code", media_type="code", access="available")
    assert set(best(store, "heron", "o2", limit=3)) == {41, 42}
    assert set(best(store, "heron", "a")) == {42}
    assert set(best(store, "heron", "o2", media="mtext")) == {41}
    assert set(best(store, "heron", "o1", "a", limit=50)) == {*range(1, 21), 42}
    assert best(store, "heron", "o9") == {}
    assert best(store, "o2 mtext a", "o1") == {}  # reader tokens are not words


def test_a_very_common_term_is_left_out_beside_a_rarer_one(store: Opened) -> None:
    many = [f"boat {number}" for number in range(150)]
    store.file("ann", "many", *many)
    store.file("ann", "one", "heron on a boat")
    assert list(best(store, "heron boat", limit=200)) == [151]
    assert len(best(store, "boat 7", limit=200)) == 1


def test_a_term_unknown_at_first_is_looked_for_again(store: Opened) -> None:
    index = WordIndex()

    def found() -> list[int]:
        with store.store.read() as connection:
            return list(index.best(connection, "heron", ("o1",), None, 5))

    store.file("ann", "a", "boats")
    assert found() == []
    store.file("ann", "b", "heron")
    store.file("ann", "c", "tides")
    assert found() == [2]


def test_no_number_of_better_rows_of_others_hides_the_readable_ones(store: Opened) -> None:
    store.file("ann", "many", *["heron heron"] * 450)
    for number in range(5):
        store.file("ben", f"b{number}", f"a long sentence that names the heron once, number {number}")
    with store.store.read() as connection:
        # Most documents are ben's, so rows are ranked before they are tested.
        found = WordIndex().best(connection, "heron", ("o2",), None, 200, store.store.resident.readable_share(("o2",)))
        filtered_inside = WordIndex().best(connection, "heron", ("o2",), None, 200)
    assert found.keys() == {*range(451, 456)}
    assert found == pytest.approx(filtered_inside)


def test_remembered_scores_of_a_row_that_is_gone_or_not_there_yet_do_no_harm(store: Opened) -> None:
    for owner, id in (("ann", "a"), ("ann", "b"), ("ben", "c")):
        store.file(owner, id, f"heron {id}")
    index = WordIndex()

    def found() -> set[int]:
        with store.store.read() as connection:
            # The version stands still between a commit and its publication.
            return {*index.best(connection, "heron", ("o1",), None, 9, readable_share=0.6, version=1)}

    assert found() == {1, 2}
    store.remove("ann", "a")
    assert found() == {2}
