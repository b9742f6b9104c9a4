"""Links by name, without a model.

Which documents mention an entity is a pure function of the owner's own names and texts, so deposits and removals in
any order leave the same links: a document is linked when it was indexed, and again when a name that it may hold came or
went (`back_links`). It is linked to an entity when its text contains the entity's name (longest match); a document's
own name links it to the entities of that name, or becomes one of kind `document`.

Texts are searched for names in a snapshot (`names_in`), which may take long; what was found is written in a transaction
of its own (`link`). A name that comes in between is noted in `changed_names`, so the document is linked once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import apsw

from thread_service.store import graph, sql
from thread_service.store.changes import Changes
from thread_service.text.ids import entity_id
from thread_service.text.mentions import MAX_LINKABLE_WORDS, common_start, find_mentions, heads
from thread_service.text.tokens import tokens

DOCUMENT = "document"
NAMES_A_HEAD = 32
"""Names that start alike are taken together up to this many; of more, one at a time is looked for in the text."""


class Found(NamedTuple):
    """The names that the texts of a document hold, while it had this content in this state."""

    content_key: int
    state: str
    names: frozenset[str]


def mark(connection: apsw.Connection, document_key: int) -> None:
    """The document was indexed: it is to be linked."""
    connection.execute("INSERT OR IGNORE INTO relink VALUES (?)", (document_key,))


def waiting(connection: apsw.Connection, limit: int) -> list[int]:
    return [*sql.column(connection, "SELECT document_key FROM relink ORDER BY document_key LIMIT ?", (limit,))]


def unmark(connection: apsw.Connection, document_keys: Iterable[int]) -> None:
    connection.executemany("DELETE FROM relink WHERE document_key = ?", [(key,) for key in document_keys])


def names_in(
    connection: apsw.Connection, document_key: int, *, by_text: bool, between_texts: Callable[[], None] = lambda: None
) -> Found | None:
    """The owner's names that the document's texts hold; None when it is gone.

    One whose content is not (or never) searchable holds none. `by_text` False: its texts are not searched.
    """
    row = sql.row(
        connection,
        "SELECT owner_key, content_key, state FROM documents JOIN contents USING (content_key) WHERE document_key = ?",
        (document_key,),
    )
    if row is None:
        return None
    owner_key, content_key, state = row
    found: set[str] = set()
    if by_text and state == "ready":
        partitions = sql.column(
            connection, "SELECT partition_key FROM partitions WHERE content_key = ? ORDER BY ordinal", (content_key,)
        )
        for partition_key in partitions:
            text = sql.value(connection, "SELECT text FROM partitions WHERE partition_key = ?", (partition_key,))
            found |= _names_in(connection, owner_key, text)
            between_texts()
    return Found(content_key, state, frozenset(found))


def link(connection: apsw.Connection, found: Mapping[int, Found], changes: Changes) -> None:
    """Bring the links of documents up to date, inside the caller's transaction. `found`: by document.

    Nothing happens to one whose content is another by now, or in another state: it is linked when that is indexed.
    """
    of_owners: dict[int, list[_Document]] = {}
    for key, owner_key, content_key, name, name_key, state in sql.rows(
        connection,
        "SELECT document_key, owner_key, content_key, name, name_key, state FROM json_each(?)"
        " CROSS JOIN documents ON document_key = value CROSS JOIN contents USING (content_key)",
        (sql.array(found),),
    ):
        if (content_key, state) == (found[key].content_key, found[key].state):
            called = name_key if state == "ready" else ""
            of_owners.setdefault(owner_key, []).append(_Document(key, name, called, found[key].names))
    for owner_key, documents in of_owners.items():
        _link_for(connection, owner_key, documents, changes)


def unlink(connection: apsw.Connection, document_key: int, changes: Changes) -> None:
    """Take a document's links and its own name's entity away, as before a removal or a change of content. Inside the
    caller's transaction."""
    owner_key = sql.value(connection, "SELECT owner_key FROM documents WHERE document_key = ?", (document_key,))
    own = _own_names(connection, [document_key])
    _settle_own_name(connection, document_key, owner_key, None, own.get(document_key, ()), changes)
    stored = _mentioned(connection, [document_key])[document_key]
    _unmention(connection, [(document_key, key) for key in stored])
    changes.mentions |= stored
    changes.linked_documents.add(document_key)
    unmark(connection, [document_key])


