"""Links and names of the graph in memory: documents of an entity, entities of a document, what an entity is called to
a caller. A cache over the store, bounded in bytes.

Hubs are asked for by every query, have very many documents and change with nearly every deposit, so the documents of an
entity follow each commit instead of being read again, and what was read from an older snapshot is brought up to date by
the commits since. Memory does not grow with the graph.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

import apsw
import numpy as np
from pyroaring import BitMap

from thread_service.store import lookup, sql
from thread_service.store.changes import Changes

DOCUMENT_SETS_BYTES = 64 << 20
LINKS_BYTES = 32 << 20
NAMES_BYTES = 32 << 20
LISTED_MAX = 128
"""Entities of one document that evidence runs along: those it says most surely, then the oldest."""
COMMITS_KEPT = 32
"""Of which a set that is being read meanwhile can be brought up to date."""
COMMIT_DOCUMENTS_MAX = 4_096
"""Documents whose links one commit may change for the sets to follow it; beyond it they are read again."""

_ENTRY_BYTES = 200
_LINK_BYTES = 90
_CONTAINER_BYTES = 8 << 10
_CONTAINER_BITS = 16
_PARSED_ONE_BY_ONE = 64

Key = TypeVar("Key")
Value = TypeVar("Value")


class Standing(IntEnum):
    """How a document came to be linked to an entity."""

    KEYWORD = 0
    MENTIONED = 1
    MENTIONED_KEYWORD = 2
    OWN_NAME = 3
    GIVEN = 4


class Link(NamedTuple):
    entity_key: int
    standing: int


def listed(links: Iterable[Link]) -> list[int]:
    """The entities a document lists, which is what evidence runs along: what it asserts and, only if it was given no
    entities, what it mentions. Whoever names a document's entities says what it is about; all else that its text
    mentions is beside the point then."""
    found = [*_listed(links)]
    if len(found) > LISTED_MAX:
        found.sort(key=lambda link: (-link.standing, link.entity_key))
    return [link.entity_key for link in found[:LISTED_MAX]]


def _listed(links: Iterable[Link]) -> Iterable[Link]:
    found = list(links)
    is_given = any(link.standing == Standing.GIVEN for link in found)
    return (link for link in found if not (is_given and link.standing == Standing.MENTIONED))


def look(connection: apsw.Connection, changes: Changes) -> None:
    """Last in a transaction: note what the changed documents list now, so that the memory can follow."""
    if len(changes.linked_documents) <= COMMIT_DOCUMENTS_MAX:
        changes.listings = {
            key: frozenset(link.entity_key for link in _listed(_entities_of(connection, key)))
            for key in changes.linked_documents
        }
    changes.unasserted.update(
        sql.column(
            connection,
            "SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM assertions WHERE entity_key = value)",
            (sql.array(changes.entities | changes.mentions),),
        )
    )


@dataclass(frozen=True, slots=True)
class _Commit:
    """`documents` are those whose links changed, `listing` what each of `entities` is listed by among them (None: not
    known), `forgotten` entities that nobody asserts any more."""

    version: int
    entities: frozenset[int]
    documents: BitMap
    listing: Mapping[int, Sequence[int]] | None
    forgotten: frozenset[int]
    renames: bool

    def follow(self, entity_key: int, documents: BitMap) -> BitMap | None:
        """The documents of an entity after the commit, None when that has to be read."""
        if entity_key not in self.entities:
            return documents
        if self.listing is None or entity_key in self.forgotten:
            return None
        return (documents - self.documents) | BitMap(self.listing.get(entity_key, ()))


class GraphCache:
    def __init__(
        self,
        *,
        sets_bytes: int = DOCUMENT_SETS_BYTES,
        links_bytes: int = LINKS_BYTES,
        names_bytes: int = NAMES_BYTES,
    ) -> None:
        self._lock = threading.RLock()
        self._version = 0
        self._commits: deque[_Commit] = deque(maxlen=COMMITS_KEPT)
        self.documents_of: _Cache[int, BitMap] = _Cache(sets_bytes, _set_bytes)
        self.entities_of: _Cache[int, tuple[Link, ...]] = _Cache(links_bytes, _links_bytes)
        self.names: _Cache[tuple[int | None, int], lookup.EntityName | None] = _Cache(names_bytes, _name_bytes)

    def version(self) -> int:
        """To be read before the transaction whose reads may be cached is opened."""
        with self._lock:
            return self._version

    def at(self, connection: apsw.Connection, version: int) -> Links:
        """The links as this read transaction sees them, or newer, through the cache."""
        return Links(self, connection, version)

    def publish(self, changes: Changes) -> None:
        """Follow a committed write, whose transaction ended with `look`."""
        renames = bool(changes.documents or changes.entities)
        entities = frozenset(changes.entities | changes.mentions)
        if not (renames or entities or changes.linked_documents):
            return
        with self._lock:
            self._version += 1
            commit = _Commit(
                self._version,
                entities,
                BitMap(changes.linked_documents),
                None if changes.listings is None else _by_entity(changes.listings, entities),
                frozenset(changes.unasserted),
                renames,
            )
            self._commits.append(commit)
            for key in entities:
                if (documents := self.documents_of.peek(key)) is not None:
                    self._keep_documents(key, documents, [commit])
            for key in commit.documents:
                self.entities_of.drop(key)
            if renames:
                # Who may read a document, and who asserts an entity, decides what it is called to whom.
                self.names.clear()

    def keep_documents(self, version: int, loaded: Mapping[int, BitMap]) -> None:
        """Keep documents of entities as they were read at `version`, brought up to date."""
        with self._lock:
            if (commits := self._since(version)) is not None:
                for key, documents in loaded.items():
                    self._keep_documents(key, documents, commits)

    def keep_entities(self, version: int, loaded: Mapping[int, tuple[Link, ...]]) -> None:
        with self._lock:
            if (commits := self._since(version)) is not None:
                for key, links in loaded.items():
                    if not any(key in commit.documents for commit in commits):
                        self.entities_of.put(key, links)

    def keep_names(self, version: int, loaded: Mapping[tuple[int | None, int], lookup.EntityName | None]) -> None:
        with self._lock:
            commits = self._since(version)
            if commits is not None and not any(commit.renames for commit in commits):
                for key, name in loaded.items():
                    self.names.put(key, name)

    def _since(self, version: int) -> list[_Commit] | None:
        """The commits after a version, None when they are not known any more."""
        found = [commit for commit in self._commits if commit.version > version]
        return found if len(found) == self._version - version else None

    def _keep_documents(self, key: int, documents: BitMap, commits: Sequence[_Commit]) -> None:
        now: BitMap | None = documents
        for commit in commits:
            # What the snapshot had already is only said again.
            now = None if now is None else commit.follow(key, now)
        if now:
            self.documents_of.put(key, now)
        else:  # nobody asserts it: if it comes back, those that mentioned it before list it again
            self.documents_of.drop(key)

    def clear(self) -> None:
        with self._lock:
            self._version += 1
            self._commits.clear()
            for cache in (self.documents_of, self.entities_of, self.names):
                cache.clear()


class Links:
    """The graph's links during one search."""

    def __init__(self, cache: GraphCache, connection: apsw.Connection, version: int) -> None:
        self._cache = cache
        self._connection = connection
        self._version = version

    def documents_of(self, entity_keys: Iterable[int]) -> dict[int, BitMap]:
        """Every document that lists each entity (see `listed`; but for its limit). Shared: not to be changed."""
        found, missing = self._cache.documents_of.get(entity_keys)
        if missing:
            loaded = _documents_of(self._connection, missing)
            self._cache.keep_documents(self._version, loaded)
            found |= loaded
        return found

    def entities_of(self, document_keys: Iterable[int]) -> dict[int, tuple[Link, ...]]:
        """Every entity each document is linked to; some may be asserted no more (see `graph.drop_unasserted`)."""
        found, missing = self._cache.entities_of.get(document_keys)
        if missing:
            loaded = {key: _entities_of(self._connection, key) for key in missing}
            self._cache.keep_entities(self._version, loaded)
            found |= loaded
        return found

    def names(self, entity_keys: Iterable[int], owner_key: int | None) -> dict[int, lookup.EntityName]:
        """`lookup.entity_names`."""
        found, missing = self._cache.names.get((owner_key, key) for key in entity_keys)
        if missing:
            named = lookup.entity_names(self._connection, [key for _, key in missing], owner_key)
            loaded = {key: named.get(key[1]) for key in missing}
            self._cache.keep_names(self._version, loaded)
            found |= loaded
        return {key: name for (_, key), name in found.items() if name is not None}


