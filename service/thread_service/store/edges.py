"""Edges and their predicates: who may see them, when their words are embedded, when they go. Runs inside the caller's
transaction.

An edge lives while a document asserts it and a predicate while an edge bears it; both take their vectors along.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import apsw

from thread_service.store import audience, pending, sql
from thread_service.store.changes import Changes
from thread_service.text import ids

EdgeSource = Literal["given", "extracted", "derived"]
SOURCES: tuple[EdgeSource, ...] = get_args(EdgeSource)


class End(NamedTuple):
    """An entity as the end of an edge, by the name that is embedded with the edge."""

    entity_key: int
    entity_id: str
    kind: str
    name: str


def text(subject: End, predicate: str, object_: End) -> str:
    """What is embedded for an edge: `<kind>: <subject> <predicate> <kind>: <object>`."""
    return f"{subject.kind}: {subject.name} {predicate} {object_.kind}: {object_.name}"


def predicate_text(predicate: str) -> str:
    """What is embedded for a predicate."""
    return f"Relationship predicate: {predicate}"


def ensure(connection: apsw.Connection, said: Sequence[tuple[End, str, End]]) -> list[int]:
    """The keys of edges (subject, predicate, object). A new one is nobody's yet: assert it in the same transaction and
    `refresh` it."""
    if not said:
        return []
    relationship_ids = [
        ids.relationship_id(subject.entity_id, predicate, object_.entity_id) for subject, predicate, object_ in said
    ]
    distinct: dict[str, tuple[End, str, End]] = {}
    for relationship_id, edge in zip(relationship_ids, said, strict=True):
        distinct.setdefault(relationship_id, edge)
    keys: dict[str, int] = dict(
        sql.rows(
            connection,
            "SELECT relationship_id, relationship_key FROM json_each(?)"
            " CROSS JOIN relationships ON relationship_id = value",
            (sql.array(distinct),),
        )
    )
    new = {relationship_id: edge for relationship_id, edge in distinct.items() if relationship_id not in keys}
    predicates = _ensure_predicates(connection, dict.fromkeys(predicate for _, predicate, _ in new.values()))
    keys.update(
        connection.executemany(
            "INSERT INTO relationships (relationship_id, subject_key, predicate_key, object_key) VALUES (?, ?, ?, ?)"
            " RETURNING relationship_id, relationship_key",
            [
                (relationship_id, subject.entity_key, predicates[predicate], object_.entity_key)
                for relationship_id, (subject, predicate, object_) in new.items()
            ],
        )
    )
    texts = {keys[relationship_id]: text(*edge) for relationship_id, edge in new.items()}
    pending.embed_later(connection, "relationship", texts)
    return [keys[relationship_id] for relationship_id in relationship_ids]


def _ensure_predicates(connection: apsw.Connection, predicates: Collection[str]) -> dict[str, int]:
    """Predicate → key."""
    by_id: dict[str, str] = {}
    for predicate in predicates:
        by_id.setdefault(ids.predicate_id(predicate), predicate)
    statement = "SELECT predicate_id, predicate_key FROM json_each(?) CROSS JOIN predicates ON predicate_id = value"
    keys: dict[str, int] = dict(sql.rows(connection, statement, (sql.array(by_id),)))
    new = [predicate_id for predicate_id in by_id if predicate_id not in keys]
    keys.update(
        connection.executemany(
            "INSERT INTO predicates (predicate_id, predicate) VALUES (?, ?) RETURNING predicate_id, predicate_key",
            [(predicate_id, by_id[predicate_id]) for predicate_id in new],
        )
    )
    texts = {keys[predicate_id]: predicate_text(by_id[predicate_id]) for predicate_id in new}
    pending.embed_later(connection, "predicate", texts)
    return {predicate: keys[ids.predicate_id(predicate)] for predicate in predicates}


def add(connection: apsw.Connection, document_key: int, weights: Mapping[int, int], source: EdgeSource) -> None:
    """Assert edges: key → weight, added to what the document asserts of this source already.

    Between `leave` and `enter`, or before the document has entered at all.
    """
    connection.executemany(
        "INSERT INTO relationship_assertions VALUES (?, ?, ?, ?)"
        " ON CONFLICT (document_key, relationship_key, source) DO UPDATE SET weight = weight + excluded.weight",
        [(document_key, relationship_key, source, weight) for relationship_key, weight in weights.items()],
    )


def of_document(connection: apsw.Connection, document_key: int) -> list[int]:
    statement = "SELECT DISTINCT relationship_key FROM relationship_assertions WHERE document_key = ?"
    return [*sql.column(connection, statement, (document_key,))]


def drop(connection: apsw.Connection, document_key: int, source: EdgeSource, changes: Changes) -> None:
    """Assert none of this source any more. After `leave`."""
    dropped = sql.column(
        connection,
        "SELECT relationship_key FROM relationship_assertions WHERE document_key = ? AND source = ?",
        (document_key, source),
    )
    connection.execute(
        "DELETE FROM relationship_assertions WHERE document_key = ? AND source = ?", (document_key, source)
    )
    refresh(connection, dropped, changes)


# ---------------------------------------------------------------------------------------------------- readers


def enter(connection: apsw.Connection, document_key: int, changes: Changes) -> None:
    """Let the document's readers see its edges and their predicates."""
    _count_document(connection, document_key, +1)
    refresh(connection, of_document(connection, document_key), changes)


