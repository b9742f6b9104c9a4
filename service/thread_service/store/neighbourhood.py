"""Reading the graph for a caller: names, edges, hops and counts, all through documents the caller may read.

`owner_key` is the caller's, None for a caller who owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import apsw

from thread_service.store import sql
from thread_service.text.ids import normalise_name
from thread_service.text.stop_words import STOP_WORDS
from thread_service.text.tokens import tokens

REACH_MAX = 2_000
"""Entities a traversal may reach; beyond it the nearest hops are kept."""

_READABLE = "(d.owner_key = ?2 OR d.access = 'available')"
_KEYS = "(SELECT value FROM json_each(?1))"


class ReadableDocument(NamedTuple):
    """In order of document id, as answers list them."""

    document_id: str
    owner_id: str
    name: str | None


def named_like(
    connection: apsw.Connection, text: str, owner_key: int | None, kinds: frozenset[str] | None, limit: int
) -> list[int]:
    """Readable entities whose name shares a word with `text`: exact names first, then the most shared words, then
    the shortest name. A text of nothing but stop words, or without any word, finds exact names only."""
    found: list[int] = []
    for entity_key, kind in _named_like(connection, text):
        if (kinds is None or kind in kinds) and is_readable(connection, entity_key, owner_key):
            found.append(entity_key)
            if len(found) == limit:
                break
    return found


def _named_like(connection: apsw.Connection, text: str) -> Iterator[tuple[int, str]]:
    """(entity_key, kind), best first."""
    spoken = tokens(text)
    key = " ".join(spoken)
    words = [word for word in dict.fromkeys(spoken) if word not in STOP_WORDS][:16]
    if words:
        # A name is matched by whole words: the padded name holds the padded word.
        shared = " + ".join("(instr(' ' || name_key || ' ', ' ' || ? || ' ') > 0)" for _ in words)
        statement = (
            f"SELECT entity_key, kind, name_key = ? AS is_exact, {shared} AS shared_words FROM entities"
            " WHERE shared_words > 0 ORDER BY is_exact DESC, shared_words DESC, length(name_key), entity_key"
        )
        for entity_key, kind, *_ in sql.rows(connection, statement, (key, *words)):
            yield entity_key, kind
    elif key:
        statement = "SELECT entity_key, kind FROM entities WHERE name_key = ? ORDER BY entity_key"
        yield from sql.rows(connection, statement, (key,))
    else:
        # Names without a word, such as emoji, share the empty key; their spelling tells them apart.
        statement = (
            "SELECT DISTINCT entity_key, kind, spelling FROM entities JOIN assertions USING (entity_key)"
            " WHERE name_key = '' ORDER BY entity_key"
        )
        wanted = normalise_name(text)
        for entity_key, kind, spelling in sql.rows(connection, statement):
            if normalise_name(spelling) == wanted:
                yield entity_key, kind


def of_kinds(connection: apsw.Connection, entity_keys: Iterable[int], kinds: frozenset[str]) -> list[int]:
    statement = "SELECT entity_key, kind FROM entities WHERE entity_key IN (SELECT value FROM json_each(?))"
    return [key for key, kind in sql.rows(connection, statement, (sql.array(entity_keys),)) if kind in kinds]


def is_readable(connection: apsw.Connection, entity_key: int, owner_key: int | None) -> bool:
    """Whether a readable document asserts the entity."""
    statement = (
        # The first is one step in an index, also for an entity that very many documents assert.
        "SELECT EXISTS (SELECT 1 FROM assertions WHERE entity_key = ?1 AND owner_key = ?2) OR EXISTS ("
        "SELECT 1 FROM assertions JOIN documents USING (document_key) WHERE entity_key = ?1 AND access = 'available')"
    )
    return bool(sql.value(connection, statement, (entity_key, owner_key)))


def most_mentioned(
    connection: apsw.Connection, owner_key: int | None, kinds: frozenset[str] | None, limit: int
) -> list[int]:
    """The entities with most mentions, ties by name, descending (as browsing is specified)."""
    statement = (
        "SELECT entity_key, kind FROM assertions a JOIN documents d USING (document_key)"
        " JOIN entities USING (entity_key) WHERE d.owner_key = ?1 OR d.access = 'available'"
        " GROUP BY entity_key ORDER BY sum(mentions) DESC, min(spelling) DESC, entity_key"
    )
    rows = sql.rows(connection, statement, (owner_key,))
    return [key for key, kind in rows if kinds is None or kind in kinds][:limit]


def edges_among(connection: apsw.Connection, entity_keys: Iterable[int], owner_key: int | None) -> set[int]:
    statement = (
        "SELECT r.relationship_key FROM relationships r JOIN relationship_assertions USING (relationship_key)"
        f" JOIN documents d USING (document_key) WHERE subject_key IN {_KEYS} AND object_key IN {_KEYS} AND {_READABLE}"
    )
    return {*sql.column(connection, statement, (sql.array(entity_keys), owner_key))}


def reach(
    connection: apsw.Connection, seeds: Iterable[int], owner_key: int | None, hops: int
) -> tuple[set[int], set[int]]:
    """Entities up to `hops` readable edges from the seeds (these included), and the edges crossed."""
    reached = set(seeds)
    crossed: set[int] = set()
    frontier = set(reached)
    statement = (
        "SELECT DISTINCT r.relationship_key, subject_key, object_key FROM relationships r"
        " JOIN relationship_assertions USING (relationship_key) JOIN documents d USING (document_key)"
        f" WHERE (subject_key IN {_KEYS} OR object_key IN {_KEYS}) AND {_READABLE}"
    )
    for _ in range(hops):
        following: set[int] = set()
        for relationship_key, subject_key, object_key in sql.rows(
            connection, statement, (sql.array(frontier), owner_key)
        ):
            ends = {subject_key, object_key}
            if len(reached | ends) <= REACH_MAX:
                crossed.add(relationship_key)
                following |= ends - reached
                reached |= ends
        frontier = following
    return reached, crossed


def documents_of_entities(
    connection: apsw.Connection, entity_keys: Iterable[int], owner_key: int | None
) -> Mapping[int, list[ReadableDocument]]:
    """Readable documents that list each entity, by assertion or by mention."""
    statement = (
        "SELECT entity_key, document_id, owner_id, name FROM ("
        f" SELECT entity_key, document_key FROM assertions WHERE entity_key IN {_KEYS}"
        f" UNION SELECT entity_key, document_key FROM mentions WHERE entity_key IN {_KEYS}"
        f") JOIN documents d USING (document_key) JOIN owners USING (owner_key) WHERE {_READABLE}"
    )
    return _grouped(connection, statement, entity_keys, owner_key)


def documents_of_edges(
    connection: apsw.Connection, relationship_keys: Iterable[int], owner_key: int | None
) -> Mapping[int, list[ReadableDocument]]:
    statement = (
        "SELECT relationship_key, document_id, owner_id, name FROM relationship_assertions"
        " JOIN documents d USING (document_key) JOIN owners USING (owner_key)"
        f" WHERE relationship_key IN {_KEYS} AND {_READABLE}"
    )
    return _grouped(connection, statement, relationship_keys, owner_key)


def mention_counts(connection: apsw.Connection, entity_keys: Iterable[int], owner_key: int | None) -> Mapping[int, int]:
    statement = (
        "SELECT entity_key, sum(mentions) FROM assertions a JOIN documents d USING (document_key)"
        f" WHERE entity_key IN {_KEYS} AND {_READABLE} GROUP BY entity_key"
    )
    return dict(sql.rows(connection, statement, (sql.array(entity_keys), owner_key)))


def readable_counts(connection: apsw.Connection, owner_key: int | None) -> tuple[int, int]:
    """(entities, relationships) of the whole graph as the caller may see it."""
    counts = []
    for table, key in (("assertions", "entity_key"), ("relationship_assertions", "relationship_key")):
        statement = (
            f"SELECT count(DISTINCT {key}) FROM {table} JOIN documents d USING (document_key)"
            " WHERE d.owner_key = ?1 OR d.access = 'available'"
        )
        counts.append(int(sql.value(connection, statement, (owner_key,))))
    return counts[0], counts[1]


def _grouped(
    connection: apsw.Connection, statement: str, keys: Iterable[int], owner_key: int | None
) -> dict[int, list[ReadableDocument]]:
    grouped: dict[int, list[ReadableDocument]] = {}
    for key, document_id, owner_id, name in sql.rows(connection, statement, (sql.array(keys), owner_key)):
        grouped.setdefault(key, []).append(ReadableDocument(document_id, owner_id, name))
    return grouped
