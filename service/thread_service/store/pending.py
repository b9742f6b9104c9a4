"""Work that was accepted and is still to do, as rows that survive any crash. Runs inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import apsw
import msgspec

from thread_service.store import sql

EdgePurpose = Literal["relationship", "predicate"]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class KeptEntity(msgspec.Struct, frozen=True):
    """An entity that a document asserts, as it stood in another store."""

    name: str
    kind: str
    source: Literal["given", "extracted", "keyword"]
    mentions: Count = 1


class KeptEdge(msgspec.Struct, frozen=True):
    """`subject` and `object` index the entities beside it."""

    subject: Annotated[int, msgspec.Meta(ge=0)]
    predicate: str
    object: Annotated[int, msgspec.Meta(ge=0)]
    source: Literal["given", "extracted", "derived"]
    weight: Count = 1


class KeptGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a document asserted in another store, found or said: nothing is to be found again.

    `unread`: no instruct model has read it yet; empty, or why it is put off.
    """

    entities: list[KeptEntity] = []
    relationships: list[KeptEdge] = []
    unread: str | None = None


class SaidGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a deposit said about entities, as it is stored until the document is indexed.

    `entities` None: nothing was said, keywords are to be found. `kept` takes the place of both others.
    """

    entities: list[tuple[str, str]] | None
    relationships: list[tuple[str, str, str]]
    kept: KeptGraph | None = None


@dataclass(frozen=True, slots=True)
class PendingDocument:
    sequence: int
    document_key: int
    content_key: int
    state: Literal["pending", "ready", "failed"]
    graph: str

    @property
    def said(self) -> SaidGraph:
        return msgspec.json.decode(self.graph, type=SaidGraph)


def enqueue(connection: apsw.Connection, document_key: int, said: SaidGraph) -> int:
    """The document is to be indexed (again); returns its place in the queue. An earlier place is given up."""
    connection.execute("DELETE FROM set_aside WHERE document_key = ?", (document_key,))
    connection.execute(
        "INSERT OR REPLACE INTO pending (document_key, graph) VALUES (?, ?)",
        (document_key, msgspec.json.encode(said).decode()),
    )
    return connection.last_insert_rowid()


def place(connection: apsw.Connection, document_key: int) -> int | None:
    """The document's place in the queue, None when it is indexed."""
    found: int | None = sql.value(connection, "SELECT sequence FROM pending WHERE document_key = ?", (document_key,))
    return found


_QUEUED = (
    "SELECT sequence, document_key, content_key, state, graph FROM pending JOIN documents USING (document_key)"
    " JOIN contents USING (content_key)"
)


def take(
    connection: apsw.Connection, limit: int, *, without_model: bool, but: Iterable[int] = ()
) -> list[PendingDocument]:
    """The next documents in order of filing, `but` those in these places; `without_model`: only those no text of which
    needs embedding.

    They stay queued until `finish`.
    """
    needs_no_model = (
        " AND (state <> 'pending' OR NOT EXISTS"
        "  (SELECT 1 FROM partitions WHERE partitions.content_key = contents.content_key AND NOT brought))"
    )
    statement = (
        f"{_QUEUED} WHERE sequence NOT IN (SELECT value FROM json_each(?))"
        f"{needs_no_model if without_model else ''} ORDER BY sequence LIMIT ?"
    )
    return [PendingDocument(*row) for row in sql.rows(connection, statement, (sql.array(but), limit))]


def at(connection: apsw.Connection, sequence: int) -> PendingDocument | None:
    """The document in this place, None when it was given up."""
    row = sql.row(connection, f"{_QUEUED} WHERE sequence = ?", (sequence,))
    return None if row is None else PendingDocument(*row)


def unfinished(connection: apsw.Connection, sequences: Iterable[int]) -> set[int]:
    """Those of the places that are still in the queue."""
    statement = "SELECT sequence FROM pending WHERE sequence IN (SELECT value FROM json_each(?))"
    return {*sql.column(connection, statement, (sql.array(sequences),))}


