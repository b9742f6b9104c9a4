"""Reading what a search shows: documents behind contents, passages, and the names of entities and edges.

Access is checked here again, in the transaction whose rows are shown: `owner_key` is the caller's, None for a caller
who owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import apsw
import msgspec
from pyroaring import BitMap

from thread_service.store import sql
from thread_service.text.ids import normalise_name
from thread_service.text.mentions import name_key

MediaType = Literal["text", "image", "code"]


@dataclass(frozen=True, slots=True)
class ShownDocument:
    document_key: int
    document_id: str
    owner_id: str
    name: str | None


class ShownGroup(NamedTuple):
    group_id: str
    label: str
    description: str | None
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PassageText:
    ordinal: int
    text: str
    media_type: MediaType
    partition_count: int


@dataclass(frozen=True, slots=True)
class EntityName:
    """`spelling` as the caller may know it: the caller's oldest document's, else the oldest available one's."""

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
        "SELECT content_key, document_key, document_id, owner_id, name FROM documents JOIN owners USING (owner_key)"
        " WHERE content_key IN (SELECT value FROM json_each(?1)) AND (owner_key = ?2 OR access = 'available')"
        " ORDER BY owner_key IS NOT ?2, document_key"
    )
    shown: dict[int, ShownDocument] = {}
    for content_key, document_key, *named in sql.rows(connection, statement, (sql.array(content_keys), owner_key)):
        if document_key in eligible and content_key not in shown:
            shown[content_key] = ShownDocument(document_key, *named)
    return shown


def shown_groups(
    connection: apsw.Connection, document_keys: Iterable[int], owner_key: int | None
) -> dict[int, ShownGroup]:
    """The group a document is shown in: its primary one, else the oldest; to others
    than its owner an available one only."""
    statement = (
        "SELECT document_key, group_id, label, description, tags FROM document_groups"
        " JOIN groups g USING (group_key) JOIN documents d USING (document_key)"
        " WHERE document_key IN (SELECT value FROM json_each(?1)) AND (d.owner_key = ?2 OR g.access = 'available')"
        " ORDER BY group_key <> primary_group, group_key"
    )
    shown: dict[int, ShownGroup] = {}
    for document_key, group_id, label, description, tags in sql.rows(
        connection, statement, (sql.array(document_keys), owner_key)
    ):
        if document_key not in shown:
            shown[document_key] = ShownGroup(
                group_id, label, description, tuple(msgspec.json.decode(tags, type=list[str]))
            )
    return shown


def documents_of_content(connection: apsw.Connection, content_key: int) -> list[int]:
    return [*sql.column(connection, "SELECT document_key FROM documents WHERE content_key = ?", (content_key,))]


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
    statement = (
        # The first is one step in an index, also for an entity that very many documents assert.
        "SELECT entity_key, entity_id, kind, name_key, coalesce("
        " (SELECT spelling FROM assertions a WHERE a.entity_key = e.entity_key AND owner_key = ?2"
        "  ORDER BY document_key LIMIT 1),"
        " (SELECT spelling FROM assertions a CROSS JOIN documents d USING (document_key)"
        "  WHERE a.entity_key = e.entity_key AND access = 'available' ORDER BY document_key LIMIT 1)"
        ") AS shown FROM entities e WHERE entity_key IN (SELECT value FROM json_each(?1)) AND shown IS NOT NULL"
    )
    return {
        row[0]: EntityName(*row[1:]) for row in sql.rows(connection, statement, (sql.array(entity_keys), owner_key))
    }


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
