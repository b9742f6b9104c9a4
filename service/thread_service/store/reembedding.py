"""Everything that a model embedded, embedded anew by another, beside what is searched. Runs inside the caller's
transaction.

    begin     note the next model; what an earlier attempt made with it is kept, what another made goes
    missing   what has a vector of the index and none of the next model yet
    record    commit some of these: rows of `vectors` with a purpose of their own, which follow their subjects' removals
    switch    one transaction: they take the place of the others, and the next stamp that of the stamp

So a crash at any point loses nothing that was recorded, and until the switch nothing of the index has changed. Vectors
that callers brought are in a space of their own and stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.errors import ThreadError
from thread_service.models.embedder import Stamp
from thread_service.store import edges, sql, stamp, vectors
from thread_service.store.changes import Changes, ContentState, NewVectors, Purpose
from thread_service.store.contents import partition_range
from thread_service.store.segments import Location

PURPOSES: tuple[Purpose, ...] = ("model", "relationship", "predicate")


class Subject(NamedTuple):
    """What is to be embedded: a partition, a relationship or a predicate, as `purpose` says."""

    purpose: Purpose
    key: int
    text: str


class Counts(NamedTuple):
    """How many subjects of each kind have a vector of the index, or of the next model."""

    texts: int
    relationships: int
    predicates: int


def begin(connection: apsw.Connection, target: Stamp, changes: Changes) -> None:
    """Note the model that everything is to be embedded with, unless it is noted already."""
    if stamp.stored(connection, next=True) == target:
        return
    abandon(connection, changes)
    connection.execute(
        "INSERT INTO next_stamp VALUES (1, ?, ?, ?, ?, ?)",
        (target.space, target.model, target.revision, target.width, int(time.time())),
    )


def abandon(connection: apsw.Connection, changes: Changes) -> None:
    """Forget the next model and what it has embedded."""
    connection.execute("DELETE FROM next_stamp")
    connection.execute("DELETE FROM vectors WHERE purpose LIKE 'next%'")
    changes.abandoned = bool(connection.changes())


def counts(connection: apsw.Connection, *, next: bool = False) -> Counts:
    prefix = "next_" if next else ""
    statement = "SELECT count(*) FROM vectors WHERE purpose = ?"
    return Counts(*(sql.value(connection, statement, (prefix + purpose,)) for purpose in PURPOSES))


def newest(connection: apsw.Connection) -> int:
    """A key from which on vectors are newer than this moment."""
    return 1 + int(sql.value(connection, "SELECT coalesce(max(vector_key), 0) FROM vectors"))


def missing(
    connection: apsw.Connection, from_key: int, limit: int, size: int, refused: frozenset[Subject]
) -> tuple[list[Subject], int]:
    """The next subjects that lack a vector of the next model and are not `refused`, at most `limit` of them and, after
    the first, `size` characters; and the vector key to go on from, 0 at the end. `from_key`: of the index's vectors."""
    found: list[Subject] = []
    characters = 0
    for vector_key, purpose, subject_key in sql.rows(
        connection,
        "SELECT vector_key, purpose, subject_key FROM vectors v WHERE vector_key >= ?"
        " AND purpose IN ('model', 'relationship', 'predicate') AND NOT EXISTS"
        "  (SELECT 1 FROM vectors n WHERE n.subject_key = v.subject_key AND n.purpose = 'next_' || v.purpose)"
        " ORDER BY vector_key LIMIT ?",
        (from_key, limit + len(refused) + 1),
    ):
        subject = Subject(purpose, subject_key, _text(connection, purpose, subject_key))
        if subject in refused:
            continue
        characters += len(subject.text)
        if found and (characters > size or len(found) == limit):
            return found, int(vector_key)
        found.append(subject)
    return found, 0


def _text(connection: apsw.Connection, purpose: Purpose, key: int) -> str:
    """What was embedded of it."""
    if purpose == "model":
        return cast(str, sql.value(connection, "SELECT text FROM partitions WHERE partition_key = ?", (key,)))
    if purpose == "predicate":
        predicate = sql.value(connection, "SELECT predicate FROM predicates WHERE predicate_key = ?", (key,))
        return edges.predicate_text(predicate)
    subject_key, predicate, object_key = sql.row(
        connection,
        "SELECT subject_key, predicate, object_key FROM relationships JOIN predicates USING (predicate_key)"
        " WHERE relationship_key = ?",
        (key,),
    )
    return edges.text(_end(connection, key, subject_key), predicate, _end(connection, key, object_key))