def finish(connection: apsw.Connection, sequence: int) -> bool:
    """False when the place was given up meanwhile: the document was removed or deposited again."""
    connection.execute("DELETE FROM pending WHERE sequence = ?", (sequence,))
    return bool(connection.changes())


def set_aside(connection: apsw.Connection, document: PendingDocument) -> None:
    """Its content could not be embedded: keep what was said about it until that is tried again."""
    connection.execute("INSERT OR REPLACE INTO set_aside VALUES (?, ?)", (document.document_key, document.graph))


def take_up(connection: apsw.Connection, content_key: int) -> None:
    """The content is tried again: the documents that were set aside with it are pending again."""
    aside = "FROM set_aside WHERE document_key IN (SELECT document_key FROM documents WHERE content_key = ?)"
    connection.execute(
        f"INSERT OR IGNORE INTO pending (document_key, graph) SELECT document_key, graph {aside}", (content_key,)
    )
    connection.execute(f"DELETE {aside}", (content_key,))


def count(connection: apsw.Connection, limit: int) -> int:
    """How many documents are queued, counted no further than `limit`."""
    return int(sql.value(connection, "SELECT count(*) FROM (SELECT 1 FROM pending LIMIT ?)", (limit,)))


@dataclass(frozen=True, slots=True)
class Unembedded:
    sequence: int
    purpose: EdgePurpose
    subject_key: int
    text: str
    patient: bool


def embed_later(connection: apsw.Connection, purpose: EdgePurpose, texts: Mapping[int, str]) -> None:
    """`texts`: by subject."""
    connection.executemany(
        "INSERT INTO unembedded (purpose, subject_key, text) VALUES (?, ?, ?)",
        [(purpose, subject_key, text) for subject_key, text in texts.items()],
    )


def unembedded(connection: apsw.Connection, limit: int, *, but: Iterable[int] = ()) -> list[Unembedded]:
    """The next of that queue, `but` those in these places; what nobody waits for comes last."""
    statement = (
        "SELECT sequence, purpose, subject_key, text, patient FROM unembedded"
        " WHERE sequence NOT IN (SELECT value FROM json_each(?)) ORDER BY patient, sequence LIMIT ?"
    )
    return [Unembedded(*row) for row in sql.rows(connection, statement, (sql.array(but), limit))]


def newest_unembedded(connection: apsw.Connection) -> int:
    """The newest place in that queue, 0 when it is empty."""
    return int(sql.value(connection, "SELECT coalesce(max(sequence), 0) FROM unembedded"))


def is_unembedded(connection: apsw.Connection, up_to: int) -> bool:
    """Whether anything up to this place is in the queue that somebody may wait for."""
    statement = "SELECT 1 FROM unembedded WHERE patient = 0 AND sequence <= ? LIMIT 1"
    return sql.value(connection, statement, (up_to,)) is not None


def be_patient(connection: apsw.Connection, after: int) -> None:
    """Nobody waits for what came into the queue after this place."""
    connection.execute("UPDATE unembedded SET patient = 1 WHERE sequence > ?", (after,))


def embedded(connection: apsw.Connection, sequence: int) -> bool:
    """Done with one; False when its subject is gone meanwhile."""
    connection.execute("DELETE FROM unembedded WHERE sequence = ?", (sequence,))
    return bool(connection.changes())


def forget_vector(connection: apsw.Connection, purpose: EdgePurpose, subject_key: int) -> None:
    """The subject goes: its vectors and its wish for one too."""
    connection.execute(
        "DELETE FROM vectors WHERE purpose IN (?, ?) AND subject_key = ?", (purpose, f"next_{purpose}", subject_key)
    )
    connection.execute("DELETE FROM unembedded WHERE purpose = ? AND subject_key = ?", (purpose, subject_key))
