"""Counts that are kept beside what they count: what each reader sees of the graph, against the assertions."""

from __future__ import annotations

from functools import partial

import apsw

from thread_service.store import sql
from thread_service.store.verification.look import Look, Range

_TOTALS = {
    "entity_counts": (
        "SELECT reader, entities FROM entity_counts WHERE entities <> 0",
        "SELECT reader, count(*) FROM entity_readers r WHERE reader = 0 OR NOT EXISTS"
        " (SELECT 1 FROM entity_readers e WHERE e.entity_key = r.entity_key AND e.reader = 0) GROUP BY reader",
    ),
    "relationship_counts": (
        "SELECT readers, relationships FROM relationship_counts WHERE relationships <> 0",
        "SELECT readers, count(*) FROM relationships GROUP BY readers",
    ),
}
"""Table → what it says, and what it should say."""


def check(look: Look) -> None:
    look.slices("entities", "entity_key", lambda connection, within: _check_readers(look, connection, within))
    for table in _TOTALS:
        look.step(partial(_check_totals, look, table), table=table)


def _check_totals(look: Look, table: str, connection: apsw.Connection) -> None:
    said, counted = (dict(sql.rows(connection, statement)) for statement in _TOTALS[table])
    _compare(look, table, said, counted)


def _check_readers(look: Look, connection: apsw.Connection, within: Range) -> int:
    said = sql.rows(
        connection,
        "SELECT entity_key, reader, assertions, mentions FROM entity_readers WHERE entity_key > ? AND entity_key <= ?",
        within,
    )
    counted = sql.rows(
        connection,
        "SELECT entity_key, iif(access = 'available', 0, d.owner_key), count(*), sum(mentions)"
        " FROM assertions CROSS JOIN documents d USING (document_key)"
        " WHERE entity_key > ? AND entity_key <= ? GROUP BY 1, 2",
        within,
    )
    _compare(
        look,
        "entity_readers",
        {(entity, reader): tuple(counts) for entity, reader, *counts in said},
        {(entity, reader): tuple(counts) for entity, reader, *counts in counted},
    )
    return len(said)


def _compare(look: Look, table: str, said: dict[object, object], counted: dict[object, object]) -> None:
    for key in sorted(said.keys() | counted.keys(), key=str):
        if said.get(key) != counted.get(key):
            look.damage(f"says {said.get(key, 0)} where there are {counted.get(key, 0)}", table=table, key=key)
