"""What was filed: each content hashes to its own address, has a vector for every text that wants one, and is known to
exactly the readers of the documents that point to it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.store import audience, sql
from thread_service.store.segments import Location
from thread_service.store.verification.look import Look, Range, documents_of
from thread_service.store.verification.rows import read_rows
from thread_service.text.ids import content_digest

_CONTENTS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class _Vector:
    purpose: str
    width: int
    location: Location


@dataclass(frozen=True, slots=True)
class _Partition:
    key: int
    ordinal: int
    text: str
    is_brought: bool
    waiting: bytes | None
    vectors: list[_Vector]


@dataclass(slots=True)
class _Content:
    """`documents`: (key, owner, access, whether it is pending or set aside) of those that point here."""

    key: int
    digest: bytes
    media_type: str
    state: str
    readers: str
    partitions: list[_Partition] = field(default_factory=list)
    documents: list[tuple[int, int, str, bool, bool]] = field(default_factory=list)


def check(look: Look) -> None:
    def work(connection: apsw.Connection, within: Range) -> int:
        found = _contents(connection, within)
        groups = _groups(connection, within)
        for content in found:
            complaints = [
                *_about_state(content),
                *_about_readers(content, groups),
                *_about_vectors(content),
                *_about_text(look, content),
            ]
            hit = documents_of(connection, content.key) if complaints else []
            for complaint in complaints:
                look.damage(complaint, hit, table="contents", key=content.key)
        return len(found)

    look.slices("contents", "content_key", work, rows=_CONTENTS_AT_ONCE)


def _contents(connection: apsw.Connection, within: Range) -> list[_Content]:
    among = "content_key > ? AND content_key <= ?"
    statement = f"SELECT content_key, digest, media_type, state, readers FROM contents WHERE {among}"
    found = {row[0]: _Content(*row) for row in sql.rows(connection, statement, within)}
    located: defaultdict[int, list[_Vector]] = defaultdict(list)
    for key, purpose, width, segment, slot, crc in sql.rows(
        connection,
        "SELECT partition_key, purpose, width, segment, slot, crc FROM partitions"
        f" JOIN vectors ON subject_key = partition_key AND purpose IN ('model', 'caller') WHERE {among}",
        within,
    ):
        located[key].append(_Vector(purpose, width, Location(segment, slot, crc)))
    for content_key, key, ordinal, text, brought, waiting in sql.rows(
        connection,
        "SELECT content_key, partition_key, ordinal, text, brought, vector FROM partitions"
        f" LEFT JOIN brought_vectors USING (partition_key) WHERE {among} ORDER BY content_key, ordinal",
        within,
    ):
        if content_key in found:
            partition = _Partition(key, ordinal, text, bool(brought), waiting, located[key])
            found[content_key].partitions.append(partition)
    for content_key, *document in sql.rows(
        connection,
        "SELECT content_key, document_key, owner_key, access,"
        "  EXISTS (SELECT 1 FROM pending WHERE pending.document_key = documents.document_key),"
        "  EXISTS (SELECT 1 FROM set_aside WHERE set_aside.document_key = documents.document_key)"
        f" FROM documents WHERE {among}",
        within,
    ):
        if content_key in found:
            found[content_key].documents.append((*document,))
    return [*found.values()]


def _groups(connection: apsw.Connection, within: Range) -> dict[int, list[int]]:
    """The groups of each document that points to one of the contents."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for document_key, group_key in sql.rows(
        connection,
        "SELECT document_key, group_key FROM documents JOIN document_groups USING (document_key)"
        " WHERE content_key > ? AND content_key <= ?",
        within,
    ):
        found[document_key].append(group_key)
    return found


def _about_state(content: _Content) -> list[str]:
    """A content lives as long as a document points to it, and one that is not ready is on somebody's list."""
    if not content.documents:
        return ["no document points to it"]
    lost = [
        key
        for key, _, _, is_pending, is_set_aside in content.documents
        if (content.state == "pending" and not is_pending)
        or (content.state == "failed" and not (is_pending or is_set_aside))
    ]
    return [f"is {content.state}, and document {key} does not wait for it" for key in lost]


def _about_readers(content: _Content, groups: dict[int, list[int]]) -> list[str]:
    tokens = {audience.media(content.media_type)}
    for key, owner_key, access, _, _ in content.documents:
        tokens |= audience.of_document(owner_key, access, groups.get(key, ()))
    expected = audience.join(tokens)
    if not content.documents or content.readers == expected:
        return []
    return [f"is open to the readers {content.readers!r}, and its documents say {expected!r}"]


def _about_vectors(content: _Content) -> list[str]:
    """Once a content is ready, every text has one vector, but for blank ones that brought none."""
    partitions = content.partitions
    keys = [partition.key for partition in partitions]
    if not keys:
        return ["has no partition"]
    ordinals = [partition.ordinal for partition in partitions]
    if ordinals != [*range(len(keys))] or keys != [*range(keys[0], keys[0] + len(keys))]:
        return [f"lacks partitions: it has {len(keys)}, the last is number {ordinals[-1]}"]
    if content.state != "ready":
        lost = [p.key for p in partitions if p.is_brought and p.waiting is None]
        return [
            *(f"is {content.state} and partition {p.key} has a vector" for p in partitions if p.vectors),
            *(f"is {content.state} and the vector that was brought for partition {key} is gone" for key in lost),
        ]
    complaints: list[str] = []
    for partition in partitions:
        if partition.waiting is not None:
            complaints.append(f"is ready and the vector that was brought for partition {partition.key} still waits")
        purposes = [vector.purpose for vector in partition.vectors]
        wanted = ["caller"] if partition.is_brought else ["model"] if partition.text.strip() else []
        if not purposes and wanted:
            complaints.append(f"partition {partition.key} (number {partition.ordinal}) has no vector")
        elif purposes != wanted:
            complaints.append(f"partition {partition.key} has vectors of purpose {purposes}, and {wanted} is wanted")
    return complaints


def _about_text(look: Look, content: _Content) -> list[str]:
    vectors = [_brought(look, partition) for partition in content.partitions]
    if any(
        partition.is_brought and vector is None for partition, vector in zip(content.partitions, vectors, strict=True)
    ):
        return []  # a vector that is lost has been named
    texts = [partition.text for partition in content.partitions]
    if content_digest(content.media_type, texts, vectors) == content.digest:
        return []
    return ["is not what was filed: its texts and vectors do not hash to its address"]


def _brought(look: Look, partition: _Partition) -> NDArray[np.float32] | None:
    if not partition.is_brought:
        return None
    if partition.waiting is not None:
        return _as_vector(partition.waiting)
    if not partition.vectors:
        return None
    vector = partition.vectors[0]
    [data] = read_rows(look.place.vectors, [vector.location], vector.width)
    return None if isinstance(data, str) else _as_vector(data)


def _as_vector(data: bytes) -> NDArray[np.float32] | None:
    return np.frombuffer(data, "<f4") if len(data) % 4 == 0 else np.empty(0, np.float32)
