"""Documents: an owner's name for a content. Runs inside the caller's transaction.

A document is (owner, document id). Whatever changes about it, `touch` afterwards: it brings the readers of its content,
of its edges and of the node's memory up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import apsw
import msgspec

from thread_service.store import audience, contents, edges, extractions, graph, group_tags, links, sql
from thread_service.store.changes import Changes, DocumentState
from thread_service.text.mentions import name_key

_IDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Document:
    document_key: int
    owner_key: int
    document_id: str
    content_key: int
    access: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a deposit says about a document. `urls`: one entry per partition, or None when the caller gave none."""

    content_key: int
    name: str | None
    metadata: bytes
    urls: list[str | None] | None
    created_at: int

    def columns(self) -> tuple[int, str | None, str, bytes, str | None, int]:
        urls = None if self.urls is None else msgspec.json.encode(self.urls).decode()
        return self.content_key, self.name, name_key(self.name or ""), self.metadata, urls, self.created_at


def find(connection: apsw.Connection, owner_key: int, document_id: str) -> Document | None:
    statement = (
        "SELECT document_key, owner_key, document_id, content_key, access FROM documents"
        " WHERE owner_key = ? AND document_id = ?"
    )
    for row in sql.rows(connection, statement, (owner_key, document_id)):
        return Document(*row)
    return None


def owned(connection: apsw.Connection, owner_key: int) -> list[Document]:
    statement = (
        "SELECT document_key, owner_key, document_id, content_key, access FROM documents"
        " WHERE owner_key = ? ORDER BY document_key"
    )
    return [Document(*row) for row in sql.rows(connection, statement, (owner_key,))]


def is_held(connection: apsw.Connection, owner_key: int, content_key: int) -> bool:
    """Whether a document of the owner points to this content."""
    statement = (
        "SELECT 1 FROM documents INDEXED BY documents_by_content WHERE content_key = ? AND owner_key = ? LIMIT 1"
    )
    return sql.value(connection, statement, (content_key, owner_key)) is not None


def failed(connection: apsw.Connection, owner_key: int, document_ids: Iterable[str]) -> set[str]:
    """Those of the owner's documents that cannot be searched, because their content could not be embedded."""
    statement = (
        "SELECT document_id FROM documents JOIN contents USING (content_key) WHERE owner_key = ?"
        " AND document_id IN (SELECT value FROM json_each(?)) AND state = 'failed'"
    )
    return {*sql.column(connection, statement, (owner_key, sql.array(document_ids)))}


def ids_after(
    connection: apsw.Connection, owner_key: int, after_id: str, prefix: str, group_ids: Sequence[str]
) -> Iterator[str]:
    """The owner's document ids that start with `prefix`, after `after_id`, ascending by code points.

    `group_ids`: filed in any of the owner's groups of these ids; empty for documents in any group or none.
    """
    statement = (
        "SELECT document_id FROM documents d WHERE owner_key = ?1 AND document_id > ?2 AND document_id >= ?3"
        " AND (?4 = '[]' OR EXISTS (SELECT 1 FROM document_groups JOIN groups USING (group_key)"
        "  WHERE document_key = d.document_key AND group_id IN (SELECT value FROM json_each(?4))))"
        " ORDER BY document_id LIMIT ?5"
    )
    while True:
        parameters = (owner_key, after_id, prefix, sql.array(group_ids), _IDS_AT_ONCE)
        found: list[str] = sql.column(connection, statement, parameters)
        for document_id in found:
            # Ids that start alike lie together.
            if not document_id.startswith(prefix):
                return
            yield document_id
        if len(found) < _IDS_AT_ONCE:
            return
        after_id = found[-1]


def create(connection: apsw.Connection, owner_key: int, document_id: str, said: Said) -> int:
    """A new restricted document in no group."""
    connection.execute(
        "INSERT INTO documents"
        " (owner_key, document_id, access, content_key, name, name_key, metadata, urls, created_at)"
        " VALUES (?, ?, 'restricted', ?, ?, ?, ?, ?, ?)",
        (owner_key, document_id, *said.columns()),
    )
    return connection.last_insert_rowid()


def replace(connection: apsw.Connection, document: Document, said: Said, changes: Changes) -> None:
    """Point the document to what was deposited last. Other content: the old graph contribution goes at once."""
    is_other = said.content_key != document.content_key
    if is_other:
        graph.retract(connection, document.document_key, changes)
        links.unlink(connection, document.document_key, changes)
        extractions.unmark(connection, document.document_key)
    connection.execute(
        "UPDATE documents SET content_key = ?, name = ?, name_key = ?, metadata = ?, urls = ?, created_at = ?"
        " WHERE document_key = ?",
        (*said.columns(), document.document_key),
    )
    if is_other:
        contents.refresh_readers(connection, document.content_key, changes)


