"""Tags that a group has because of what is filed in it. Runs inside the caller's transaction.

A group's tags are those its owner said (`registry.Group.tags`) and, of every document filed over HTTP, its entities or
keywords. The latter are kept by document, so that they go with it, and others than the owner see those of documents
they may read.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from thread_service.store import contents, registry, sql

# The next tag after each: one that a hundred thousand documents share costs one look.
_GATHERED = """
WITH RECURSIVE found (tag) AS (
    SELECT (SELECT tag FROM group_tags WHERE group_key = ?1 AND {readable} ORDER BY tag LIMIT 1)
    UNION ALL
    SELECT (SELECT tag FROM group_tags WHERE group_key = ?1 AND tag > found.tag AND {readable} ORDER BY tag LIMIT 1)
    FROM found WHERE found.tag IS NOT NULL
)
SELECT tag FROM found WHERE tag IS NOT NULL LIMIT ?2
"""
_BY_OWNER = _GATHERED.format(readable="TRUE")
_BY_OTHERS = _GATHERED.format(
    readable="EXISTS (SELECT 1 FROM documents"
    " WHERE documents.document_key = group_tags.document_key AND access = 'available')"
)


def shown(connection: apsw.Connection, group: registry.Group, owner_key: int | None, limit: int) -> tuple[str, ...]:
    """The group's tags as the caller `owner_key` sees them: the owner's own, and at most `limit` gathered ones."""
    statement = _BY_OWNER if owner_key == group.owner_key else _BY_OTHERS
    gathered: list[str] = sql.column(connection, statement, (group.group_key, limit))
    return tuple(sorted({*group.tags, *gathered})) if gathered else group.tags


def add(connection: apsw.Connection, document_key: int, group_key: int, tags: Iterable[str]) -> None:
    """The document, which is in the group, adds these tags to it."""
    connection.executemany(
        "INSERT OR IGNORE INTO group_tags VALUES (?, ?, ?)", ((group_key, tag, document_key) for tag in tags)
    )


def replace(connection: apsw.Connection, document_key: int, tags: Iterable[str]) -> None:
    """The document adds these tags to all its groups, and no others any more."""
    connection.execute("DELETE FROM group_tags WHERE document_key = ?", (document_key,))
    kept = list(tags)
    if kept:
        for group_key in contents.group_keys(connection, document_key):
            add(connection, document_key, group_key, kept)


def carry(connection: apsw.Connection, document_key: int, from_group: int, to_group: int) -> None:
    """The document takes its tags along into another group that it is in already."""
    connection.execute(
        "INSERT OR IGNORE INTO group_tags SELECT ?3, tag, document_key FROM group_tags"
        " WHERE document_key = ?1 AND group_key = ?2",
        (document_key, from_group, to_group),
    )


def forget(connection: apsw.Connection, group_key: int) -> None:
    """The owner replaces all tags of the group."""
    connection.execute("DELETE FROM group_tags WHERE group_key = ?", (group_key,))
