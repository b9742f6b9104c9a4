"""Counts of the graph as a caller may read it, and what it mentions most: from sums that follow each assertion
(`entity_readers`), so that neither adds up millions of rows.

`owner_key` is the caller's, None for a caller who owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import apsw

from thread_service.store import audience, sql

EVERYBODY = 0
"""The reader of available documents; owners are those of their restricted ones."""
LOOKED_AT = (1_024, 16_384)
"""Entities of each reader that are looked at, most mentioned first; when the second does not do either, all are."""


class _Mentioned(NamedTuple):
    entity_key: int
    name_key: str
    mentions: int


def readable_among(connection: apsw.Connection, entity_keys: Iterable[int], owner_key: int | None) -> set[int]:
    """Those of the entities that a readable document asserts."""
    statement = (
        "SELECT DISTINCT entity_key FROM json_each(?1) CROSS JOIN entity_readers ON entity_key = value"
        " AND reader IN (0, ?2)"
    )
    return {*sql.column(connection, statement, (sql.array(entity_keys), owner_key))}


def mention_counts(connection: apsw.Connection, entity_keys: Iterable[int], owner_key: int | None) -> Mapping[int, int]:
    statement = (
        "SELECT entity_key, sum(mentions) FROM json_each(?1) CROSS JOIN entity_readers ON entity_key = value"
        " AND reader IN (0, ?2) GROUP BY entity_key"
    )
    return dict(sql.rows(connection, statement, (sql.array(entity_keys), owner_key)))


def readable_counts(connection: apsw.Connection, owner_key: int | None) -> tuple[int, int]:
    """(entities, relationships) of the whole graph as the caller may see it."""
    entities = sql.value(
        connection, "SELECT coalesce(sum(entities), 0) FROM entity_counts WHERE reader IN (0, ?)", (owner_key,)
    )
    wanted = {audience.AVAILABLE} | (set() if owner_key is None else {audience.own(owner_key)})
    relationships = sum(
        count
        for readers, count in sql.rows(connection, "SELECT readers, relationships FROM relationship_counts")
        if not wanted.isdisjoint(readers.split())
    )
    return int(entities), relationships


def most_mentioned(
    connection: apsw.Connection,
    owner_key: int | None,
    kinds: frozenset[str] | None,
    limit: int,
    looked_at: Sequence[int] = LOOKED_AT,
) -> list[int]:
    """The entities with most mentions, ties by name, descending (as browsing is specified)."""
    readers = [EVERYBODY] if owner_key is None else [EVERYBODY, owner_key]
    for count in looked_at:
        lists = [_most_mentioned(connection, reader, count) for reader in readers]
        found = _ranked(connection, {key for seen in lists for key, _ in seen}, owner_key, kinds)
        # What is in none of the lists has no more mentions than the last of each, all added up.
        unfinished = [[mentions for _, mentions in seen] for seen in lists if len(seen) == count]
        unseen = sum(mentions[-1] for mentions in unfinished)
        best = [entity.entity_key for entity in found if entity.mentions > unseen][:limit]
        if len(best) == limit or not unfinished:
            return best
        if len(unfinished) == 1 and unfinished[0][count // 2] == unseen:
            # Very many have as many mentions as the last one: those with the last names are soon found.
            tied = _last_named(connection, owner_key, kinds, unseen, limit - len(best))
            if len(best) + len(tied) == limit:
                return best + tied
    every = sql.column(
        connection, "SELECT DISTINCT entity_key FROM entity_readers WHERE reader IN (0, ?)", (owner_key,)
    )
    return [entity.entity_key for entity in _ranked(connection, every, owner_key, kinds)[:limit]]


def _most_mentioned(connection: apsw.Connection, reader: int, count: int) -> list[tuple[int, int]]:
    """(entity_key, mentions) of one reader."""
    statement = "SELECT entity_key, mentions FROM entity_readers WHERE reader = ? ORDER BY mentions DESC LIMIT ?"
    found: list[tuple[int, int]] = sql.rows(connection, statement, (reader, count))
    return found


def _ranked(
    connection: apsw.Connection, entity_keys: Iterable[int], owner_key: int | None, kinds: frozenset[str] | None
) -> list[_Mentioned]:
    """In the order of browsing; of the same name the oldest comes first."""
    statement = (
        "SELECT entity_key, kind, name_key, sum(mentions) FROM json_each(?1)"
        " CROSS JOIN entity_readers ON entity_key = value AND reader IN (0, ?2) CROSS JOIN entities USING (entity_key)"
        " GROUP BY entity_key"
    )
    found = [
        _Mentioned(key, name_key, mentions)
        for key, kind, name_key, mentions in sql.rows(connection, statement, (sql.array(entity_keys), owner_key))
        if kinds is None or kind in kinds
    ]
    return sorted(found, key=lambda each: (each.mentions, each.name_key, -each.entity_key), reverse=True)


def _last_named(
    connection: apsw.Connection, owner_key: int | None, kinds: frozenset[str] | None, mentions: int, limit: int
) -> list[int]:
    """Entities with so many mentions, the last name first."""
    statement = (
        "SELECT entity_key FROM entities e WHERE ?3 ="
        " (SELECT sum(mentions) FROM entity_readers r WHERE r.entity_key = e.entity_key AND reader IN (0, ?2))"
        " AND (?1 IS NULL OR kind IN (SELECT value FROM json_each(?1)))"
        " ORDER BY name_key DESC, entity_key LIMIT ?4"
    )
    chosen = None if kinds is None else sql.array(kinds)
    return [*sql.column(connection, statement, (chosen, owner_key, mentions, limit))]
