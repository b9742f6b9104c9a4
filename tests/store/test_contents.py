"""Content is stored once and lives as long as a document points to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pytest
from opened_store import Opened, opened_store

from thread_service.store import contents, documents, registry
from thread_service.store.changes import Changes
from thread_service.store.words import WordIndex


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path) as store:
        yield store


def test_new_content_waits_and_keeps_brought_vectors_until_it_is_ready(store: Opened) -> None:
    vector = np.arange(16, dtype=np.float32)
    key = store.write(lambda c, _: contents.create(c, b"digest", "code", ["x", "y"], [None, vector]))
    assert store.rows("SELECT ordinal, text, brought FROM partitions") == [(0, "x", 0), (1, "y", 1)]
    assert store.rows("SELECT partition_key, vector FROM brought_vectors") == [(2, vector.tobytes())]
    with store.store.read() as connection:
        assert contents.find(connection, b"digest") == (key, "pending")
        assert contents.find(connection, b"other") is None
        assert contents.partition_range(connection, key) == (1, 2)
    assert store.write(lambda c, changes: contents.mark_ready(c, key, changes))
    assert store.rows("SELECT * FROM brought_vectors") == []
    assert not store.write(lambda c, changes: contents.mark_ready(c, key, changes))
    assert store.column("SELECT count(*) FROM words") == [2]


def test_a_brought_vector_that_waits_lives_as_long_as_a_document_points_to_its_content(store: Opened) -> None:
    def file(connection: apsw.Connection, changes: Changes) -> None:
        content = contents.create(connection, b"digest", "text", ["x"], [np.ones(16, np.float32)])
        for owner in ("ann", "ben"):
            said = documents.Said(content, None, b"", None, 1)
            documents.create(connection, registry.ensure_owner(connection, owner), "a", said)

    store.write(file)
    store.remove("ann", "a")
    assert store.column("SELECT partition_key FROM brought_vectors") == [1]
    store.remove("ben", "a")
    assert store.rows("SELECT * FROM brought_vectors") == []
    store.write(file)
    assert store.column("SELECT partition_key FROM brought_vectors") == [2]
    store.store.clear(lambda connection: None)
    assert store.rows("SELECT * FROM brought_vectors") == []


def test_only_pending_content_fails_and_only_failed_content_is_tried_again(store: Opened) -> None:
    key = store.write(lambda c, _: contents.create(c, b"digest", "text", [" "], [None]))
    store.write(lambda c, _: contents.mark_failed(c, key, "blank"))
    assert store.rows("SELECT state, failure FROM contents") == [("failed", "blank")]
    assert not store.write(lambda c, changes: contents.mark_ready(c, key, changes))
    store.write(lambda c, _: contents.retry(c, key))
    assert store.rows("SELECT state, failure FROM contents") == [("pending", None)]
    assert store.write(lambda c, changes: contents.mark_ready(c, key, changes))
    store.write(lambda c, _: contents.mark_failed(c, key, "too late"))
    store.write(lambda c, _: contents.retry(c, key))
    assert store.rows("SELECT state, failure FROM contents") == [("ready", None)]


def test_readers_of_content_and_of_its_words_follow_the_documents(store: Opened) -> None:
    words = WordIndex()

    def found(*tokens: str) -> list[int]:
        with store.store.read() as connection:
            return list(words.best(connection, store.store.resident, "heron", tokens, None, 10))

    store.file("ann", "a", "the heron")
    assert store.column("SELECT readers FROM contents") == ["mtext o1"]
    store.file("ben", "b", "the heron", access="available")
    assert store.column("SELECT readers FROM contents") == ["a mtext o1 o2"]
    assert (found("o1"), found("a"), found("o2"), found("o3"), found()) == ([1], [1], [1], [], [])
    store.remove("ben", "b")
    assert store.column("SELECT readers FROM contents") == ["mtext o1"]
    assert (found("o1"), found("a"), found("o2")) == ([1], [], [])


def test_content_nobody_points_to_goes_with_its_rows_words_and_vectors(store: Opened) -> None:
    rows = np.eye(2, 16, dtype=np.float32)
    store.file("ann", "a", "one", "two", rows=rows)
    store.file("ann", "b", "one", "two")
    table = store.store.resident.table("model", 16)
    assert table is not None
    store.remove("ann", "a")
    assert table.table.live_count == 2
    store.remove("ann", "b")
    for name in ("contents", "partitions", "words", "vectors"):
        assert store.column(f"SELECT count(*) FROM {name}") == [0]
    assert table.table.live_count == 0
    assert store.store.resident.contents_of_partitions([1, 2]).tolist() == [-1, -1]
    assert store.file("ann", "a", "one", "two") == 3  # keys never come back
    assert store.column("SELECT partition_key FROM partitions") == [3, 4]