def _documents_of(connection: apsw.Connection, entity_keys: Sequence[int]) -> dict[int, BitMap]:
    """An entity that nobody asserts any more is listed by no document, though some may mention it still."""
    # One text a set takes a third of the time of one row a document, and other threads run meanwhile.
    statement = (
        "SELECT value, (SELECT group_concat(document_key) FROM assertions WHERE entity_key = value),"
        " (SELECT group_concat(document_key) FROM mentions m WHERE entity_key = value AND NOT EXISTS"
        "  (SELECT 1 FROM assertions a WHERE a.document_key = m.document_key AND source IN ('given', 'extracted')))"
        " FROM json_each(?)"
    )
    return {
        key: BitMap() if asserting is None else _parsed(asserting) | _parsed(mentioning or "")
        for key, asserting, mentioning in sql.rows(connection, statement, (sql.array(entity_keys),))
    }


def _parsed(numbers: str) -> BitMap:
    if len(numbers) < _PARSED_ONE_BY_ONE:
        return BitMap(map(int, numbers.split(","))) if numbers else BitMap()
    values = array("I")
    values.frombytes(np.fromstring(numbers, np.uint32, sep=",").tobytes())
    return BitMap(values)


def _entities_of(connection: apsw.Connection, document_key: int) -> tuple[Link, ...]:
    statement = (
        # A keyword that is mentioned by name too is asserted, and still a name.
        "SELECT entity_key, max(standing) + (min(standing) = 0 AND max(standing) = 1) FROM ("
        " SELECT entity_key, CASE source WHEN 'keyword' THEN 0 WHEN 'name' THEN 3 ELSE 4 END AS standing"
        " FROM assertions WHERE document_key = ?1"
        " UNION ALL SELECT entity_key, 1 FROM mentions WHERE document_key = ?1) GROUP BY entity_key"
    )
    return tuple(Link(key, standing) for key, standing in sql.rows(connection, statement, (document_key,)))


