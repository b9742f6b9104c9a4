"""Links by name, without a model. Runs inside the caller's transaction.

Which documents mention an entity is a pure function of the owner's own names and texts, so deposits and removals in
any order leave the same links: whenever an owner's names change, `names` marks the documents concerned, and `link`
works out one document afresh. A document is linked to an entity when its text contains the entity's name
(longest match); a document's own name links it to the entities of that name, or becomes one of kind `document`.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from thread_service.store import graph, sql
from thread_service.store.changes import Changes
from thread_service.text.ids import entity_id
from thread_service.text.mentions import find_mentions, heads
from thread_service.text.tokens import tokens

DOCUMENT = "document"


def mark(connection: apsw.Connection, document_key: int) -> None:
    connection.execute("INSERT OR IGNORE INTO relink VALUES (?)", (document_key,))


def waiting(connection: apsw.Connection, limit: int) -> list[int]:
    return [*sql.column(connection, "SELECT document_key FROM relink LIMIT ?", (limit,))]


def link(connection: apsw.Connection, document_key: int, changes: Changes, *, by_text: bool) -> None:
    """Work out the links of one document from its owner's names as they are now.

    A document whose content is not (or never) searchable has none. `by_text` False: its own name only, its texts are
    not searched for names.
    """
    connection.execute("DELETE FROM relink WHERE document_key = ?", (document_key,))
    owner_key, content_key, name, name_key, state = sql.row(
        connection,
        "SELECT owner_key, content_key, name, name_key, state FROM documents JOIN contents USING (content_key)"
        " WHERE document_key = ?",
        (document_key,),
    )
    if state != "ready":
        name_key = ""
    bearers = _bearers(connection, owner_key, [name_key]) if name_key else {}
    others = {key for key, kind in bearers.get(name_key, ()) if kind != DOCUMENT}
    _settle_own_name(connection, document_key, owner_key, name if name_key and not others else None, changes)
    found = _names_in(connection, owner_key, content_key) if by_text else set()
    linked = {key for entities in _bearers(connection, owner_key, found).values() for key, _ in entities} | others
    stored = _mentioned(connection, document_key)
    connection.executemany(
        "DELETE FROM mentions WHERE document_key = ? AND entity_key = ?",
        [(document_key, key) for key in stored - linked],
    )
    connection.executemany("INSERT INTO mentions VALUES (?, ?)", [(document_key, key) for key in linked - stored])
    if linked != stored:
        changes.entities |= linked ^ stored
        changes.linked_documents.add(document_key)


def unlink(connection: apsw.Connection, document_key: int, changes: Changes) -> None:
    """Take a document's links and its own name's entity away, as before a removal or a change of content."""
    owner_key = sql.value(connection, "SELECT owner_key FROM documents WHERE document_key = ?", (document_key,))
    _settle_own_name(connection, document_key, owner_key, None, changes)
    changes.entities |= _mentioned(connection, document_key)
    changes.linked_documents.add(document_key)
    connection.execute("DELETE FROM mentions WHERE document_key = ?", (document_key,))
    connection.execute("DELETE FROM relink WHERE document_key = ?", (document_key,))


def _settle_own_name(
    connection: apsw.Connection, document_key: int, owner_key: int, name: str | None, changes: Changes
) -> None:
    """Assert the document's name as an entity of kind `document`, or, with None, stop asserting it."""
    wanted = None if name is None else graph.Entity(name.strip(), DOCUMENT, "name")
    wanted_id = None if wanted is None else entity_id(wanted.kind, wanted.name)
    for entity_key, asserted_id, spelling in sql.rows(
        connection,
        "SELECT entity_key, entity_id, spelling FROM assertions JOIN entities USING (entity_key)"
        " WHERE document_key = ? AND source = 'name'",
        (document_key,),
    ):
        if wanted is not None and asserted_id == wanted_id and spelling == wanted.name:
            return
        graph.retract_entity(connection, document_key, owner_key, entity_key, "name", changes)
    if wanted is not None:
        entity_key = graph.ensure_entity(connection, wanted)
        graph.assert_entity(connection, document_key, owner_key, entity_key, wanted, 1, changes)


def _names_in(connection: apsw.Connection, owner_key: int, content_key: int) -> set[str]:
    found: set[str] = set()
    for text in sql.column(
        connection,
        "SELECT text FROM partitions JOIN contents USING (content_key) WHERE content_key = ? AND state = 'ready'",
        (content_key,),
    ):
        words = tokens(text)
        names = [
            *sql.column(
                connection,
                "SELECT name_key FROM names WHERE owner_key = ? AND head IN (SELECT value FROM json_each(?))",
                (owner_key, sql.array(heads(words))),
            )
        ]
        found.update(mention.name for mention in find_mentions(words, names))
    return found


def _bearers(connection: apsw.Connection, owner_key: int, name_keys: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """The entities that bear each name by the owner's own assertions: name → [(entity_key, kind)]."""
    bearers: dict[str, list[tuple[int, str]]] = {}
    for name_key, entity_key, kind in sql.rows(
        connection,
        "SELECT name_key, entity_key, kind FROM entities WHERE name_key IN (SELECT value FROM json_each(?))"
        " AND EXISTS (SELECT 1 FROM assertions WHERE assertions.entity_key = entities.entity_key"
        "             AND owner_key = ? AND source <> 'keyword')",
        (sql.array(name_keys), owner_key),
    ):
        bearers.setdefault(name_key, []).append((entity_key, kind))
    return bearers


def _mentioned(connection: apsw.Connection, document_key: int) -> set[int]:
    return {*sql.column(connection, "SELECT entity_key FROM mentions WHERE document_key = ?", (document_key,))}
