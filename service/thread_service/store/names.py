"""An owner's names, kept current with the owner's assertions. Runs inside the caller's transaction.

A name is linkable while the owner asserts an entity under a linkable spelling of it. Whenever that changes, the
documents whose links may differ are put into `relink`.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw

from thread_service.store import sql
from thread_service.text.mentions import head


class Standing(NamedTuple):
    """What an owner's assertions make of an entity: whether it bears its name, and whether the name may be linked."""

    asserted: bool
    linkable: bool


def standing(connection: apsw.Connection, owner_key: int, entity_key: int) -> Standing:
    # Of an entity that very many documents assert, each question reads one row.
    asserted, linkable = sql.row(
        connection,
        "SELECT EXISTS (SELECT 1 FROM assertions WHERE entity_key = ?1 AND owner_key = ?2 AND source <> 'keyword'),"
        " EXISTS (SELECT 1 FROM assertions WHERE entity_key = ?1 AND owner_key = ?2 AND linkable)",
        (entity_key, owner_key),
    )
    return Standing(bool(asserted), bool(linkable))


def follow(connection: apsw.Connection, owner_key: int, entity_key: int, before: Standing) -> None:
    """After an assertion came or went: keep `names` right and mark the documents whose links may differ."""
    after = standing(connection, owner_key, entity_key)
    if after == before:
        return
    name_key = sql.value(connection, "SELECT name_key FROM entities WHERE entity_key = ?", (entity_key,))
    if not name_key:
        return
    if after.linkable:
        connection.execute("INSERT OR IGNORE INTO names VALUES (?, ?, ?)", (owner_key, name_key, head(name_key)))
        _mark_texts_containing(connection, owner_key, name_key)
    elif before.linkable:
        if not _is_linkable_name(connection, owner_key, name_key):
            connection.execute("DELETE FROM names WHERE owner_key = ? AND name_key = ?", (owner_key, name_key))
        _mark_mentioning(connection, owner_key, entity_key)
    elif _is_known(connection, owner_key, name_key):
        # A spelling that is not linkable bears a name that another entity's spelling has made linkable.
        _mark_texts_containing(connection, owner_key, name_key)
    connection.execute(
        # The condition that the index of names is partial by, or it would not be used.
        "INSERT OR IGNORE INTO relink SELECT document_key FROM documents"
        " WHERE owner_key = ? AND name_key = ? AND name_key <> ''",
        (owner_key, name_key),
    )


def _is_known(connection: apsw.Connection, owner_key: int, name_key: str) -> bool:
    found = sql.value(connection, "SELECT 1 FROM names WHERE owner_key = ? AND name_key = ?", (owner_key, name_key))
    return found is not None


def _is_linkable_name(connection: apsw.Connection, owner_key: int, name_key: str) -> bool:
    found = sql.value(
        connection,
        "SELECT 1 FROM entities JOIN assertions USING (entity_key)"
        " WHERE name_key = ? AND owner_key = ? AND linkable LIMIT 1",
        (name_key, owner_key),
    )
    return found is not None


def _mark_texts_containing(connection: apsw.Connection, owner_key: int, name_key: str) -> None:
    """The owner's documents whose words hold the name as a phrase (a superset: the index compares stems)."""
    connection.execute(
        # The owner is not looked for in the index: that would read every row of a large owner for a rare name.
        "INSERT OR IGNORE INTO relink SELECT document_key FROM words"
        " CROSS JOIN partitions ON partition_key = words.rowid CROSS JOIN documents USING (content_key)"
        " WHERE words MATCH ? AND documents.owner_key = ?",
        (f'body : "{name_key}"', owner_key),
    )


def _mark_mentioning(connection: apsw.Connection, owner_key: int, entity_key: int) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO relink SELECT document_key FROM mentions JOIN documents USING (document_key)"
        " WHERE entity_key = ? AND owner_key = ?",
        (entity_key, owner_key),
    )
