"""The knowledge graph as provenance: what each document asserts. Runs inside the caller's transaction.

`contribute` and `retract` are exact inverses. An entity lives while a document asserts it, an edge likewise; every
count is a sum over assertions, so nothing can drift. Edges are in `edges`, links by name (mentions) in `links`, and
what an owner changes about it afterwards in `graph_edits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import apsw

from thread_service.errors import InvalidRequest
from thread_service.store import edges, names, sql
from thread_service.store.changes import Changes
from thread_service.store.edges import SOURCES, EdgeSource, End
from thread_service.store.pending import KeptGraph
from thread_service.text import identifiers, ids
from thread_service.text.mentions import is_linkable, name_key

Source = Literal["given", "extracted", "keyword", "name"]


@dataclass(frozen=True, slots=True)
class Entity:
    """`source`: given by the caller, extracted from the text by a model, a keyword of it, or the document's name."""

    name: str
    kind: str
    source: Source
    mentions: int = 1


@dataclass(frozen=True, slots=True)
class Edge:
    """`subject` and `object` index the contribution's entities."""

    subject: int
    predicate: str
    object: int
    source: EdgeSource = "given"
    weight: int = 1


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
    said: list[Edge] = []
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
            said.append(Edge(ends[0], verb, ends[1]))
    return Contribution(tuple(kept), tuple(said))


def kept_contribution(kept: KeptGraph) -> Contribution:
    """What a document asserted in another store. InvalidRequest: an edge without an end."""
    count = len(kept.entities)
    if any(max(edge.subject, edge.object) >= count for edge in kept.relationships):
        raise InvalidRequest.field("graph.relationships", f"name an entity beyond the {count} that are listed")
    return Contribution(
        tuple(
            Entity(entity.name.strip(), ids.normalise_kind(entity.kind), entity.source, entity.mentions)
            for entity in kept.entities
        ),
        tuple(
            Edge(edge.subject, ids.normalise_predicate(edge.predicate), edge.object, edge.source, edge.weight)
            for edge in kept.relationships
        ),
    )


def contribute(connection: apsw.Connection, document_key: int, said: Contribution, changes: Changes) -> None:
    """Assert entities and edges for a document that has asserted nothing yet (but perhaps its own name)."""
    owner_key = _owner(connection, document_key)
    keys = ensure_entities(connection, said.entities)
    asserted: dict[tuple[int, Source], Entity] = {}
    for key, entity in zip(keys, said.entities, strict=True):
        known = asserted.get((key, entity.source))
        more = entity if known is None else replace(known, mentions=known.mentions + entity.mentions)
        asserted[key, entity.source] = more
    assert_entities(connection, document_key, owner_key, asserted, changes)
    ends = {at: _end(keys[at], said.entities[at]) for edge in said.edges for at in (edge.subject, edge.object)}
    edge_keys = edges.ensure(
        connection, [(ends[edge.subject], edge.predicate, ends[edge.object]) for edge in said.edges]
    )
    weights: dict[EdgeSource, Counter[int]] = {}
    for key, edge in zip(edge_keys, said.edges, strict=True):
        weights.setdefault(edge.source, Counter())[key] += edge.weight
    for edge_source, counted_edges in weights.items():
        edges.add(connection, document_key, counted_edges, edge_source)
    edges.enter(connection, document_key, changes)
    changes.mentions.update(_mentioned(connection, document_key))


def retract(connection: apsw.Connection, document_key: int, changes: Changes) -> None:
    """Take back all that the document contributed (its name's own entity is the business of `links`)."""
    edges.leave(connection, document_key)
    for source in SOURCES:
        edges.drop(connection, document_key, source, changes)
    _retract_entities(connection, document_key, ("given", "extracted", "keyword"), changes)
    changes.mentions.update(_mentioned(connection, document_key))


def retract_found(connection: apsw.Connection, document_key: int, changes: Changes) -> None:
    """Take back what had been found in the document; what it was given stays. To be followed by `contribute`."""
    edges.leave(connection, document_key)
    for source in ("extracted", "derived"):
        edges.drop(connection, document_key, source, changes)
    _retract_entities(connection, document_key, ("extracted", "keyword"), changes)


def _retract_entities(
    connection: apsw.Connection, document_key: int, sources: Sequence[Source], changes: Changes
) -> None:
    owner_key = _owner(connection, document_key)
    for entity_key, source in sql.rows(
        connection, "SELECT entity_key, source FROM assertions WHERE document_key = ?", (document_key,)
    ):
        if source in sources:
            retract_entity(connection, document_key, owner_key, entity_key, source, changes)


