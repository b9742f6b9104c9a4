"""An owner's names, kept current with the owner's assertions. Runs inside the caller's transaction.

A name is linkable while the owner asserts an entity under a linkable spelling of it. Whenever that changes it is noted
in `changed_names`: the documents whose links may differ are found and linked again in the background, however many they
are (see `back_links`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import apsw

from thread_service.store import back_links, sql
from thread_service.text.mentions import head


class Standing(NamedTuple):
    """What an owner's assertions make of an entity: whether it bears its name, and whether the name may be linked."""

    asserted: bool
    linkable: bool


def standing(connection: apsw.Connection, owner_key: int, entity_keys: Collection[int]) -> dict[int, Standing]:
    """What the owner's assertions make of each of the entities, by key."""
    # Of an entity that very many documents assert, each question reads one row.
    statement = (
        "SELECT value,"
        " EXISTS (SELECT 1 FROM assertions WHERE entity_key = value AND owner_key = ?2 AND source <> 'keyword'),"
        " EXISTS (SELECT 1 FROM assertions WHERE entity_key = value AND owner_key = ?2 AND linkable)"
        " FROM json_each(?1)"
    )
    return {
        entity_key: Standing(bool(asserted), bool(linkable))
        for entity_key, asserted, linkable in sql.rows(connection, statement, (sql.array(entity_keys), owner_key))
    }


def follow(
    connection: apsw.Connection, owner_key: int, before: Mapping[int, Standing], after: Mapping[int, Standing]
) -> None:
    """After assertions came or went: keep `names` right, and note it where documents may be linked otherwise now.

    `before` and `after`: by the keys of the same entities.
    """
    changed = [key for key in after if after[key] != before[key]]
    if not changed:
        return
    named: dict[int, str] = {}
    known: set[str] = set()
    for entity_key, name_key, is_known in sql.rows(
        connection,
        "SELECT entity_key, name_key,"
        " EXISTS (SELECT 1 FROM names WHERE owner_key = ?2 AND names.name_key = entities.name_key)"
        " FROM json_each(?1) CROSS JOIN entities ON entity_key = value WHERE name_key <> ''",
        (sql.array(changed), owner_key),
    ):
        named[entity_key] = name_key
        if is_known:
            known.add(name_key)
    for entity_key, name_key in named.items():
        was, now = before[entity_key], after[entity_key]
        if was.linkable and not now.linkable and not _is_linkable_name(connection, owner_key, name_key):
            known.discard(name_key)
            connection.execute("DELETE FROM names WHERE owner_key = ? AND name_key = ?", (owner_key, name_key))
        if now < was:
            back_links.note_going(connection, owner_key, entity_key)
            if not _is_borne(connection, owner_key, name_key):
                back_links.forget(connection, owner_key, name_key)
    came = [key for key in named if after[key] > before[key]]
    new = {named[key] for key in came if after[key].linkable} - known
    connection.executemany(
        "INSERT INTO names VALUES (?, ?, ?)", [(owner_key, name_key, head(name_key)) for name_key in new]
    )
    # A spelling that is not linkable may bear a name that another entity's spelling has made linkable.
    in_texts = known | new
    back_links.note_coming(connection, owner_key, {named[key]: named[key] in in_texts for key in came})


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
