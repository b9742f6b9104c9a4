"""The lexical channel: what is looked for, BM25, and the filters inside the index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from opened_store import Opened, opened_store

from thread_service.store import words
from thread_service.store.lengths import LENGTH_MAX
from thread_service.store.words import WordIndex


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path) as store:
        yield store


def best(store: Opened, query: str, *tokens: str, media: str | None = None, limit: int = 10) -> dict[int, float]:
    with store.store.read() as connection:
        return WordIndex().best(connection, store.store.resident, query, tokens or ("o1",), media, limit)


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("Who keeps the Ledger of the ledger?", ["keeps", "ledger"]),
        ("the of and", []),
        ("", []),
        ("東京都", ["東京", "京都"]),
        ("私", ["私"]),
        ("東京 tower 塔", ["東京", "tower", "塔"]),
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
            return list(index.best(connection, store.store.resident, "heron", ("o1",), None, 5))

    store.file("ann", "a", "boats")
    assert found() == []
    store.file("ann", "b", "heron")
    store.file("ann", "c", "tides")
    assert found() == [2]


def test_remembered_lists_give_the_same_scores_and_are_forgotten_when_something_is_filed(store: Opened) -> None:
    resident, index = store.store.resident, WordIndex()

    def remembering(query: str) -> dict[int, float]:
        version = resident.words_version
        with store.store.read() as connection:
            return index.best(connection, resident, query, ("o1",), None, 10, version)

    for number in range(4):
        store.file("ann", str(number), f"heron number {number}" if number % 2 else "creek")
    first = remembering("heron creek")
    assert remembering("heron creek") == remembering("creek heron") == first == best(store, "heron creek")
    store.file("ann", "new", "one more heron")
    assert remembering("heron creek") == best(store, "heron creek")
    assert len(remembering("heron")) == 3


def test_remembered_lists_of_what_is_gone_or_not_to_be_read_do_no_harm(store: Opened) -> None:
    for owner, id in (("ann", "a"), ("ann", "b"), ("ben", "c")):
        store.file(owner, id, f"heron {id}")
    index = WordIndex()

    def found() -> set[int]:
        with store.store.read() as connection:
            # The version stands still between a commit and its publication.
            return {*index.best(connection, store.store.resident, "heron", ("o1",), None, 9, 1)}

    assert found() == {1, 2}
    store.remove("ann", "a")
    assert found() == {2}


def test_remembered_lists_stay_below_their_bound(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "SCORES_MAX", 3)
    for number in range(3):
        store.file("ann", str(number), f"heron creek tide{number}")
    resident, index = store.store.resident, WordIndex()
    for query in ("heron", "creek", "tide1 tide2", "heron"):
        with store.store.read() as connection:
            found = index.best(connection, resident, query, ("o1",), None, 10, resident.words_version)
        assert found == best(store, query)
        assert sum(len(scores.keys) for _, scores in index._scores.values()) == index._remembered <= 3


def test_no_number_of_better_rows_of_others_hides_the_readable_ones(store: Opened) -> None:
    store.file("ann", "many", *["heron heron"] * 450)
    for number in range(5):
        store.file("ben", f"b{number}", f"a long sentence that names the heron once, number {number}")
    assert best(store, "heron", "o2", limit=200).keys() == {*range(451, 456)}


@pytest.fixture
def crowd(store: Opened) -> Opened:
    """Ann's 400 partitions and, between them, ten of Ben's; three words in a fifth of all or more. One is of code."""

    def text(number: int) -> str:
        held = [
            name
            for place, name in enumerate(("heron", "creek", "ledger"))
            if number % (3 + place) == 0
            for _ in range(1 + number % 4)
        ]
        return " ".join([*held, *(f"w{number}" for _ in range(1 + number % 17))])

    for start in range(0, 400, 40):
        store.file("ann", f"a{start}", *(text(number) for number in range(start, start + 40)), access="available")
        store.file("ben", f"b{start}", text(60 * (start + 1_001)))
    store.file("ben", "code", text(60), media_type="code")
    return store


@pytest.mark.parametrize("tokens", [("o2",), ("o2", "a"), ("o1",)])
@pytest.mark.parametrize("media", [None, "mtext", "mcode"])
def test_every_way_of_looking_up_gives_the_same_scores(
    crowd: Opened, monkeypatch: pytest.MonkeyPatch, tokens: tuple[str, ...], media: str | None
) -> None:
    query = "heron creek ledger w120"
    monkeypatch.setattr(words, "COMMON_SHARE", 1.0)
    by_lists = best(crowd, query, *tokens, media=media, limit=1_000)
    assert len(by_lists) > 5 or media == "mcode"
    monkeypatch.setattr(words, "PLACES_MAX", 3)  # FTS5's own ranking
    assert best(crowd, query, *tokens, media=media, limit=1_000) == pytest.approx(by_lists)
    monkeypatch.setattr(words, "_within", lambda rare_first, _, limit: rare_first if limit > words.MATCHES_MAX else ())
    assert best(crowd, query, *tokens, media=media, limit=1_000) == pytest.approx(by_lists)


def test_a_caller_of_few_partitions_is_answered_in_full_however_frequent_the_words_are(
    crowd: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "COMMON_SHARE", 1.0)
    in_full = best(crowd, "heron creek", "o2", limit=50)
    assert len(in_full) == 11
    monkeypatch.setattr(words, "MATCHES_MAX", 20)
    # How many partitions hold a word is estimated beyond the bound.
    assert best(crowd, "heron creek", "o2", limit=50) == pytest.approx(in_full, rel=0.02)


def test_of_frequent_words_alone_the_newest_partitions_that_hold_all_of_them_are_ranked(
    crowd: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "COMMON_SHARE", 1.0)
    either = best(crowd, "heron creek", "o1", "o2", limit=1_000)
    both = crowd.column("SELECT partition_key FROM partitions WHERE text LIKE '%heron%creek%' ORDER BY 1")
    monkeypatch.setattr(words, "MATCHES_MAX", 20)
    monkeypatch.setattr(words, "NEWEST_MAX", 5)
    found = best(crowd, "heron creek", "o1", "o2")
    assert sorted(found) == both[-5:]
    assert found == pytest.approx({key: either[key] for key in found}, rel=0.02)


@pytest.mark.parametrize("readable_min", [words.READABLE_MIN, 0.0])
def test_of_frequent_words_what_others_filed_last_does_not_hide_what_may_be_read(
    store: Opened, monkeypatch: pytest.MonkeyPatch, readable_min: float
) -> None:
    """Without looking at how much may be read, nothing is found."""
    store.file("ben", "b", *["heron creek"] * 60)
    store.file("ann", "a", *["heron creek"] * 100)
    monkeypatch.setattr(words, "COMMON_SHARE", 1.0)
    monkeypatch.setattr(words, "MATCHES_MAX", 20)
    monkeypatch.setattr(words, "NEWEST_MAX", 50)
    monkeypatch.setattr(words, "READABLE_MIN", readable_min)
    found = best(store, "heron creek", "o1", limit=50)
    assert sorted(found) == ([*range(11, 61)] if readable_min else [])


def test_partitions_of_others_that_hold_all_frequent_words_do_not_end_the_search(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.file("ben", "b", *["heron ledger", "creek", "creek"] * 20)
    store.file("ann", "a", *["heron creek ledger"] * 20)
    monkeypatch.setattr(words, "COMMON_SHARE", 1.0)
    monkeypatch.setattr(words, "MATCHES_MAX", 20)
    assert sorted(best(store, "heron creek ledger", "o1", limit=100)) == [*range(1, 61, 3)]


def test_no_lookup_goes_further_back_than_its_bound(crowd: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "COMMON_SHARE", 1.0)
    monkeypatch.setattr(words, "MATCHES_MAX", 20)
    monkeypatch.setattr(words, "STEPS_MAX", 30)
    found = best(crowd, "heron", "o1", limit=1_000)
    assert found
    assert min(found) > 0.6 * crowd.column("SELECT max(partition_key) FROM partitions")[0]


def test_scores_are_the_same_after_a_restart(tmp_path: Path) -> None:
    with opened_store(tmp_path) as store:
        store.file("ann", "a", "heron", "", "heron " * 200, "heron creek " * 20_000)
        store.file("ben", "b", "heron creek", access="available")
        store.file("ann", "gone", "heron gone")
        store.remove("ann", "gone")
        before = best(store, "heron creek", "o1", "a")
        lengths = store.store.resident.lengths
        assert [lengths.count, *lengths.get(range(1, 7)).tolist()] == [5, 3, 2, 202, LENGTH_MAX, 5, 0]
        mean = lengths.mean
    with opened_store(tmp_path) as store:
        assert store.store.resident.lengths.mean == mean
        assert best(store, "heron creek", "o1", "a") == before
        assert len(before) == 4