def leave(connection: apsw.Connection, document_key: int) -> None:
    """The first half of a change of readers or edges: undo what `enter` counted."""
    _count_document(connection, document_key, -1)


def _count_document(connection: apsw.Connection, document_key: int, sign: int) -> None:
    owner_key, access = sql.row(
        connection, "SELECT owner_key, access FROM documents WHERE document_key = ?", (document_key,)
    )
    for predicate_key, edges in sql.rows(
        connection,
        "SELECT predicate_key, count(DISTINCT relationship_key) FROM relationship_assertions"
        " JOIN relationships USING (relationship_key) WHERE document_key = ? GROUP BY predicate_key",
        (document_key,),
    ):
        _count(connection, predicate_key, owner_key, access, sign * edges)


def count_edge(connection: apsw.Connection, relationship_key: int, owner_key: int, sign: int) -> None:
    """`enter` (+1) or `leave` (-1) for one edge and all of an owner's documents that assert it."""
    for predicate_key, access, documents in sql.rows(
        connection,
        "SELECT predicate_key, access, count(DISTINCT document_key) FROM relationship_assertions"
        " JOIN relationships USING (relationship_key) JOIN documents USING (document_key)"
        " WHERE relationship_key = ? AND owner_key = ? GROUP BY access",
        (relationship_key, owner_key),
    ):
        _count(connection, predicate_key, owner_key, access, sign * documents)


def _count(connection: apsw.Connection, predicate_key: int, owner_key: int, access: str, pairs: int) -> None:
    connection.executemany(
        "INSERT INTO predicate_readers VALUES (?, ?, ?)"
        " ON CONFLICT (predicate_key, reader) DO UPDATE SET edges = edges + excluded.edges",
        [(predicate_key, token, pairs) for token in audience.of_document(owner_key, access, ())],
    )


def refresh(connection: apsw.Connection, relationship_keys: Collection[int], changes: Changes) -> None:
    """Readers of edges and of their predicates, from who asserts them; each goes when nobody does."""
    if not relationship_keys:
        return
    predicates: set[int] = set()
    changed: list[tuple[str, int]] = []
    for key, predicate_key, stored, owners in sql.rows(
        connection,
        "SELECT relationship_key, predicate_key, readers, (SELECT json_group_array(DISTINCT owner_key || ' ' || access)"
        "  FROM relationship_assertions asserted JOIN documents USING (document_key)"
        "  WHERE asserted.relationship_key = relationships.relationship_key)"
        " FROM relationships WHERE relationship_key IN (SELECT value FROM json_each(?))",
        (sql.array(relationship_keys),),
    ):
        predicates.add(predicate_key)
        joined = audience.join(_readers(sql.strings(owners)))
        changes.relationships[key] = joined or None
        if not joined:
            pending.forget_vector(connection, "relationship", key)
            connection.execute("DELETE FROM relationships WHERE relationship_key = ?", (key,))
        elif joined != stored:
            changed.append((joined, key))
    connection.executemany("UPDATE relationships SET readers = ? WHERE relationship_key = ?", changed)
    _refresh_predicates(connection, predicates, changes)


def _readers(owners: Iterable[str]) -> set[str]:
    """`owners`: key and access of each."""
    return {
        token
        for owner_key, access in (owner.split(" ") for owner in owners)
        for token in audience.of_document(int(owner_key), access, ())
    }


def _refresh_predicates(connection: apsw.Connection, predicate_keys: Collection[int], changes: Changes) -> None:
    among = "predicate_key IN (SELECT value FROM json_each(?))"
    keys = (sql.array(predicate_keys),)
    connection.execute(f"DELETE FROM predicate_readers WHERE {among} AND edges <= 0", keys)
    changed: list[tuple[str, int]] = []
    for key, stored, readers, is_borne in sql.rows(
        connection,
        "SELECT predicate_key, readers, (SELECT json_group_array(reader) FROM predicate_readers counted"
        "  WHERE counted.predicate_key = predicates.predicate_key),"
        " EXISTS (SELECT 1 FROM relationships WHERE relationships.predicate_key = predicates.predicate_key)"
        f" FROM predicates WHERE {among}",
        keys,
    ):
        joined = audience.join(sql.strings(readers))
        changes.predicates[key] = joined if is_borne else None
        if not is_borne:
            pending.forget_vector(connection, "predicate", key)
            connection.execute("DELETE FROM predicate_readers WHERE predicate_key = ?", (key,))
            connection.execute("DELETE FROM predicates WHERE predicate_key = ?", (key,))
        elif joined != stored:
            changed.append((joined, key))
    connection.executemany("UPDATE predicates SET readers = ? WHERE predicate_key = ?", changed)