class _Document(NamedTuple):
    """`called`: the key of its name, '' when it has none or cannot be searched."""

    key: int
    name: str | None
    called: str
    names: frozenset[str]


class _OwnName(NamedTuple):
    """An entity that a document asserts by its own name."""

    entity_key: int
    entity_id: str
    spelling: str


def _link_for(connection: apsw.Connection, owner_key: int, documents: Sequence[_Document], changes: Changes) -> None:
    bearers = _bearers(connection, owner_key, {document.called for document in documents if document.called})
    own = _own_names(connection, [document.key for document in documents])
    others: dict[int, set[int]] = {}
    for document in documents:
        others[document.key] = {key for key, kind in bearers.get(document.called, ()) if kind != DOCUMENT}
        name = document.name if document.called and not others[document.key] else None
        _settle_own_name(connection, document.key, owner_key, name, own.get(document.key, ()), changes)

    # Only now, as with a document's own name one may have gone that another document holds.
    known = _known(connection, owner_key, {name for document in documents for name in document.names})
    names: dict[int, frozenset[str]] = {}
    for document in documents:
        if document.names <= known:
            names[document.key] = document.names
        else:  # one went meanwhile, and perhaps hid a shorter one
            again = names_in(connection, document.key, by_text=True)
            names[document.key] = frozenset() if again is None else again.names

    bearers = _bearers(connection, owner_key, {name for theirs in names.values() for name in theirs})
    came: list[tuple[int, int]] = []
    went: list[tuple[int, int]] = []
    for document_key, stored in _mentioned(connection, names).items():
        linked = {key for name in names[document_key] for key, _ in bearers.get(name, ())} | others[document_key]
        came += [(document_key, key) for key in linked - stored]
        went += [(document_key, key) for key in stored - linked]
    connection.executemany("INSERT INTO mentions VALUES (?, ?)", came)
    _unmention(connection, went)
    for document_key, entity_key in chain(came, went):
        changes.mentions.add(entity_key)
        changes.linked_documents.add(document_key)


def _unmention(connection: apsw.Connection, pairs: Sequence[tuple[int, int]]) -> None:
    """`pairs`: document and entity."""
    connection.executemany("DELETE FROM mentions WHERE document_key = ? AND entity_key = ?", pairs)
    for entity_key in {entity_key for _, entity_key in pairs}:
        graph.drop_unasserted(connection, entity_key)


def _settle_own_name(
    connection: apsw.Connection,
    document_key: int,
    owner_key: int,
    name: str | None,
    asserted: Iterable[_OwnName],
    changes: Changes,
) -> None:
    """Assert the document's name as an entity of kind `document`, or, with None, stop asserting it. `asserted`: what it
    asserts so far."""
    wanted = None if name is None else graph.Entity(name.strip(), DOCUMENT, "name")
    wanted_id = None if wanted is None else entity_id(wanted.kind, wanted.name)
    for own in asserted:
        if wanted is not None and own.entity_id == wanted_id and own.spelling == wanted.name:
            return
        graph.retract_entity(connection, document_key, owner_key, own.entity_key, "name", changes)
    if wanted is not None:
        (entity_key,) = graph.ensure_entities(connection, [wanted])
        graph.assert_entities(connection, document_key, owner_key, {(entity_key, "name"): wanted}, changes)