def _by_entity(listings: Mapping[int, frozenset[int]], entity_keys: frozenset[int]) -> dict[int, list[int]]:
    """The documents that list each of the entities."""
    found: dict[int, list[int]] = {}
    for document_key, entities in listings.items():
        for entity_key in entities & entity_keys:
            found.setdefault(entity_key, []).append(document_key)
    return found


def _set_bytes(documents: BitMap) -> int:
    """No less than a set takes: 2 bytes a number, or 8 KiB for each 65,536 numbers that it spans."""
    containers = 1 + (documents.max() >> _CONTAINER_BITS) - (documents.min() >> _CONTAINER_BITS)
    return min(2 * len(documents) + _ENTRY_BYTES * containers, _CONTAINER_BYTES * containers)


def _links_bytes(links: tuple[Link, ...]) -> int:
    return _LINK_BYTES * len(links)


def _name_bytes(name: lookup.EntityName | None) -> int:
    return 0 if name is None else 2 * (len(name.name_key) + len(name.spelling)) + _ENTRY_BYTES


class _Cache(Generic[Key, Value]):
    """Least recently used out first, once all together weigh more than `capacity` bytes."""

    def __init__(self, capacity: int, weigh: Callable[[Value], int]) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._lock = threading.Lock()
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._weight = 0

    @property
    def bytes(self) -> int:
        return self._weight

    def get(self, keys: Iterable[Key]) -> tuple[dict[Key, Value], list[Key]]:
        """(what is there, keys of what is not)."""
        found: dict[Key, Value] = {}
        wanted = dict.fromkeys(keys)
        with self._lock:
            for key in wanted:
                if key in self._values:
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
        return found, [key for key in wanted if key not in found] if len(found) < len(wanted) else []

    def peek(self, key: Key) -> Value | None:
        with self._lock:
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self._weight += self._weigh(value) + _ENTRY_BYTES
            while self._weight > self._capacity:
                self._drop(next(iter(self._values)))

    def drop(self, key: Key) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key)) + _ENTRY_BYTES

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._weight = 0
