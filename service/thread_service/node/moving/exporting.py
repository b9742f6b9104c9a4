"""A store as records, from one snapshot of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from thread_service.node.moving.records import VERSION, Document, End, Group, Header, Owner, Policy, Record, Unread
from thread_service.store import contents, policies, sql
from thread_service.store.pending import KeptEdge, KeptEntity, KeptGraph, SaidGraph
from thread_service.store.segments import Location
from thread_service.store.verification import Progress
from thread_service.store.verification.rows import read_rows
from thread_service.text.mentions import name_key

KEYS_AT_ONCE = 1_000

Read = Callable[[], AbstractContextManager[apsw.Connection]]


def export(
    node_id: str, connection: apsw.Connection, newer: Read, vectors: Path, progress: Progress
) -> Iterator[Record | Unread]:
    """Every record of the snapshot of `connection`; in the place of a document with damaged vectors, what is damaged.

    `newer`: a read transaction of its own, which knows where compaction has moved vectors meanwhile. `vectors`: the
    directory of segments.
    """
    yield Header(VERSION, node_id)
    if sql.value(connection, "SELECT 1 FROM policy") is not None:
        policy = policies.read(connection)
        yield Policy(
            list(policy.kinds),
            policy.prompt_template,
            dict(policy.predicate_aliases),
            policy.max_entities,
            policy.max_relationships,
            policy.co_mention,
            policy.hub_degree_cap,
        )
    counts = {"owners": 0, "groups": 0, "documents": 0}
    for owner in _owners(connection):
        counts["owners"] += 1
        yield owner
    for group in _groups(connection):
        counts["groups"] += 1
        yield group
    progress("documents")
    last = sql.value(connection, "SELECT max(document_key) FROM documents") or 1
    for key in _keys(connection):
        found = _document(connection, key, newer, vectors)
        counts["documents"] += isinstance(found, Document)
        yield found
        progress("documents", key / last)
    yield End(**counts)


def _owners(connection: apsw.Connection) -> list[Owner]:
    return [Owner(id) for id in sql.column(connection, "SELECT owner_id FROM owners ORDER BY owner_key")]


def _groups(connection: apsw.Connection) -> list[Group]:
    statement = (
        "SELECT owner_id, group_id, label, description, tags, access FROM groups JOIN owners USING (owner_key)"
        " ORDER BY group_key"
    )
    return [
        Group(owner, id, label, description, sql.strings(tags), access)
        for owner, id, label, description, tags, access in sql.rows(connection, statement)
    ]


def _keys(connection: apsw.Connection) -> Iterator[int]:
    after = 0
    statement = "SELECT document_key FROM documents WHERE document_key > ? ORDER BY document_key LIMIT ?"
    while found := sql.column(connection, statement, (after, KEYS_AT_ONCE)):
        yield from found
        after = found[-1]


def _document(connection: apsw.Connection, key: int, newer: Read, vectors: Path) -> Document | Unread:
    row: Any = sql.row(
        connection,
        "SELECT owner_id, document_id, content_key, media_type, name, name_key, metadata, urls, access, created_at,"
        " (SELECT group_id FROM groups WHERE group_key = primary_group) FROM documents JOIN owners USING (owner_key)"
        " JOIN contents USING (content_key) WHERE document_key = ?",
        (key,),
    )
    owner, id, content_key, media_type, name, stored_name, metadata, urls, access, created_at, primary = row
    brought = _brought(connection, content_key, newer, vectors)
    if isinstance(brought, str):
        return Unread(f"document {id!a} of {owner!a}", brought)
    texts = "SELECT text FROM partitions WHERE content_key = ? ORDER BY ordinal"
    groups = (
        "SELECT group_id, (SELECT json_group_array(tag ORDER BY tag) FROM group_tags t"
        "  WHERE t.document_key = ?1 AND t.group_key = g.group_key)"
        " FROM document_groups g JOIN groups USING (group_key) WHERE document_key = ?1 ORDER BY group_id"
    )
    filed = {group_id: sql.strings(tags) for group_id, tags in sql.rows(connection, groups, (key,))}
    waiting = sql.value(
        connection,
        "SELECT graph FROM pending WHERE document_key = ?1"
        " UNION ALL SELECT graph FROM set_aside WHERE document_key = ?1",
        (key,),
    )
    return Document(
        owner=owner,
        id=id,
        access=access,
        created_at=created_at,
        texts=sql.column(connection, texts, (content_key,)),
        media_type=media_type,
        name=name,
        is_named=stored_name == name_key(name or ""),
        metadata=metadata,
        groups=[*filed],
        primary_group=primary,
        group_tags={group_id: tags for group_id, tags in filed.items() if tags},
        urls=None if urls is None else msgspec.json.decode(urls, type=list[str | None]),
        vectors=brought,
        graph=_graph(connection, key) if waiting is None else None,
        waiting=None if waiting is None else msgspec.json.decode(waiting, type=SaidGraph),
    )


# ---------------------------------------------------------------------------------------------------- vectors


def _brought(
    connection: apsw.Connection, content_key: int, newer: Read, directory: Path
) -> list[bytes | None] | str | None:
    """The callers' vectors, None when there are none; what is wrong with one."""
    statement = (
        "SELECT ordinal, vector, vector_key, width, segment, slot, crc FROM partitions"
        " LEFT JOIN brought_vectors USING (partition_key)"
        " LEFT JOIN vectors ON subject_key = partition_key AND purpose = 'caller'"
        " WHERE content_key = ? AND brought ORDER BY ordinal"
    )
    found = sql.rows(connection, statement, (content_key,))
    if not found:
        return None
    result: list[bytes | None] = [None] * contents.partition_range(connection, content_key)[1]
    for ordinal, waiting, vector_key, width, segment, slot, crc in found:
        if vector_key is None:
            result[ordinal] = waiting
            continue
        [row] = read_rows(directory, [Location(segment, slot, crc)], width)
        if isinstance(row, str):
            row = _moved(newer, vector_key, width, directory) or row
        if isinstance(row, str):
            return f"its vector of text {ordinal}, row {slot} of segment {segment}, {row}"
        result[ordinal] = row
    return result


