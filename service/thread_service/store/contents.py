"""Content: what is stored once, whatever documents and owners point to it. Runs inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.store import audience, pending, sql
from thread_service.store.changes import Changes, ContentState
from thread_service.text.tokens import indexed_words

State = Literal["pending", "ready", "failed"]


def find(connection: apsw.Connection, digest: bytes) -> tuple[int, State] | None:
    """(content_key, state) of the content at this address."""
    found: tuple[int, State] | None = sql.row(
        connection, "SELECT content_key, state FROM contents WHERE digest = ?", (digest,)
    )
    return found


def create(
    connection: apsw.Connection,
    digest: bytes,
    media_type: str,
    texts: Sequence[str],
    vectors: Sequence[NDArray[np.float32] | None],
) -> int:
    """Store texts and brought vectors (float32, or None for the node to embed) as pending content."""
    connection.execute(
        "INSERT INTO contents (digest, media_type, state) VALUES (?, ?, 'pending')", (digest, media_type)
    )
    content_key = connection.last_insert_rowid()
    connection.executemany(
        "INSERT INTO partitions (content_key, ordinal, text, brought) VALUES (?, ?, ?, ?)",
        (
            (content_key, ordinal, text, vector is not None)
            for ordinal, (text, vector) in enumerate(zip(texts, vectors, strict=True))
        ),
    )
    first = connection.last_insert_rowid() + 1 - len(texts)
    connection.executemany(
        "INSERT INTO brought_vectors VALUES (?, ?)",
        ((key, _bytes(vector)) for key, vector in enumerate(vectors, first) if vector is not None),
    )
    return content_key


def retry(connection: apsw.Connection, content_key: int) -> None:
    """A failed content is tried again, for all documents that point to it."""
    pending.take_up(connection, content_key)
    connection.execute(
        "UPDATE contents SET state = 'pending', failure = NULL WHERE content_key = ? AND state = 'failed'",
        (content_key,),
    )


def mark_failed(connection: apsw.Connection, content_key: int, reason: str) -> None:
    connection.execute(
        "UPDATE contents SET state = 'failed', failure = ? WHERE content_key = ? AND state = 'pending'",
        (reason, content_key),
    )


def mark_ready(connection: apsw.Connection, content_key: int, changes: Changes) -> bool:
    """Make pending content searchable by its words; False when it is gone or was ready already."""
    connection.execute(
        "UPDATE contents SET state = 'ready' WHERE content_key = ? AND state = 'pending'", (content_key,)
    )
    if not connection.changes():
        return False
    connection.execute(
        "DELETE FROM brought_vectors WHERE partition_key IN"
        " (SELECT partition_key FROM partitions WHERE content_key = ?)",
        (content_key,),
    )
    _index_words(connection, content_key, changes)
    return True


def refresh_readers(connection: apsw.Connection, content_key: int, changes: Changes) -> None:
    """Bring the readers of a content up to date with the documents that point to it; drop it when none does."""
    media_type, state, stored = sql.row(
        connection, "SELECT media_type, state, readers FROM contents WHERE content_key = ?", (content_key,)
    )
    found: set[str] = set()
    for document_key, owner_key, access in sql.rows(
        connection, "SELECT document_key, owner_key, access FROM documents WHERE content_key = ?", (content_key,)
    ):
        found |= audience.of_document(owner_key, access, group_keys(connection, document_key))
    if not found:
        _drop(connection, content_key, changes)
        return
    joined = audience.join(found | {audience.media(media_type)})
    if joined != stored:
        connection.execute("UPDATE contents SET readers = ? WHERE content_key = ?", (joined, content_key))
        if state == "ready":
            _unindex_words(connection, content_key)
            _index_words(connection, content_key, changes)
    first, count = partition_range(connection, content_key)
    changes.contents[content_key] = ContentState(joined, first, count)


def group_keys(connection: apsw.Connection, document_key: int) -> list[int]:
    return [*sql.column(connection, "SELECT group_key FROM document_groups WHERE document_key = ?", (document_key,))]


def partition_range(connection: apsw.Connection, content_key: int) -> tuple[int, int]:
    """(first partition key, how many)."""
    found: tuple[int, int] = sql.row(
        connection, "SELECT min(partition_key), count(*) FROM partitions WHERE content_key = ?", (content_key,)
    )
    return found


def to_embed(connection: apsw.Connection, content_key: int) -> tuple[int, int]:
    """(how many partitions, how many bytes of UTF-8 in those that bring no vector); no text is read."""
    found: tuple[int, int] = sql.row(
        connection,
        "SELECT count(*), coalesce(sum(octet_length(text)) FILTER (WHERE NOT brought), 0) FROM partitions"
        " WHERE content_key = ?",
        (content_key,),
    )
    return found


def _drop(connection: apsw.Connection, content_key: int, changes: Changes) -> None:
    _unindex_words(connection, content_key)
    connection.execute(
        "DELETE FROM vectors WHERE purpose IN ('model', 'caller', 'next_model') AND subject_key IN"
        " (SELECT partition_key FROM partitions WHERE content_key = ?)",
        (content_key,),
    )
    connection.execute("DELETE FROM contents WHERE content_key = ?", (content_key,))
    changes.contents[content_key] = None


def _index_words(connection: apsw.Connection, content_key: int, changes: Changes) -> None:
    statement = (
        "SELECT partition_key, text, readers FROM partitions JOIN contents USING (content_key) WHERE content_key = ?"
    )
    for partition_key, text, readers in sql.rows(connection, statement, (content_key,)):
        body = indexed_words(text)
        connection.execute(
            "INSERT INTO words (rowid, body, readers) VALUES (?, ?, ?)", (partition_key, " ".join(body), readers)
        )
        changes.lengths[partition_key] = len(body) + readers.count(" ") + bool(readers)


def _unindex_words(connection: apsw.Connection, content_key: int) -> None:
    connection.execute(
        "DELETE FROM words WHERE rowid IN (SELECT partition_key FROM partitions WHERE content_key = ?)", (content_key,)
    )


def _bytes(vector: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()