def _own_names(connection: apsw.Connection, document_keys: Iterable[int]) -> dict[int, list[_OwnName]]:
    own: dict[int, list[_OwnName]] = {}
    for document_key, *asserted in sql.rows(
        connection,
        "SELECT document_key, entity_key, entity_id, spelling FROM json_each(?)"
        " CROSS JOIN assertions ON document_key = value CROSS JOIN entities USING (entity_key) WHERE source = 'name'",
        (sql.array(document_keys),),
    ):
        own.setdefault(document_key, []).append(_OwnName(*asserted))
    return own


def _names_in(connection: apsw.Connection, owner_key: int, text: str) -> set[str]:
    words = tokens(text)
    names: set[str] = set()
    crowded: set[str] = set()
    for head, alike in sql.rows(
        connection,
        # A key holds no line break.
        "SELECT value, (SELECT group_concat(name_key, char(10)) FROM"
        "  (SELECT name_key FROM names WHERE owner_key = ?1 AND head = value LIMIT ?3)) FROM json_each(?2)"
        " WHERE EXISTS (SELECT 1 FROM names WHERE owner_key = ?1 AND head = value)",
        (owner_key, sql.array(heads(words)), NAMES_A_HEAD + 1),
    ):
        found = alike.split("\n")
        if len(found) > NAMES_A_HEAD:
            crowded.add(head)
        else:
            names.update(found)
    for start in range(len(words)) if crowded else ():
        # A head of one word is a name by itself and its only one, so crowded heads have two.
        if " ".join(words[start : start + 2]) in crowded:
            names |= _longest_at(connection, owner_key, words[start : start + MAX_LINKABLE_WORDS])
    return {mention.name for mention in find_mentions(words, names)}


def _longest_at(connection: apsw.Connection, owner_key: int, words: Sequence[str]) -> set[str]:
    """The longest name that `words` start with.

    Of all names the last one in order that does not come after the words starts like them, or no longer than what the
    two have in common is left to look for.
    """
    wanted = list(words)
    while wanted:
        # The order of names is that of their UTF-8, in which the space between two words comes before any letter.
        last = sql.value(
            connection,
            "SELECT name_key FROM names WHERE owner_key = ? AND name_key <= ? ORDER BY name_key DESC LIMIT 1",
            (owner_key, " ".join(wanted)),
        )
        if last is None:
            return set()
        shared = common_start(wanted, last.split(" "))
        if shared == last.count(" ") + 1:
            return {last}
        wanted = wanted[:shared]
    return set()


def _known(connection: apsw.Connection, owner_key: int, name_keys: Iterable[str]) -> set[str]:
    """Those of the names that the owner has."""
    statement = "SELECT name_key FROM json_each(?2) CROSS JOIN names ON owner_key = ?1 AND name_key = value"
    return {*sql.column(connection, statement, (owner_key, sql.array(name_keys)))}


def _bearers(connection: apsw.Connection, owner_key: int, name_keys: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """The entities that bear each name by the owner's own assertions: name → [(entity_key, kind)]."""
    bearers: dict[str, list[tuple[int, str]]] = {}
    for name_key, entity_key, kind in sql.rows(
        connection,
        "SELECT name_key, entity_key, kind FROM json_each(?) CROSS JOIN entities ON name_key = value"
        " WHERE EXISTS (SELECT 1 FROM assertions WHERE assertions.entity_key = entities.entity_key"
        "              AND owner_key = ? AND source <> 'keyword')",
        (sql.array(name_keys), owner_key),
    ):
        bearers.setdefault(name_key, []).append((entity_key, kind))
    return bearers


def _mentioned(connection: apsw.Connection, document_keys: Iterable[int]) -> dict[int, set[int]]:
    """Of each document, the entities."""
    mentioned: dict[int, set[int]] = {key: set() for key in document_keys}
    for document_key, entity_key in sql.rows(
        connection,
        "SELECT document_key, entity_key FROM json_each(?) CROSS JOIN mentions ON document_key = value",
        (sql.array(mentioned),),
    ):
        mentioned[document_key].add(entity_key)
    return mentioned