def _end(connection: apsw.Connection, relationship_key: int, entity_key: int) -> edges.End:
    """By the name that it has in the first document that asserts the relationship, which it was embedded by."""
    row = sql.row(
        connection,
        "SELECT entity_id, kind, coalesce("
        "  (SELECT spelling FROM assertions a JOIN relationship_assertions r USING (document_key)"
        "   WHERE a.entity_key = e.entity_key AND relationship_key = ?2 ORDER BY document_key LIMIT 1),"
        "  (SELECT spelling FROM assertions a WHERE a.entity_key = e.entity_key ORDER BY document_key LIMIT 1),"
        "  name_key) FROM entities e WHERE entity_key = ?1",
        (entity_key, relationship_key),
    )
    return edges.End(entity_key, *row)


def record(
    connection: apsw.Connection,
    target: Stamp,
    subjects: Sequence[Subject],
    rows: NDArray[np.float32],
    locations: Sequence[Location],
    changes: Changes,
) -> None:
    """Commit vectors of the next model, float32 [n, width], that were appended and synced; those whose subject went
    meanwhile stay free space. ThreadError: another model, or a cleared index, is in the way."""
    if stamp.stored(connection, next=True) != target:
        raise ThreadError("the index was cleared, or is embedded with yet another model; nothing was switched")
    for purpose in PURPOSES:
        alive = _lacking(connection, purpose, [subject.key for subject in subjects if subject.purpose == purpose])
        chosen = [
            index for index, subject in enumerate(subjects) if subject.purpose == purpose and subject.key in alive
        ]
        if not chosen:
            continue
        keys = [subjects[index].key for index in chosen]
        where = [locations[index] for index in chosen]
        named = cast(Purpose, f"next_{purpose}")
        vectors.record(connection, named, target.width, keys, where)
        changes.vectors.append(NewVectors(named, keys, rows[np.array(chosen)], where))
        _tell_readers(connection, purpose, keys, changes)


def _lacking(connection: apsw.Connection, purpose: Purpose, keys: Sequence[int]) -> set[int]:
    statement = (
        "SELECT subject_key FROM vectors v WHERE purpose = ?1 AND subject_key IN (SELECT value FROM json_each(?2))"
        " AND NOT EXISTS (SELECT 1 FROM vectors n WHERE n.subject_key = v.subject_key AND n.purpose = 'next_' || ?1)"
    )
    return {*sql.column(connection, statement, (purpose, sql.array(keys)))}


def _tell_readers(connection: apsw.Connection, purpose: Purpose, keys: Sequence[int], changes: Changes) -> None:
    if purpose == "model":
        statement = (
            "SELECT DISTINCT content_key, readers FROM partitions JOIN contents USING (content_key)"
            " WHERE partition_key IN (SELECT value FROM json_each(?))"
        )
        for content_key, readers in sql.rows(connection, statement, (sql.array(keys),)):
            changes.contents[content_key] = ContentState(readers, *partition_range(connection, content_key))
        return
    statement = f"SELECT {purpose}_key, readers FROM {purpose}s WHERE {purpose}_key IN (SELECT value FROM json_each(?))"
    told = changes.relationships if purpose == "relationship" else changes.predicates
    told.update(sql.rows(connection, statement, (sql.array(keys),)))


def switch(connection: apsw.Connection, target: Stamp, changes: Changes, switched: Callable[[], None]) -> None:
    """The next model's vectors take the place of the index's, all at once. Nothing may be missing."""
    if stamp.stored(connection, next=True) != target:
        raise ThreadError("the index was cleared, or is embedded with yet another model; nothing was switched")
    connection.execute("DELETE FROM vectors WHERE purpose IN ('model', 'relationship', 'predicate')")
    connection.execute("UPDATE vectors SET purpose = substr(purpose, 6) WHERE purpose LIKE 'next%'")
    connection.execute("INSERT OR REPLACE INTO stamp SELECT * FROM next_stamp")
    connection.execute("DELETE FROM next_stamp")
    changes.switched = switched
