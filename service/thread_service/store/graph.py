"""The knowledge graph as provenance: what each document asserts. Runs inside the caller's transaction.

`contribute` and `retract` are exact inverses. An entity lives while a document asserts it, an edge likewise; every
count is a sum over assertions, so nothing can drift. Links by name (mentions) are in `links`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import apsw

from thread_service.store import audience, names, pending, sql
from thread_service.store.changes import Changes
from thread_service.text import ids
from thread_service.text.mentions import is_linkable, name_key

Source = Literal["given", "keyword", "name"]


@dataclass(frozen=True, slots=True)
class Entity:
    """`source`: given by the caller, a keyword found in the text, or the document's own name."""

    name: str
    kind: str
    source: Source


@dataclass(frozen=True, slots=True)
class Edge:
    """`subject` and `object` index the contribution's entities."""

    subject: int
    predicate: str
    object: int


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one document says. Keywords are asserted as entities but never linked by mention."""

    entities: tuple[Entity, ...]
    edges: tuple[Edge, ...]


def contribution(
    entities: Sequence[tuple[str, str]],
    relationships: Sequence[tuple[str, str, str]],
    keywords: Sequence[str] = (),
) -> Contribution:
    """Build one from (name, kind), (subject, predicate, object) names, and keywords.

    Blank names, blank predicates and edges from a thing to itself are dropped. An end that is not listed becomes a
    `concept`: the edge is kept and depends on nothing outside its document. Of two listed entities with one name the
    later is the end.
    """
    kept = [Entity(word, "concept", "keyword") for word in keywords]
    kept += [Entity(name.strip(), ids.normalise_kind(kind), "given") for name, kind in entities if name.strip()]
    by_name = {ids.normalise_name(entity.name): index for index, entity in enumerate(kept)}
    edges: list[Edge] = []
    for subject, predicate, object_ in relationships:
        ends: list[int] = []
        for name in (subject, object_):
            key = ids.normalise_name(name)
            if not key:
                break
            if key not in by_name or kept[by_name[key]].source == "keyword":
                by_name[key] = len(kept)
                kept.append(Entity(name.strip(), "concept", "given"))
            ends.append(by_name[key])
        verb = ids.normalise_predicate(predicate)
        if len(ends) == 2 and verb and _entity_id(kept[ends[0]]) != _entity_id(kept[ends[1]]):
            edges.append(Edge(ends[0], verb, ends[1]))
    return Contribution(tuple(kept), tuple(edges))


def edge_id(said: Contribution, edge: Edge) -> str:
    return ids.relationship_id(
        _entity_id(said.entities[edge.subject]), edge.predicate, _entity_id(said.entities[edge.object])
    )


def edge_text(said: Contribution, edge: Edge) -> str:
    """What is embedded for an edge: `<kind>: <subject> <predicate> <kind>: <object>`."""
    subject, object_ = said.entities[edge.subject], said.entities[edge.object]
    return f"{subject.kind}: {subject.name} {edge.predicate} {object_.kind}: {object_.name}"


def contribute(connection: apsw.Connection, document_key: int, said: Contribution, changes: Changes) -> None:
    """Assert entities and edges for a document that has asserted nothing yet (but perhaps its own name)."""
    owner_key = _owner(connection, document_key)
    keys = [ensure_entity(connection, entity) for entity in said.entities]
    spelled = {(key, entity.source): entity for key, entity in reversed(list(zip(keys, said.entities, strict=True)))}
    counted = Counter((key, entity.source) for key, entity in zip(keys, said.entities, strict=True))
    for (entity_key, source), mentions in counted.items():
        entity = spelled[entity_key, source]
        assert_entity(connection, document_key, owner_key, entity_key, entity, mentions, changes)
    weights = Counter(_ensure_edge(connection, said, edge, keys) for edge in said.edges)
    connection.executemany(
        "INSERT INTO relationship_assertions VALUES (?, ?, ?)",
        [(document_key, relationship_key, weight) for relationship_key, weight in weights.items()],
    )
    enter(connection, document_key, changes)
    changes.entities.update(_mentioned(connection, document_key))


def retract(connection: apsw.Connection, document_key: int, changes: Changes) -> None:
    """Take back all that the document contributed (its name's own entity is the business of `links`)."""
    owner_key = _owner(connection, document_key)
    leave(connection, document_key)
    edge_keys = _edges_of(connection, document_key)
    connection.execute("DELETE FROM relationship_assertions WHERE document_key = ?", (document_key,))
    for relationship_key in edge_keys:
        _refresh_edge(connection, relationship_key, changes)
    for entity_key, source in sql.rows(
        connection,
        "SELECT entity_key, source FROM assertions WHERE document_key = ? AND source <> 'name'",
        (document_key,),
    ):
        retract_entity(connection, document_key, owner_key, entity_key, source, changes)
    changes.entities.update(_mentioned(connection, document_key))


def ensure_entity(connection: apsw.Connection, entity: Entity) -> int:
    entity_id = _entity_id(entity)
    found = sql.value(connection, "SELECT entity_key FROM entities WHERE entity_id = ?", (entity_id,))
    if found is not None:
        return cast(int, found)
    connection.execute(
        "INSERT INTO entities (entity_id, kind, name_key) VALUES (?, ?, ?)",
        (entity_id, entity.kind, name_key(entity.name)),
    )
    return connection.last_insert_rowid()


def assert_entity(
    connection: apsw.Connection,
    document_key: int,
    owner_key: int,
    entity_key: int,
    entity: Entity,
    mentions: int,
    changes: Changes,
) -> None:
    linkable = entity.source != "keyword" and is_linkable(entity.name)
    before = names.standing(connection, owner_key, entity_key)
    connection.execute(
        "INSERT INTO assertions VALUES (?, ?, ?, ?, ?, ?, ?)",
        (document_key, entity_key, owner_key, entity.source, entity.name, linkable, mentions),
    )
    names.follow(connection, owner_key, entity_key, before)
    changes.entities.add(entity_key)
    changes.linked_documents.add(document_key)


def retract_entity(
    connection: apsw.Connection, document_key: int, owner_key: int, entity_key: int, source: Source, changes: Changes
) -> None:
    before = names.standing(connection, owner_key, entity_key)
    connection.execute(
        "DELETE FROM assertions WHERE document_key = ? AND entity_key = ? AND source = ?",
        (document_key, entity_key, source),
    )
    names.follow(connection, owner_key, entity_key, before)
    drop_unasserted(connection, entity_key, changes)
    changes.entities.add(entity_key)
    changes.linked_documents.add(document_key)


def drop_unasserted(connection: apsw.Connection, entity_key: int, changes: Changes) -> None:
    """An entity lives by its last assertion and takes its mentions along."""
    if sql.value(connection, "SELECT 1 FROM assertions WHERE entity_key = ? LIMIT 1", (entity_key,)) is not None:
        return
    for document_key in sql.column(connection, "SELECT document_key FROM mentions WHERE entity_key = ?", (entity_key,)):
        changes.linked_documents.add(document_key)
    connection.execute("DELETE FROM mentions WHERE entity_key = ?", (entity_key,))
    connection.execute("DELETE FROM entities WHERE entity_key = ?", (entity_key,))


def enter(connection: apsw.Connection, document_key: int, changes: Changes) -> None:
    """Let the document's readers see its edges and their predicates."""
    _count_predicates(connection, document_key, +1)
    for relationship_key in _edges_of(connection, document_key):
        _refresh_edge(connection, relationship_key, changes)


def leave(connection: apsw.Connection, document_key: int) -> None:
    """The first half of a change of readers or edges: undo what `enter` counted."""
    _count_predicates(connection, document_key, -1)


def _count_predicates(connection: apsw.Connection, document_key: int, sign: int) -> None:
    tokens = _edge_readers(connection, document_key)
    connection.executemany(
        "INSERT INTO predicate_readers VALUES (?, ?, ?)"
        " ON CONFLICT (predicate_key, reader) DO UPDATE SET edges = edges + excluded.edges",
        [
            (predicate_key, token, sign * edges)
            for predicate_key, edges in sql.rows(
                connection,
                "SELECT predicate_key, count(*) FROM relationship_assertions"
                " JOIN relationships USING (relationship_key) WHERE document_key = ? GROUP BY predicate_key",
                (document_key,),
            )
            for token in tokens
        ],
    )


def _edge_readers(connection: apsw.Connection, document_key: int) -> set[str]:
    owner_key, access = sql.row(
        connection, "SELECT owner_key, access FROM documents WHERE document_key = ?", (document_key,)
    )
    return audience.of_document(owner_key, access, ())


def _refresh_edge(connection: apsw.Connection, relationship_key: int, changes: Changes) -> None:
    """Readers of an edge and of its predicate, from who asserts it; both go when nobody does."""
    predicate_key, stored = sql.row(
        connection, "SELECT predicate_key, readers FROM relationships WHERE relationship_key = ?", (relationship_key,)
    )
    tokens: set[str] = set()
    for owner_key, access in sql.rows(
        connection,
        "SELECT DISTINCT owner_key, access FROM relationship_assertions JOIN documents USING (document_key)"
        " WHERE relationship_key = ?",
        (relationship_key,),
    ):
        tokens |= audience.of_document(owner_key, access, ())
    joined = audience.join(tokens)
    if not tokens:
        pending.forget_vector(connection, "relationship", relationship_key)
        connection.execute("DELETE FROM relationships WHERE relationship_key = ?", (relationship_key,))
        changes.relationships[relationship_key] = None
    else:
        if joined != stored:
            connection.execute(
                "UPDATE relationships SET readers = ? WHERE relationship_key = ?", (joined, relationship_key)
            )
        changes.relationships[relationship_key] = joined
    _refresh_predicate(connection, predicate_key, changes)


def _refresh_predicate(connection: apsw.Connection, predicate_key: int, changes: Changes) -> None:
    connection.execute("DELETE FROM predicate_readers WHERE predicate_key = ? AND edges <= 0", (predicate_key,))
    tokens = [*sql.column(connection, "SELECT reader FROM predicate_readers WHERE predicate_key = ?", (predicate_key,))]
    alive = sql.value(connection, "SELECT 1 FROM relationships WHERE predicate_key = ? LIMIT 1", (predicate_key,))
    if alive is None:
        pending.forget_vector(connection, "predicate", predicate_key)
        connection.execute("DELETE FROM predicate_readers WHERE predicate_key = ?", (predicate_key,))
        connection.execute("DELETE FROM predicates WHERE predicate_key = ?", (predicate_key,))
        changes.predicates[predicate_key] = None
        return
    joined = audience.join(tokens)
    connection.execute(
        "UPDATE predicates SET readers = ? WHERE predicate_key = ? AND readers <> ?", (joined, predicate_key, joined)
    )
    changes.predicates[predicate_key] = joined


def _ensure_edge(connection: apsw.Connection, said: Contribution, edge: Edge, keys: list[int]) -> int:
    relationship_id = edge_id(said, edge)
    found = sql.value(
        connection, "SELECT relationship_key FROM relationships WHERE relationship_id = ?", (relationship_id,)
    )
    if found is not None:
        return cast(int, found)
    connection.execute(
        "INSERT INTO relationships (relationship_id, subject_key, predicate_key, object_key) VALUES (?, ?, ?, ?)",
        (relationship_id, keys[edge.subject], _ensure_predicate(connection, edge.predicate), keys[edge.object]),
    )
    relationship_key = connection.last_insert_rowid()
    pending.embed_later(connection, "relationship", relationship_key, edge_text(said, edge))
    return relationship_key


def _ensure_predicate(connection: apsw.Connection, predicate: str) -> int:
    predicate_id = ids.predicate_id(predicate)
    found = sql.value(connection, "SELECT predicate_key FROM predicates WHERE predicate_id = ?", (predicate_id,))
    if found is not None:
        return cast(int, found)
    connection.execute("INSERT INTO predicates (predicate_id, predicate) VALUES (?, ?)", (predicate_id, predicate))
    predicate_key = connection.last_insert_rowid()
    pending.embed_later(connection, "predicate", predicate_key, f"Relationship predicate: {predicate}")
    return predicate_key


def _edges_of(connection: apsw.Connection, document_key: int) -> list[int]:
    return [
        *sql.column(
            connection, "SELECT relationship_key FROM relationship_assertions WHERE document_key = ?", (document_key,)
        )
    ]


def _mentioned(connection: apsw.Connection, document_key: int) -> list[int]:
    """Whether a document lists what it mentions depends on whether it was given entities."""
    return [*sql.column(connection, "SELECT entity_key FROM mentions WHERE document_key = ?", (document_key,))]


def _owner(connection: apsw.Connection, document_key: int) -> int:
    found: int = sql.value(connection, "SELECT owner_key FROM documents WHERE document_key = ?", (document_key,))
    return found


def _entity_id(entity: Entity) -> str:
    return ids.entity_id(entity.kind, entity.name)
