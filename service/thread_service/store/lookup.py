"""Reading what a search shows: documents behind contents, passages, and the names of entities and edges.

Access is checked here again, in the transaction whose rows are shown: `owner_key` is the caller's, None for a caller
who owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import apsw
from pyroaring import BitMap

from thread_service.store import registry, sql
from thread_service.text.ids import normalise_name
from thread_service.text.mentions import name_key
from thread_service.text.stop_words import STOP_WORDS

MediaType = Literal["text", "image", "code"]


@dataclass(frozen=True, slots=True)
class ShownDocument:
    document_key: int
    document_id: str
    owner_id: str
    name: str | None


@dataclass(frozen=True, slots=True)
class PassageText:
    ordinal: int
    text: str
    media_type: MediaType
    partition_count: int


@dataclass(frozen=True, slots=True)
class EntityName:
    """`spelling` as the caller may know it: the caller's oldest document's, else the oldest available one's. Keywords
    are lower case: they give way to a document that names the entity."""

    entity_id: str
    kind: str
    name_key: str
    spelling: str


@dataclass(frozen=True, slots=True)
class EdgeEnds:
    relationship_key: int
    relationship_id: str
    subject_key: int
    predicate: str
    object_key: int


def shown_documents(
    connection: apsw.Connection, content_keys: Iterable[int], owner_key: int | None, eligible: BitMap
) -> dict[int, ShownDocument]:
    """What each content is shown as: the caller's own document if there is one, else the oldest available one."""
    statement = (
        "SELECT content_key, owner_key IS NOT ?2, document_key, document_id, owner_id, name"
        " FROM documents JOIN owners USING (owner_key)"
        " WHERE content_key IN (SELECT value FROM json_each(?1)) AND (owner_key = ?2 OR access = 'available')"
    )
    found = [row for row in sql.rows(connection, statement, (sql.array(content_keys), owner_key)) if row[2] in eligible]
    found.sort()  # here: for a handful of rows SQLite's own sorting takes longer than all the rest
    shown: dict[int, ShownDocument] = {}
    for content_key, _, *document in found:
        shown.setdefault(content_key, ShownDocument(*document))
    return shown


def shown_groups(
    connection: apsw.Connection, document_keys: Iterable[int], owner_key: int | None
) -> dict[int, registry.Group]:
    """The group a document is shown in: its primary one, else the oldest; to others
    than its owner an available one only."""
    statement = (
        "SELECT document_key, group_key FROM document_groups"
        " JOIN groups g USING (group_key) JOIN documents d USING (document_key)"
        " WHERE document_key IN (SELECT value FROM json_each(?1)) AND (d.owner_key = ?2 OR g.access = 'available')"
        " ORDER BY group_key <> primary_group, group_key"
    )
    shown: dict[int, int] = {}
    for document_key, group_key in sql.rows(connection, statement, (sql.array(document_keys), owner_key)):
        shown.setdefault(document_key, group_key)
    groups = {group_key: registry.group_by_key(connection, group_key) for group_key in set(shown.values())}
    return {document_key: groups[group_key] for document_key, group_key in shown.items()}


def passages(connection: apsw.Connection, partition_keys: Iterable[int]) -> dict[int, PassageText]:
    statement = (
        "SELECT partition_key, ordinal, text, media_type,"
        " (SELECT count(*) FROM partitions WHERE content_key = c.content_key)"
        " FROM partitions JOIN contents c USING (content_key)"
        " WHERE partition_key IN (SELECT value FROM json_each(?))"
    )
    return {row[0]: PassageText(*row[1:]) for row in sql.rows(connection, statement, (sql.array(partition_keys),))}


def entities_by_name(connection: apsw.Connection, name_keys: Iterable[str]) -> list[tuple[str, int]]:
    """(name key, entity key) of all entities of these names."""
    found: list[tuple[str, int]] = sql.rows(
        connection,
        "SELECT name_key, entity_key FROM entities WHERE name_key IN (SELECT value FROM json_each(?))",
        (sql.array(name_keys),),
    )
    return found


def entities_named_in(
    connection: apsw.Connection, words: Sequence[str], longest: int, limit: int
) -> list[tuple[str, int]]:
    """(name key, entity key) of entities whose names are runs of up to `longest` of the words, but for runs of nothing
    but stop words. Long names first, at most `limit`.

    A run grows for as long as names start with it, so the work is that of the words and not of all their runs.
    """
    found: list[tuple[str, int]] = []
    runs = dict(enumerate(words))
    for length in range(1, longest + 1):
        if not runs:
            break
        encoded = sql.array(dict.fromkeys(runs.values()))
        named = sql.rows(
            connection,
            "SELECT name_key, entity_key FROM json_each(?) CROSS JOIN entities ON name_key = value LIMIT ?",
            (encoded, limit),
        )
        found += [row for row in named if not STOP_WORDS.issuperset(row[0].split(" "))]
        # "!" follows the space that follows a word inside a name.
        longer = sql.column(
            connection,
            "SELECT value FROM json_each(?) WHERE EXISTS"
            " (SELECT 1 FROM entities WHERE name_key > value || ' ' AND name_key < value || '!')",
            (encoded,),
        )
        growing = set(longer)
        runs = {
            start: f"{run} {words[start + length]}"
            for start, run in runs.items()
            if run in growing and start + length < len(words)
        }
    return found[::-1][:limit]


