"""Changing what an owner's documents say about the graph, without filing them again. Runs inside the caller's
transaction.

Every function works on the assertions of one owner's documents: what others assert, of the same entity too, stays as it
is. Afterwards the graph is what filing the owner's documents with the new names and kinds would have made. A
document's own name that made the entity is a name in the graph no more: the document is given the new entity instead
(or nothing), and keeps its name for people.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import apsw

from thread_service.store import edges, graph, lookup, names, sql
from thread_service.store.changes import Changes
from thread_service.store.edges import End
from thread_service.text.ids import entity_id
from thread_service.text.mentions import is_linkable


class Owned(NamedTuple):
    """An entity that the owner's documents assert. `spelling`: the oldest one's."""

    entity_key: int
    entity_id: str
    kind: str
    spelling: str


class _Assertion(NamedTuple):
    document_key: int
    source: graph.Source
    spelling: str
    mentions: int


def find(connection: apsw.Connection, owner_key: int, entity_id: str) -> Owned | None:
    """None for an entity that does not exist, or exists by others' assertions only."""
    row = sql.row(
        connection,
        "SELECT entity_key, entity_id, kind, (SELECT spelling FROM assertions a WHERE a.entity_key = e.entity_key"
        " AND owner_key = ?1 ORDER BY document_key, source <> 'given', source LIMIT 1) AS own FROM entities e"
        " WHERE entity_id = ?2 AND own IS NOT NULL",
        (owner_key, entity_id),
    )
    return None if row is None else Owned(*row)


def move(
    connection: apsw.Connection, owner_key: int, entity: Owned, kind: str, name: str | None, changes: Changes
) -> str:
    """Let the owner's documents assert (kind, name) in place of `entity`; returns the id of that.

    `name` None: as each document spells it. A document that asserts both already keeps its spelling of the other.
    `kind` is normalised and `name` trimmed.
    """
    target = graph.Entity(entity.spelling if name is None else name, kind, "given")
    target_id = entity_id(target.kind, target.name)
    moved = _assertions(connection, owner_key, entity.entity_key)
    if target_id == entity.entity_id:
        moved = [assertion for assertion in moved if name is not None and assertion.spelling != name]
    if not moved:
        return target_id
    (target_key,) = graph.ensure_entities(connection, [target])
    keys = {entity.entity_key, target_key}
    before = names.standing(connection, owner_key, keys)
    _delete(connection, entity.entity_key, moved)
    connection.executemany(
        "INSERT INTO assertions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (document_key, entity_key, source)"
        " DO UPDATE SET mentions = mentions + excluded.mentions",
        [_row(assertion, target_key, owner_key, name) for assertion in moved],
    )
    names.follow(connection, owner_key, before, names.standing(connection, owner_key, keys))
    if target_key != entity.entity_key:
        _move_edges(connection, owner_key, entity.entity_key, target_key, changes)
        graph.drop_unasserted(connection, entity.entity_key)
    _tell(connection, keys, moved, changes)
    return target_id


def delete(connection: apsw.Connection, owner_key: int, entity: Owned, changes: Changes) -> None:
    """Let the owner's documents assert the entity, and edges that touch it, no more."""
    for edge in _edges_at(connection, owner_key, entity.entity_key):
        _drop_edge(connection, owner_key, edge.relationship_key, changes)
    before = names.standing(connection, owner_key, {entity.entity_key})
    moved = _assertions(connection, owner_key, entity.entity_key)
    _delete(connection, entity.entity_key, moved)
    names.follow(connection, owner_key, before, names.standing(connection, owner_key, {entity.entity_key}))
    graph.drop_unasserted(connection, entity.entity_key)
    _tell(connection, {entity.entity_key}, moved, changes)


def delete_edge(connection: apsw.Connection, owner_key: int, relationship_id: str, changes: Changes) -> None:
    """Let the owner's documents assert the edge no more; its ends stay."""
    found = sql.value(
        connection, "SELECT relationship_key FROM relationships WHERE relationship_id = ?", (relationship_id,)
    )
    if found is not None:
        _drop_edge(connection, owner_key, found, changes)


# ---------------------------------------------------------------------------------------------------- entities


def _assertions(connection: apsw.Connection, owner_key: int, entity_key: int) -> list[_Assertion]:
    """By document, what was given first."""
    statement = (
        "SELECT document_key, source, spelling, mentions FROM assertions WHERE entity_key = ? AND owner_key = ?"
        " ORDER BY document_key, source <> 'given', source"
    )
    return [_Assertion(*row) for row in sql.rows(connection, statement, (entity_key, owner_key))]


