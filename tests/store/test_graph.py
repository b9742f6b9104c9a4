"""The graph as provenance: contributions are built by fixed rules, and retracting is the exact inverse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from opened_store import Opened, opened_store

from thread_service.store import graph
from thread_service.store.changes import Changes
from thread_service.store.graph import Edge, Entity


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path) as store:
        yield store


def test_a_contribution_keeps_what_says_something() -> None:
    said = graph.contribution(
        [(" Ada ", "PERSON"), ("  ", "person"), ("ada", "robot"), ("Orrin", "")],
        [
            ("ADA", " Built ", "Orrin"),
            ("orrin", "built", "The Shed"),
            ("Ada", "built", " "),
            ("Ada", "\t", "Orrin"),
            ("Orrin", "is", " orrin "),
        ],
        ["shed", "ada"],
    )
    assert said.entities == (
        Entity("shed", "concept", "keyword"),
        Entity("ada", "concept", "keyword"),
        Entity("Ada", "person", "given"),
        Entity("ada", "robot", "given"),
        Entity("Orrin", "concept", "given"),
        Entity("The Shed", "concept", "given"),
    )
    assert said.edges == (Edge(3, "built", 4), Edge(4, "built", 5))


def test_an_edge_is_embedded_with_the_names_and_kinds_of_its_ends(store: Opened) -> None:
    said = graph.contribution([("Ada", "PERSON"), ("ada", "robot")], [("ADA", " Built ", "Orrin")])
    store.file("ann", "a", "text", said=said)
    assert store.rows("SELECT purpose, text FROM unembedded ORDER BY purpose") == [
        ("predicate", "Relationship predicate: built"),
        ("relationship", "robot: ada built concept: Orrin"),
    ]


def test_edges_of_one_document_share_a_predicate_however_each_spells_it(store: Opened) -> None:
    entities = (Entity("Ada", "person", "given"), Entity("Orrin", "person", "given"), Entity("Quay", "place", "given"))
    edges = (Edge(0, "Knows", 1, "extracted"), Edge(0, "knows", 2, "extracted"), Edge(0, "knows ", 2, "extracted"))
    store.file("ann", "a", "text", said=graph.Contribution(entities, edges))
    assert store.rows("SELECT predicate FROM predicates") == [("Knows",)]
    assert store.rows("SELECT weight FROM relationship_assertions ORDER BY relationship_key") == [(1,), (2,)]


def test_an_edge_to_what_is_only_a_keyword_makes_it_a_given_entity() -> None:
    said = graph.contribution([], [("Ada", "keeps", "Ledger")], ["ledger"])
    assert said.entities[1:] == (Entity("Ada", "concept", "given"), Entity("Ledger", "concept", "given"))
    assert said.edges == (Edge(1, "keeps", 2),)


def graph_rows(store: Opened) -> list[list[tuple[object, ...]]]:
    return [
        sorted(store.rows(f"SELECT * FROM {name}"))
        for name in (
            "entities", "assertions", "relationships", "relationship_assertions", "predicates", "predicate_readers",
            "names", "mentions", "unembedded",
        )
    ]  # fmt: skip


KEEPS = graph.contribution([("Ada", "person")], [("Ada", "keeps", "Ledger"), ("Ada", "keeps", "Ledger")])


def test_retracting_leaves_the_graph_as_it_was_before(store: Opened) -> None:
    store.file("ann", "a", "text", said=KEEPS)
    key = store.file("ann", "b", "other", access="available")
    before = graph_rows(store)
    more = graph.contribution([("ADA", "person")], [("Ada", "keeps", "Ledger"), ("Ada", "lost", "Key")], ["ada"])

    def change(connection: apsw.Connection, changes: Changes) -> None:
        graph.contribute(connection, key, more, changes)

    store.write(change)
    assert store.column("SELECT sum(weight) FROM relationship_assertions") == [4]
    assert store.column("SELECT predicate FROM predicates ORDER BY predicate") == ["keeps", "lost"]
    store.write(lambda connection, changes: graph.retract(connection, key, changes))
    assert graph_rows(store) == before


def test_an_edge_outlives_the_document_that_said_it_first_while_another_says_it(store: Opened) -> None:
    store.file("ann", "a", "text", said=KEEPS)
    store.file("ben", "b", "other", said=KEEPS, access="available")
    assert store.column("SELECT readers FROM relationships") == ["a o1 o2"]
    assert store.column("SELECT readers FROM predicates") == ["a o1 o2"]
    store.remove("ann", "a")
    assert store.column("SELECT readers FROM relationships") == ["a o2"]
    assert store.column("SELECT readers FROM predicates") == ["a o2"]
    assert store.rows("SELECT spelling, mentions FROM assertions ORDER BY spelling") == [("Ada", 1), ("Ledger", 1)]
    store.remove("ben", "b")
    assert [row for rows in graph_rows(store) for row in rows] == []


def test_a_predicate_is_seen_while_any_of_its_edges_is(store: Opened) -> None:
    store.file("ann", "a", "one", said=graph.contribution([], [("Ada", "keeps", "Ledger")]), access="available")
    store.file("ann", "b", "two", said=graph.contribution([], [("Ada", "keeps", "Key")]), access="available")
    store.file("ben", "c", "three", said=graph.contribution([], [("Ada", "keeps", "Key")]))
    assert store.column("SELECT readers FROM predicates") == ["a o1 o2"]
    store.remove("ann", "a")
    assert store.column("SELECT readers FROM predicates") == ["a o1 o2"]
    store.remove("ann", "b")
    assert store.column("SELECT readers FROM predicates") == ["o2"]


def test_an_entity_nobody_asserts_is_listed_no_more_at_once_and_goes_with_its_last_mention(store: Opened) -> None:
    store.file("ann", "a", "-", said=graph.contribution([("Ada Quill", "person")], []))
    for id in ("b", "c"):
        store.file("ann", id, "Ada Quill wrote")
    store.link()
    [entity] = store.column("SELECT DISTINCT entity_key FROM mentions")
    cache = store.store.resident.graph

    def listing() -> list[int]:
        version = cache.version()
        with store.store.read() as connection:
            return list(cache.at(connection, version).documents_of([entity])[entity])

    assert listing() == [1, 2, 3]
    store.write(lambda connection, changes: graph.retract(connection, 1, changes))
    assert listing() == []
    assert store.column("SELECT count(*) FROM mentions") == [2]

    # It comes back before the others were linked again: nothing was lost.
    store.file("ann", "d", "-", said=graph.contribution([("Ada Quill", "person")], []))
    assert listing() == [2, 3, 4]
    store.link()
    assert listing() == [2, 3, 4]

    store.remove("ann", "d")
    store.remove("ann", "b")
    assert store.column("SELECT entity_key FROM entities") == [entity]
    assert store.link() == ["c"]
    for table in ("entities", "entity_words", "mentions", "names"):
        assert store.column(f"SELECT count(*) FROM {table}") == [0]