def entities_called(connection: apsw.Connection, names: Iterable[str]) -> set[int]:
    """All entities of these names, however they are written."""
    keys = {name: name_key(name) for name in names}
    found = {key for _, key in entities_by_name(connection, filter(None, keys.values()))}
    # Names without a word, such as emoji, share the empty key; their spelling tells them apart.
    wordless = {normalise_name(name) for name, key in keys.items() if not key} - {""}
    if wordless:
        statement = "SELECT entity_key, spelling FROM entities JOIN assertions USING (entity_key) WHERE name_key = ''"
        found |= {key for key, spelling in sql.rows(connection, statement) if normalise_name(spelling) in wordless}
    return found


def entities_by_identifier(
    connection: apsw.Connection, path: str, owner_key: int | None, limit: int, *, continued: bool
) -> list[int]:
    """Readable entities whose identifier has this path or, `continued`, a longer one that starts with it; in the order
    of paths, then oldest first."""
    # "/" follows "." in the order of bytes. That the identifier is not '' is what its index is partial by.
    on_path = "identifier >= ?1 || '.' AND identifier < ?1 || '/'" if continued else "identifier = ?1"
    statement = (
        f"SELECT entity_key FROM entities e WHERE {on_path} AND identifier <> '' AND ("
        " EXISTS (SELECT 1 FROM assertions a WHERE a.entity_key = e.entity_key AND owner_key = ?2)"
        " OR EXISTS (SELECT 1 FROM assertions a CROSS JOIN documents USING (document_key)"
        "  WHERE a.entity_key = e.entity_key AND access = 'available')"
        ") ORDER BY identifier, entity_key LIMIT ?3"
    )
    found: list[int] = sql.column(connection, statement, (path, owner_key, limit))
    return found


def documents_linked(connection: apsw.Connection, entity_keys: Iterable[int]) -> list[int]:
    """Documents that assert or mention any of the entities."""
    keys = sql.array(entity_keys)
    return [
        *sql.column(
            connection,
            "SELECT document_key FROM assertions WHERE entity_key IN (SELECT value FROM json_each(?1))"
            " UNION SELECT document_key FROM mentions WHERE entity_key IN (SELECT value FROM json_each(?1))",
            (keys,),
        )
    ]


def name_keys(connection: apsw.Connection, entity_keys: Iterable[int]) -> dict[int, str]:
    statement = "SELECT entity_key, name_key FROM entities WHERE entity_key IN (SELECT value FROM json_each(?))"
    return dict(sql.rows(connection, statement, (sql.array(entity_keys),)))


def entity_names(
    connection: apsw.Connection, entity_keys: Iterable[int], owner_key: int | None
) -> dict[int, EntityName]:
    """Names of the entities some readable document asserts; the others are left out."""
    spelled = (
        # The caller's own is one step in an index, also for an entity that very many documents assert.
        "(SELECT spelling FROM assertions a WHERE a.entity_key = e.entity_key AND owner_key = ?2{0}"
        "  ORDER BY document_key LIMIT 1),"
        " (SELECT spelling FROM assertions a CROSS JOIN documents d USING (document_key)"
        "  WHERE a.entity_key = e.entity_key AND access = 'available'{0} ORDER BY document_key LIMIT 1)"
    )
    by_name, at_all = spelled.format(" AND source <> 'keyword'"), spelled.format("")
    statement = (
        f"SELECT entity_key, entity_id, kind, name_key, coalesce({by_name}, {at_all})"
        " FROM entities e WHERE entity_key IN (SELECT value FROM json_each(?1))"
    )
    found = sql.rows(connection, statement, (sql.array(entity_keys), owner_key))
    return {row[0]: EntityName(*row[1:]) for row in found if row[-1] is not None}


def edges(connection: apsw.Connection, relationship_keys: Iterable[int]) -> dict[int, EdgeEnds]:
    statement = (
        "SELECT relationship_key, relationship_id, subject_key, predicate, object_key FROM relationships"
        " JOIN predicates USING (predicate_key) WHERE relationship_key IN (SELECT value FROM json_each(?))"
    )
    return {row[0]: EdgeEnds(*row) for row in sql.rows(connection, statement, (sql.array(relationship_keys),))}


def edges_of_predicate(connection: apsw.Connection, predicate_key: int, owner_key: int | None, limit: int) -> list[int]:
    """The oldest readable edges of a predicate."""
    statement = (
        "SELECT relationship_key FROM relationships r WHERE predicate_key = ?1 AND EXISTS ("
        " SELECT 1 FROM relationship_assertions a JOIN documents d USING (document_key)"
        " WHERE a.relationship_key = r.relationship_key AND (d.owner_key = ?2 OR d.access = 'available'))"
        " ORDER BY relationship_key LIMIT ?3"
    )
    return [*sql.column(connection, statement, (predicate_key, owner_key, limit))]


def edge_weights(
    connection: apsw.Connection, relationship_keys: Iterable[int], owner_key: int | None
) -> Mapping[int, int]:
    """How often readable documents assert each edge."""
    statement = (
        "SELECT relationship_key, sum(weight) FROM relationship_assertions JOIN documents USING (document_key)"
        " WHERE relationship_key IN (SELECT value FROM json_each(?1)) AND (owner_key = ?2 OR access = 'available')"
        " GROUP BY relationship_key"
    )
    return dict(sql.rows(connection, statement, (sql.array(relationship_keys), owner_key)))
