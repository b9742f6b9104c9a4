"""Reading the graph for a caller: names, edges, hops and counts, all through documents the caller may read.

`owner_key` is the caller's, None for a caller who owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import apsw

from thread_service.store import sql
from thread_service.store.browsing import readable_among
from thread_service.text.ids import normalise_name
from thread_service.text.stop_words import STOP_WORDS
from thread_service.text.tokens import tokens

ALIKE_MAX = 5_000
"""Entities that are ranked for a text, of its rarest words first; of a single word so common, the oldest."""
CHUNK = 64
"""Entities whose readers are looked up at a time."""
REACH_MAX = 2_000
"""Entities a traversal may reach; beyond it the nearest hops are kept."""
CROSSED_MAX = 20_000
"""Edges looked at in one hop."""

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
    return [*islice(all_named_like(connection, text, owner_key, kinds), limit)]


def all_named_like(
    connection: apsw.Connection, text: str, owner_key: int | None, kinds: frozenset[str] | None = None
) -> Iterator[int]:
    """`named_like` without end, for who has more to ask of an entity."""
    named = (key for key, kind in _named_like(connection, text) if kinds is None or kind in kinds)
    while chunk := [*islice(named, CHUNK)]:
        readable = readable_among(connection, chunk, owner_key)
        yield from (key for key in chunk if key in readable)


def _named_like(connection: apsw.Connection, text: str) -> Iterator[tuple[int, str]]:
    """(entity_key, kind), best first."""
    spoken = tokens(text)
    key = " ".join(spoken)
    words = [word for word in dict.fromkeys(spoken) if word not in STOP_WORDS][:16]
    if words:
        candidates = _sharing(connection, words)
        # A name is matched by whole words: the padded name holds the padded word.
        shared = " + ".join("(instr(' ' || name_key || ' ', ' ' || ? || ' ') > 0)" for _ in words)
        statement = (
            f"SELECT entity_key, kind, name_key = ? AS is_exact, {shared} AS shared_words FROM entities"
            " WHERE entity_key IN (SELECT value FROM json_each(?)) OR name_key = ?"
            " ORDER BY is_exact DESC, shared_words DESC, length(name_key), entity_key"
        )
        for entity_key, kind, *_ in sql.rows(connection, statement, (key, *words, sql.array(candidates), key)):
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


def _sharing(connection: apsw.Connection, words: Sequence[str]) -> set[int]:
    """Entities whose names hold one of the words, at most `ALIKE_MAX`: those of the rarest words. What shares only
    words that very many names hold is left out beside them."""
    statement = "SELECT entity_key FROM entity_words WHERE word = ? ORDER BY entity_key LIMIT ?"
    sharing = [{*sql.column(connection, statement, (word, ALIKE_MAX))} for word in words]
    found: set[int] = set()
    for keys in sorted(sharing, key=len):
        if found and len(found | keys) > ALIKE_MAX:
            break
        found |= keys
    return found


def of_kinds(connection: apsw.Connection, entity_keys: Iterable[int], kinds: frozenset[str]) -> list[int]:
    statement = "SELECT entity_key, kind FROM entities WHERE entity_key IN (SELECT value FROM json_each(?))"
    return [key for key, kind in sql.rows(connection, statement, (sql.array(entity_keys),)) if kind in kinds]


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
        edges = connection.execute(statement, (sql.array(sorted(frontier)), owner_key))
        for relationship_key, subject_key, object_key in islice(edges, CROSSED_MAX):
            new = {subject_key, object_key} - reached
            if len(reached) + len(new) <= REACH_MAX:
                crossed.add(relationship_key)
                following |= new
                reached |= new
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


def assertions_of_edges(connection: apsw.Connection, relationship_keys: Iterable[int]) -> list[tuple[int, int]]:
    """(relationship_key, document_key) of every document that asserts an edge, readable or not."""
    statement = (
        f"SELECT DISTINCT relationship_key, document_key FROM relationship_assertions WHERE relationship_key IN {_KEYS}"
    )
    found: list[tuple[int, int]] = sql.rows(connection, statement, (sql.array(relationship_keys),))
    return found


def edges_touching(
    connection: apsw.Connection, entity_keys: Iterable[int], owner_key: int | None, limit: int
) -> list[int]:
    """The oldest readable edges of each of the entities, at most `limit` of each."""
    statement = (
        "SELECT relationship_key FROM relationships r WHERE (subject_key = ?1 OR object_key = ?1) AND EXISTS ("
        " SELECT 1 FROM relationship_assertions a JOIN documents d USING (document_key)"
        f" WHERE a.relationship_key = r.relationship_key AND {_READABLE}) ORDER BY relationship_key LIMIT ?3"
    )
    return [edge for key in entity_keys for edge in sql.column(connection, statement, (key, owner_key, limit))]


def in_order_of_ids(connection: apsw.Connection, document_keys: Iterable[int]) -> list[int]:
    """The documents by id, those of one id by owner."""
    statement = (
        "SELECT document_key FROM documents JOIN owners USING (owner_key)"
        f" WHERE document_key IN {_KEYS} ORDER BY document_id, owner_id"
    )
    return [*sql.column(connection, statement, (sql.array(document_keys),))]


def _grouped(
    connection: apsw.Connection, statement: str, keys: Iterable[int], owner_key: int | None
) -> dict[int, list[ReadableDocument]]:
    grouped: dict[int, list[ReadableDocument]] = {}
    for key, document_id, owner_id, name in sql.rows(connection, statement, (sql.array(keys), owner_key)):
        grouped.setdefault(key, []).append(ReadableDocument(document_id, owner_id, name))
    return grouped
