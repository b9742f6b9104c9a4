"""The memory a search reads: row sets by reader token, replaced rows, and the same state after loading."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from opened_store import opened_store

from thread_kernels import create_engine
from thread_service.store import graph
from thread_service.store.changes import Changes, ContentState, DocumentState, NewVectors, Purpose
from thread_service.store.files import OsFiles
from thread_service.store.places import packed
from thread_service.store.reader_sets import ReaderSets
from thread_service.store.resident import Resident, ResidentTable
from thread_service.store.segments import Segments

WIDTH = 16


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[Segments]:
    found = Segments(tmp_path, OsFiles())
    found.open({})
    yield found
    found.close()


@pytest.fixture
def resident(segments: Segments) -> Resident:
    return Resident(create_engine("cpu"), segments)


@pytest.fixture
def table(segments: Segments) -> ResidentTable:
    return ResidentTable(create_engine("cpu"), segments, WIDTH)


def rows(*firsts: float) -> np.ndarray:
    found = np.zeros((len(firsts), WIDTH), np.float32)
    found[:, 0] = firsts
    return found


def append(table: ResidentTable, segments: Segments, subjects: list[int], vectors: np.ndarray) -> None:
    table.append(subjects, vectors, packed(segments.append(vectors)))


def new(segments: Segments, purpose: Purpose, subjects: list[int], vectors: np.ndarray) -> NewVectors:
    return NewVectors(purpose, subjects, vectors, segments.append(vectors))


def seen(table: ResidentTable, *tokens: str, media: str | None = None) -> list[int]:
    [hits] = table.table.search(rows(0), 100, [table.filter(tokens, media)])
    return sorted(table.subjects_of(hits.rows).tolist())


def test_readers_change_by_what_differs() -> None:
    sets = ReaderSets()

    def change(members: list[int], stored: str) -> list[dict[str, list[int]]]:
        return [
            {token: sorted(found.tolist()) for token, found in part.items()} for part in sets.change(members, stored)
        ]

    assert change([1, 2], "a o1") == [{}, {"a": [1, 2], "o1": [1, 2]}]
    assert change([2, 3], "o1 o2") == [{"a": [2]}, {"o2": [2, 3], "o1": [3]}]
    assert change([1, 2, 3], "o1 o2") == [{"a": [1]}, {"o2": [1]}]
    assert change([1], "") == [{"o1": [1], "o2": [1]}, {}]
    assert change([1], "") == [{}, {}]
    assert change([], "o1") == [{}, {}]


def test_new_rows_are_read_by_nobody_until_their_readers_are_known(table: ResidentTable, segments: Segments) -> None:
    append(table, segments, [7, 9], rows(1, 2))
    assert seen(table, "o1", "a") == []
    table.set_readers([7, 8], "mtext o1")
    table.set_readers([9], "a mcode o2")
    assert (seen(table, "o1"), seen(table, "o1", "a"), seen(table)) == ([7], [7, 9], [])
    assert (seen(table, "o1", "o2", media="mcode"), seen(table, "o1", media="mcode")) == ([9], [])
    assert table.rows_of([9, 8, 7]).tolist() == [1, 0]
    assert table.having(table.rows_of([7, 9]), "mcode").tolist() == [1]


def test_a_subject_that_gets_another_row_is_found_by_that_one_only(table: ResidentTable, segments: Segments) -> None:
    append(table, segments, [7], rows(1))
    table.set_readers([7], "o1")
    append(table, segments, [7], rows(5))
    assert seen(table, "o1") == []
    table.set_readers([7], "o1")
    [hits] = table.table.search(rows(5), 10, [table.filter(["o1"])])
    assert (hits.distances.tolist(), table.table.live_count) == ([0], 1)
    table.remove([7, 8])
    assert (seen(table, "o1"), table.table.live_count) == ([], 0)


def test_documents_are_counted_and_found_by_their_readers(resident: Resident) -> None:
    resident.publish(Changes(documents={1: DocumentState("a o1", 10), 2: DocumentState("o2", 10)}))
    assert (resident.document_count, list(resident.documents(["o1", "o2"]))) == (2, [1, 2])
    assert list(resident.documents([])) == []
    assert resident.contents_of_documents([1, 2, 3]).tolist() == [10, 10, -1]
    assert list(resident.documents_of_content(10)) == [1, 2]
    resident.publish(Changes(documents={1: DocumentState("o1", 11), 3: None}))
    assert (list(resident.documents(["a"])), resident.document_count) == ([], 2)
    assert list(resident.documents_of_contents(np.array([10, 11]))) == [1, 2]
    resident.publish(Changes(documents={1: None, 2: None}))
    resident.publish(Changes(documents={1: None}))
    assert (list(resident.documents(["o1", "o2"])), resident.document_count) == ([], 0)


def test_one_write_brings_vectors_and_readers_and_a_later_one_takes_them(
    resident: Resident, segments: Segments
) -> None:
    resident.publish(
        Changes(
            contents={5: ContentState("mtext o1", 20, 2)},
            vectors=[new(segments, "model", [20], rows(1)), new(segments, "caller", [21], rows(2))],
            relationships={3: "o1"},
        )
    )
    resident.publish(Changes(vectors=[new(segments, "relationship", [3], rows(1))], relationships={3: "a o1"}))
    model, caller = resident.partition_tables(WIDTH, ("model", "caller"))
    edges = resident.table("relationship", WIDTH)
    assert edges is not None
    assert (seen(model, "o1"), seen(caller, "o1"), seen(edges, "a")) == ([20], [21], [3])
    assert list(resident.partitions_of_content(5)) == [20, 21]
    assert resident.contents_of_partitions([20, 21, 22]).tolist() == [5, 5, -1]
    resident.publish(Changes(contents={5: None}, relationships={3: None}))
    assert (seen(model, "o1"), seen(caller, "o1"), seen(edges, "a", "o1")) == ([], [], [])
    assert list(resident.partitions_of_content(5)) == []
    assert list(resident.partitions_of_content(-1)) == []


def test_clearing_leaves_an_empty_memory(resident: Resident, segments: Segments) -> None:
    resident.publish(Changes(documents={1: DocumentState("o1", 1)}, vectors=[new(segments, "model", [1], rows(1))]))
    resident.publish(Changes(cleared=True))
    assert (resident.tables, resident.document_count, list(resident.documents(["o1"]))) == ({}, 0, [])


def test_links_read_from_an_old_snapshot_are_not_kept_after_a_change(tmp_path: Path) -> None:
    with opened_store(tmp_path) as store:
        store.file("ann", "a", "-", said=graph.contribution([("Ada Quill", "person")], []))
        store.link()
        cache = store.store.resident.graph
        version = cache.version()
        with store.store.read() as old:
            old.execute("SELECT count(*) FROM documents").fetchall()  # the snapshot begins
            with ThreadPoolExecutor(1) as another:  # on this thread, reads would see the old snapshot
                another.submit(store.file, "ann", "b", "Ada Quill").result()
                another.submit(store.link).result()
            [entity] = store.column("SELECT entity_key FROM entities")
            assert list(cache.at(old, version).documents_of([entity])[entity]) == [1]
        with store.store.read() as new:
            links = cache.at(new, cache.version())
            assert list(links.documents_of([entity])[entity]) == [1, 2]
            assert [tuple(link) for link in links.entities_of([2])[2]] == [(entity, 1)]


def test_memory_loaded_from_the_store_answers_as_the_one_that_followed_it(tmp_path: Path) -> None:
    def state(memory: Resident) -> list[object]:
        [table] = memory.partition_tables(WIDTH, ("model",))
        return [
            [seen(table, token) for token in ("a", "o1", "o2", "mtext", "mcode")],
            [list(memory.documents([token])) for token in ("a", "o1", "o2")],
            memory.document_count,
            memory.contents_of_documents(range(1, 5)).tolist(),
            [list(memory.partitions_of_content(key)) for key in range(1, 5)],
        ]

    with opened_store(tmp_path) as store:
        store.file("ann", "a", "one", "two", rows=rows(1, 2))
        store.file("ann", "b", "gone", rows=rows(3))
        store.file("ben", "c", "code", media_type="code", access="available", rows=rows(4))
        store.file("ben", "d", "one", "two", access="available")
        store.remove("ann", "b")
        followed = state(store.store.resident)
        assert followed[0] == [[1, 2, 4], [1, 2], [1, 2, 4], [1, 2], [4]]
    with opened_store(tmp_path) as again:
        assert state(again.store.resident) == followed
