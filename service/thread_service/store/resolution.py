"""The names by which an owner knows what a model found. Runs inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from thread_service.store import sql
from thread_service.text.mentions import name_key
from thread_service.text.resolution import resolution_key


def known_names(connection: apsw.Connection, owner_key: int, found: Sequence[tuple[str, str]]) -> list[str]:
    """For each (name, kind) the owner's own spelling of an entity of that kind whose name is the same but for its form,
    the oldest such entity's; else the name as it is. So spellings do not become entities of their own.

    The kinds of what was found are not compared further: one name of two kinds is two entities, with ids of their own.
    """
    return [_known_name(connection, owner_key, name, kind) for name, kind in found]


def _known_name(connection: apsw.Connection, owner_key: int, name: str, kind: str) -> str:
    if not (key := name_key(name)):
        return name
    statement = (
        "SELECT (SELECT spelling FROM assertions a WHERE a.entity_key = e.entity_key AND owner_key = ?3"
        "  AND source <> 'keyword' ORDER BY document_key LIMIT 1) AS own FROM entities e"
        " WHERE name_key = ?1 AND kind = ?2 AND own IS NOT NULL ORDER BY entity_key"
    )
    wanted = resolution_key(name)
    spellings = sql.column(connection, statement, (key, kind, owner_key))
    return next((spelling for spelling in spellings if resolution_key(spelling) == wanted), name)