def _row(assertion: _Assertion, entity_key: int, owner_key: int, name: str | None) -> tuple[int | str, ...]:
    source = "given" if assertion.source == "name" else assertion.source
    spelling = assertion.spelling if name is None else name
    linkable = source != "keyword" and is_linkable(spelling)
    return assertion.document_key, entity_key, owner_key, source, spelling, linkable, assertion.mentions


def _delete(connection: apsw.Connection, entity_key: int, assertions: Iterable[_Assertion]) -> None:
    for assertion in assertions:
        connection.execute(
            "DELETE FROM assertions WHERE document_key = ? AND entity_key = ? AND source = ?",
            (assertion.document_key, entity_key, assertion.source),
        )
        if assertion.source == "name":
            connection.execute("UPDATE documents SET name_key = '' WHERE document_key = ?", (assertion.document_key,))


def _tell(
    connection: apsw.Connection, entity_keys: set[int], assertions: Iterable[_Assertion], changes: Changes
) -> None:
    documents = {assertion.document_key for assertion in assertions}
    changes.linked_documents |= documents
    changes.entities |= entity_keys
    # Whether a document lists what it mentions depends on whether it was given entities.
    changes.mentions.update(
        sql.column(
            connection,
            "SELECT DISTINCT entity_key FROM mentions WHERE document_key IN (SELECT value FROM json_each(?))",
            (sql.array(documents),),
        )
    )


# ---------------------------------------------------------------------------------------------------- edges


def _edges_at(connection: apsw.Connection, owner_key: int, entity_key: int) -> list[lookup.EdgeEnds]:
    """The edges that touch the entity and that documents of the owner assert."""
    statement = (
        "SELECT relationship_key, relationship_id, subject_key, predicate, object_key FROM relationships r"
        " JOIN predicates USING (predicate_key) WHERE (subject_key = ?1 OR object_key = ?1) AND EXISTS ("
        " SELECT 1 FROM relationship_assertions a JOIN documents USING (document_key)"
        " WHERE a.relationship_key = r.relationship_key AND owner_key = ?2) ORDER BY relationship_key"
    )
    return [lookup.EdgeEnds(*row) for row in sql.rows(connection, statement, (entity_key, owner_key))]


def _move_edges(
    connection: apsw.Connection, owner_key: int, entity_key: int, target_key: int, changes: Changes
) -> None:
    found = _edges_at(connection, owner_key, entity_key)
    others = {end for edge in found for end in (edge.subject_key, edge.object_key)} | {target_key}
    named = {
        key: End(key, name.entity_id, name.kind, name.spelling)
        for key, name in lookup.entity_names(connection, others - {entity_key}, owner_key).items()
    }
    for edge in found:
        subject_key, object_key = (
            target_key if key == entity_key else key for key in (edge.subject_key, edge.object_key)
        )
        if subject_key == object_key:
            _drop_edge(connection, owner_key, edge.relationship_key, changes)
        else:
            (moved_to,) = edges.ensure(connection, [(named[subject_key], edge.predicate, named[object_key])])
            _move_edge(connection, owner_key, edge.relationship_key, moved_to, changes)


def _move_edge(
    connection: apsw.Connection, owner_key: int, relationship_key: int, target_key: int, changes: Changes
) -> None:
    for key in (relationship_key, target_key):
        edges.count_edge(connection, key, owner_key, -1)
    connection.execute(
        "INSERT INTO relationship_assertions"
        " SELECT document_key, ?3, source, weight FROM relationship_assertions JOIN documents USING (document_key)"
        " WHERE relationship_key = ?1 AND owner_key = ?2"
        " ON CONFLICT (document_key, relationship_key, source) DO UPDATE SET weight = weight + excluded.weight",
        (relationship_key, owner_key, target_key),
    )
    _unassert(connection, owner_key, relationship_key)
    edges.count_edge(connection, target_key, owner_key, +1)
    edges.refresh(connection, (target_key, relationship_key), changes)


def _drop_edge(connection: apsw.Connection, owner_key: int, relationship_key: int, changes: Changes) -> None:
    edges.count_edge(connection, relationship_key, owner_key, -1)
    _unassert(connection, owner_key, relationship_key)
    edges.refresh(connection, (relationship_key,), changes)


def _unassert(connection: apsw.Connection, owner_key: int, relationship_key: int) -> None:
    connection.execute(
        "DELETE FROM relationship_assertions WHERE relationship_key = ?1 AND EXISTS ("
        " SELECT 1 FROM documents d WHERE d.document_key = relationship_assertions.document_key AND owner_key = ?2)",
        (relationship_key, owner_key),
    )