def add_to_group(connection: apsw.Connection, document_key: int, group_key: int) -> None:
    """File it in the group too; the newest group is the primary one."""
    connection.execute("INSERT OR IGNORE INTO document_groups VALUES (?, ?)", (document_key, group_key))
    connection.execute("UPDATE documents SET primary_group = ? WHERE document_key = ?", (group_key, document_key))


def place(
    connection: apsw.Connection,
    document_key: int,
    group_keys: Iterable[int],
    primary: int | None,
    *,
    is_named: bool,
) -> None:
    """A new document as it stood in another store: its groups, and whether its name is one in the graph."""
    connection.executemany(
        "INSERT OR IGNORE INTO document_groups VALUES (?, ?)", [(document_key, key) for key in group_keys]
    )
    connection.execute("UPDATE documents SET primary_group = ? WHERE document_key = ?", (primary, document_key))
    if not is_named:
        connection.execute("UPDATE documents SET name_key = '' WHERE document_key = ?", (document_key,))


def move_to_group(connection: apsw.Connection, document_key: int, group_key: int) -> None:
    """Put the group in the place of the primary one; other groups keep the document."""
    before = sql.value(connection, "SELECT primary_group FROM documents WHERE document_key = ?", (document_key,))
    add_to_group(connection, document_key, group_key)
    if before is not None and before != group_key:
        group_tags.carry(connection, document_key, before, group_key)
        connection.execute(
            "DELETE FROM document_groups WHERE document_key = ? AND group_key = ?", (document_key, before)
        )


def set_access(connection: apsw.Connection, document_keys: Iterable[int], access: str, changes: Changes) -> None:
    for document_key in document_keys:
        edges.leave(connection, document_key)
        connection.execute("UPDATE documents SET access = ? WHERE document_key = ?", (access, document_key))
        edges.enter(connection, document_key, changes)
        touch(connection, document_key, changes)


def set_group_access(connection: apsw.Connection, group_key: int, access: str, changes: Changes) -> None:
    """Give the access to all documents of the group that have another one."""
    statement = (
        "SELECT document_key FROM document_groups JOIN documents USING (document_key)"
        " WHERE group_key = ? AND access <> ? ORDER BY document_key"
    )
    set_access(connection, [*sql.column(connection, statement, (group_key, access))], access, changes)


def counts(connection: apsw.Connection) -> tuple[int, int, int]:
    """(documents, available ones, owners who hold any); documents by distinct id and content."""
    distinct = "SELECT count(*) FROM (SELECT DISTINCT document_id, content_key FROM documents"
    return (
        sql.value(connection, f"{distinct})"),
        sql.value(connection, f"{distinct} WHERE access = 'available')"),
        owner_count(connection),
    )


def owner_count(connection: apsw.Connection) -> int:
    """Owners who hold any document."""
    holds = "EXISTS (SELECT 1 FROM documents WHERE documents.owner_key = owners.owner_key)"
    return int(sql.value(connection, f"SELECT count(*) FROM owners WHERE {holds}"))


def touch(connection: apsw.Connection, document_key: int, changes: Changes) -> None:
    """Readers follow what was just written about this document."""
    owner_key, access, content_key = sql.row(
        connection, "SELECT owner_key, access, content_key FROM documents WHERE document_key = ?", (document_key,)
    )
    tokens = audience.of_document(owner_key, access, contents.group_keys(connection, document_key))
    changes.documents[document_key] = DocumentState(audience.join(tokens), content_key)
    contents.refresh_readers(connection, content_key, changes)


def remove(connection: apsw.Connection, document: Document, changes: Changes) -> None:
    """The document, its graph contribution and its links go; its content too when nobody else points to it."""
    graph.retract(connection, document.document_key, changes)
    links.unlink(connection, document.document_key, changes)
    connection.execute("DELETE FROM documents WHERE document_key = ?", (document.document_key,))
    changes.documents[document.document_key] = None
    contents.refresh_readers(connection, document.content_key, changes)


def url(store_path: Path, document_id: str) -> str:
    """The address of a document whose caller gave none. It names the document, not a file: ids are never file names."""
    return f"file://{quote(str(store_path))}/documents/{quote(document_id, safe='')}"
