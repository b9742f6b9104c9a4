"""Which documents are linked again when an owner's names change, and that this ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from opened_store import Opened, opened_store

from thread_service.store import graph
from thread_service.store.changes import Changes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    with opened_store(tmp_path) as store:
        store.file("ann", "quill", "Ada Quill wrote")
        store.file("ann", "clock", "the Long Clock ticks")
        store.file("ann", "named", "nothing", name="Long Clock")
        store.file("ben", "quill", "Ada Quill wrote, says Ben")
        store.link()
        yield store


def said(*names: str) -> graph.Contribution:
    return graph.contribution([(name, "") for name in names], [])


def mentions(store: Opened) -> list[tuple[str, str, str]]:
    return store.rows(
        "SELECT owner_id, document_id, entities.name_key FROM mentions JOIN documents USING (document_key)"
        " JOIN owners USING (owner_key) JOIN entities USING (entity_key) ORDER BY 1, 2, 3"
    )


def test_a_new_name_touches_only_its_owners_texts_that_hold_it(store: Opened) -> None:
    assert mentions(store) == [("ann", "clock", "long clock")]
    store.file("ann", "x", "-", said=said("Ada Quill", "Nobody At All"))
    assert store.link() == ["quill", "x"]
    assert mentions(store) == [("ann", "clock", "long clock"), ("ann", "quill", "ada quill")]
    store.file("ann", "y", "-", said=said("ADA quill"))  # no news
    assert store.link() == ["y"]
    store.remove("ann", "x")
    assert store.link() == []
    store.remove("ann", "y")
    assert store.link() == ["quill"]
    assert mentions(store) == [("ann", "clock", "long clock")]


def test_a_given_name_takes_a_documents_own_place_and_gives_it_back(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Long Clock"))
    assert store.link() == ["clock", "named", "x"]
    assert mentions(store) == [("ann", "clock", "long clock"), ("ann", "named", "long clock")]
    assert store.column("SELECT kind FROM entities") == ["concept"]
    store.remove("ann", "x")
    assert store.link() == ["clock", "named"]
    assert store.column("SELECT kind FROM entities") == ["document"]
    assert mentions(store) == [("ann", "clock", "long clock")]


def test_a_name_of_a_whole_paragraph_is_asserted_and_never_looked_for(store: Opened) -> None:
    paragraph = "Ada Quill " * 2_000
    store.file("ann", "long", paragraph)
    store.link()
    store.file("ann", "x", "-", said=said(paragraph), name=paragraph)
    assert store.link() == ["x"]
    assert store.column("SELECT name_key FROM names") == ["long clock"]


def test_a_document_whose_content_is_not_searchable_has_no_links(store: Opened) -> None:
    store.file("ann", "x", "-", said=said("Ada Quill"))
    store.link()
    assert mentions(store) != []

    def fail(connection: apsw.Connection, changes: Changes) -> None:
        connection.execute("UPDATE contents SET state = 'failed'")
        connection.execute("INSERT INTO relink SELECT document_key FROM documents")

    store.write(fail)
    store.link()
    assert mentions(store) == []
    assert store.column("SELECT count(*) FROM assertions WHERE source = 'name'") == [0]