def _moved(newer: Read, vector_key: int, width: int, directory: Path) -> bytes | None:
    """Where a compaction has put it since the snapshot was taken."""
    with newer() as connection:
        now = sql.row(connection, "SELECT segment, slot, crc FROM vectors WHERE vector_key = ?", (vector_key,))
    if now is None:
        return None
    [row] = read_rows(directory, [Location(*now)], width)
    return row if isinstance(row, bytes) else None


# ---------------------------------------------------------------------------------------------------- graph


def _graph(connection: apsw.Connection, key: int) -> KeptGraph:
    entities = sql.rows(
        connection,
        "SELECT entity_id, spelling, kind, source, mentions FROM assertions JOIN entities USING (entity_key)"
        " WHERE document_key = ? AND source <> 'name' ORDER BY entity_id, source",
        (key,),
    )
    at: dict[str, int] = {}
    for index, (entity_id, *_) in enumerate(entities):
        at.setdefault(entity_id, index)
    edges = sql.rows(
        connection,
        "SELECT s.entity_id, predicate, o.entity_id, source, weight FROM relationship_assertions"
        " JOIN relationships r USING (relationship_key) JOIN predicates USING (predicate_key)"
        " JOIN entities s ON s.entity_key = r.subject_key JOIN entities o ON o.entity_key = r.object_key"
        " WHERE document_key = ? ORDER BY relationship_id, source",
        (key,),
    )
    unread = sql.rows(connection, "SELECT coalesce(put_off, '') FROM unextracted WHERE document_key = ?", (key,))
    return KeptGraph(
        [KeptEntity(name, kind, source, mentions) for _, name, kind, source, mentions in entities],
        [
            KeptEdge(at[subject], predicate, at[object_], source, weight)
            for subject, predicate, object_, source, weight in edges
            # In a sound store a document asserts the ends of what it asserts.
            if subject in at and object_ in at
        ],
        unread[0][0] if unread else None,
    )