def ensure_entities(connection: apsw.Connection, entities: Sequence[Entity]) -> list[int]:
    """Their keys. A new entity is nobody's yet: assert it in the same transaction."""
    if not entities:
        return []
    entity_ids = [_entity_id(entity) for entity in entities]
    distinct: dict[str, Entity] = {}
    for entity_id, entity in zip(entity_ids, entities, strict=True):
        distinct.setdefault(entity_id, entity)
    keys: dict[str, int] = {}
    named: dict[str, str] = {}
    for entity_id, entity_key, key in sql.rows(
        connection,
        "SELECT entity_id, entity_key, name_key FROM json_each(?) CROSS JOIN entities ON entity_id = value",
        (sql.array(distinct),),
    ):
        keys[entity_id], named[entity_id] = entity_key, key
    # One whose name is not as stored is new, or nobody had asserted it for a while (see `drop_unasserted`).
    current = {entity_id: name_key(entity.name) for entity_id, entity in distinct.items()}
    anew = [entity_id for entity_id, key in current.items() if named.get(entity_id) != key]
    paths = {entity_id: _identifier(distinct[entity_id]) for entity_id in anew}
    revived = [entity_id for entity_id in anew if entity_id in keys]
    new = [entity_id for entity_id in anew if entity_id not in keys]
    connection.executemany(
        "UPDATE entities SET name_key = ?, identifier = ? WHERE entity_key = ?",
        [(current[entity_id], paths[entity_id], keys[entity_id]) for entity_id in revived],
    )
    keys.update(
        connection.executemany(
            "INSERT INTO entities (entity_id, kind, name_key, identifier) VALUES (?, ?, ?, ?)"
            " RETURNING entity_id, entity_key",
            [(entity_id, distinct[entity_id].kind, current[entity_id], paths[entity_id]) for entity_id in new],
        )
    )
    connection.executemany(
        "INSERT INTO entity_words VALUES (?, ?)",
        [(word, keys[entity_id]) for entity_id in anew for word in set(current[entity_id].split())],
    )
    return [keys[entity_id] for entity_id in entity_ids]


def assert_entities(
    connection: apsw.Connection,
    document_key: int,
    owner_key: int,
    asserted: Mapping[tuple[int, Source], Entity],
    changes: Changes,
) -> None:
    """`asserted`: by key and source, none of which the document asserts yet."""
    if not asserted:
        return
    before = names.standing(connection, owner_key, [*dict.fromkeys(key for key, _ in asserted)])
    after = dict(before)
    rows: list[tuple[int | str, ...]] = []
    for (key, source), entity in asserted.items():
        linkable = source != "keyword" and is_linkable(entity.name)
        rows.append((document_key, key, owner_key, source, entity.name, linkable, entity.mentions))
        after[key] = names.Standing(after[key].asserted or source != "keyword", after[key].linkable or linkable)
    connection.executemany("INSERT INTO assertions VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    names.follow(connection, owner_key, before, after)
    changes.entities.update(after)
    changes.linked_documents.add(document_key)


def retract_entity(
    connection: apsw.Connection, document_key: int, owner_key: int, entity_key: int, source: Source, changes: Changes
) -> None:
    before = names.standing(connection, owner_key, {entity_key})
    connection.execute(
        "DELETE FROM assertions WHERE document_key = ? AND entity_key = ? AND source = ?",
        (document_key, entity_key, source),
    )
    names.follow(connection, owner_key, before, names.standing(connection, owner_key, {entity_key}))
    drop_unasserted(connection, entity_key)
    changes.entities.add(entity_key)
    changes.linked_documents.add(document_key)


def drop_unasserted(connection: apsw.Connection, entity_key: int) -> None:
    """An entity lives by its last assertion, and so does its name. Documents that still mention it list it no more;
    they let go of it one by one when they are linked again, and with the last of them the row goes."""
    if sql.value(connection, "SELECT 1 FROM assertions WHERE entity_key = ? LIMIT 1", (entity_key,)) is not None:
        return
    key = sql.value(connection, "SELECT name_key FROM entities WHERE entity_key = ?", (entity_key,)) or ""
    words = [(word, entity_key) for word in set(key.split())]
    connection.executemany("DELETE FROM entity_words WHERE word = ? AND entity_key = ?", words)
    if sql.value(connection, "SELECT 1 FROM mentions WHERE entity_key = ? LIMIT 1", (entity_key,)) is None:
        connection.execute("DELETE FROM entities WHERE entity_key = ?", (entity_key,))
    elif key:
        connection.execute("UPDATE entities SET name_key = '', identifier = '' WHERE entity_key = ?", (entity_key,))


def _mentioned(connection: apsw.Connection, document_key: int) -> list[int]:
    """Whether a document lists what it mentions depends on whether it was given entities."""
    return [*sql.column(connection, "SELECT entity_key FROM mentions WHERE document_key = ?", (document_key,))]


def _owner(connection: apsw.Connection, document_key: int) -> int:
    found: int = sql.value(connection, "SELECT owner_key FROM documents WHERE document_key = ?", (document_key,))
    return found


def _identifier(entity: Entity) -> str:
    return identifiers.path(identifiers.of_entity(entity.name, entity.kind))


def _end(entity_key: int, entity: Entity) -> End:
    return End(entity_key, _entity_id(entity), entity.kind, entity.name)


def _entity_id(entity: Entity) -> str:
    return ids.entity_id(entity.kind, entity.name)
