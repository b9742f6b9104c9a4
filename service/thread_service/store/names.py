"""An owner's names, kept current with the owner's assertions. Runs inside the caller's transaction.

A name is linkable while the owner asserts an entity under a linkable spelling of it. Whenever that changes it is noted
in `changed_names`: the documents whose links may differ are found and linked again in the background, however many they
are (see `back_links`).
"""

from __future__ import annotations

from typing import NamedTuple

import apsw

from thread_service.store import back_links, sql
from thread_service.text.mentions import head


class Standing(NamedTuple):
    """What an owner's assertions make of an entity: whether it bears its name, and whether the name may be linked."""

    asserted: bool
    linkable: bool


NOT_ASSERTED = Standing(asserted=False, linkable=False)


def standing(connection: apsw.Connection, owner_key: int, entity_key: int) -> Standing:
    # Of an entity that very many documents assert, each question reads one row.
    asserted, linkable = sql.row(
        connection,
        "SELECT EXISTS (SELECT 1 FROM assertions WHERE entity_key = ?1 AND owner_key = ?2 AND source <> 'keyword'),"
        " EXISTS (SELECT 1 FROM assertions WHERE entity_key = ?1 AND owner_key = ?2 AND linkable)",
        (entity_key, owner_key),
    )
    return Standing(bool(asserted), bool(linkable))


def follow(connection: apsw.Connection, owner_key: int, entity_key: int, before: Standing, after: Standing) -> None:
    """After an assertion came or went: keep `names` right, and note it if documents may be linked otherwise now."""
    if after == before:
        return
    name_key, is_known = sql.row(
        connection,
        "SELECT name_key, EXISTS (SELECT 1 FROM names WHERE owner_key = ?1 AND names.name_key = entities.name_key)"
        " FROM entities WHERE entity_key = ?2",
        (owner_key, entity_key),
    )
    if not name_key:
        return
    if after.linkable and not is_known:
        is_known = True
        connection.execute("INSERT INTO names VALUES (?, ?, ?)", (owner_key, name_key, head(name_key)))
    elif before.linkable and not after.linkable and not _is_linkable_name(connection, owner_key, name_key):
        connection.execute("DELETE FROM names WHERE owner_key = ? AND name_key = ?", (owner_key, name_key))
    if after > before:
        # A spelling that is not linkable may bear a name that another entity's spelling has made linkable.
        back_links.note_coming(connection, owner_key, name_key, in_texts=bool(is_known))
    else:
        back_links.note_going(connection, owner_key, entity_key)
        if not _is_borne(connection, owner_key, name_key):
            back_links.forget(connection, owner_key, name_key)


def _is_borne(connection: apsw.Connection, owner_key: int, name_key: str) -> bool:
    found = sql.value(
        connection,
        "SELECT 1 FROM entities JOIN assertions USING (entity_key)"
        " WHERE name_key = ? AND owner_key = ? AND source <> 'keyword' LIMIT 1",
        (name_key, owner_key),
    )
    return found is not None


def _is_linkable_name(connection: apsw.Connection, owner_key: int, name_key: str) -> bool:
    found = sql.value(
        connection,
        "SELECT 1 FROM entities JOIN assertions USING (entity_key)"
        " WHERE name_key = ? AND owner_key = ? AND linkable LIMIT 1",
        (name_key, owner_key),
    )
    return found is not None
