"""Links and names of the graph in memory: documents of an entity, entities of a document, what an entity is called to
a caller. A bounded cache over the store.

Hubs and hot documents are asked for by every query and change rarely, so they stay; memory does not grow with the
graph.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

import apsw
from pyroaring import BitMap

from thread_service.store import lookup, sql

ENTITIES_MAX = 65_536
DOCUMENTS_MAX = 65_536
NAMES_MAX = 65_536

Key = TypeVar("Key")
Value = TypeVar("Value")


class Standing(IntEnum):
    """How a document came to be linked to an entity."""

    KEYWORD = 0
    MENTIONED = 1
    OWN_NAME = 2
    GIVEN = 3


class Link(NamedTuple):
    entity_key: int
    standing: int


def listed(links: Iterable[Link]) -> list[int]:
    """The entities a document lists, which is what evidence runs along: what it asserts and, only if it was given no
    entities, what it mentions. Whoever names a document's entities says what it is about; all else that its text
    mentions is beside the point then."""
    found = list(links)
    is_given = any(link.standing == Standing.GIVEN for link in found)
    return [link.entity_key for link in found if not (is_given and link.standing == Standing.MENTIONED)]


class GraphCache:
    def __init__(self) -> None:
        self.documents_of: _Cache[int, BitMap] = _Cache(ENTITIES_MAX)
        self.entities_of: _Cache[int, tuple[Link, ...]] = _Cache(DOCUMENTS_MAX)
        self.names: _Cache[tuple[int | None, int], lookup.EntityName | None] = _Cache(NAMES_MAX)

    def version(self) -> int:
        """To be read before the transaction whose reads may be cached is opened."""
        return self.documents_of.changes + self.entities_of.changes + self.names.changes

    def at(self, connection: apsw.Connection, version: int) -> Links:
        """The links as this read transaction sees them, through the cache."""
        return Links(self, connection, version)

    def invalidate(self, entity_keys: Iterable[int], document_keys: Iterable[int]) -> None:
        self.documents_of.forget(entity_keys)
        self.entities_of.forget(document_keys)

    def forget_names(self) -> None:
        """Who may read a document has changed: it decides what its entities are called to whom."""
        self.names.clear()

    def clear(self) -> None:
        self.documents_of.clear()
        self.entities_of.clear()
        self.names.clear()


class Links:
    """The graph's links during one search."""

    def __init__(self, cache: GraphCache, connection: apsw.Connection, version: int) -> None:
        self._cache = cache
        self._connection = connection
        self._is_current = lambda: cache.version() == version

    def documents_of(self, entity_keys: Iterable[int]) -> dict[int, BitMap]:
        """Every document that lists each entity (see `listed`). Shared: not to be changed."""

        def load(keys: Sequence[int]) -> dict[int, BitMap]:
            return {key: _documents_of(self._connection, key) for key in keys}

        return self._cache.documents_of.get(entity_keys, load, self._is_current)

    def entities_of(self, document_keys: Iterable[int]) -> dict[int, tuple[Link, ...]]:
        """Every entity each document is linked to."""

        def load(keys: Sequence[int]) -> dict[int, tuple[Link, ...]]:
            return {key: _entities_of(self._connection, key) for key in keys}

        return self._cache.entities_of.get(document_keys, load, self._is_current)

    def names(self, entity_keys: Iterable[int], owner_key: int | None) -> dict[int, lookup.EntityName]:
        """`lookup.entity_names`."""

        def load(keys: Sequence[tuple[int | None, int]]) -> dict[tuple[int | None, int], lookup.EntityName | None]:
            found = lookup.entity_names(self._connection, [key for _, key in keys], owner_key)
            return {(owner_key, key): found.get(key) for _, key in keys}

        named = self._cache.names.get([(owner_key, key) for key in entity_keys], load, self._is_current)
        return {key: name for (_, key), name in named.items() if name is not None}


def _documents_of(connection: apsw.Connection, entity_key: int) -> BitMap:
    statement = (
        "SELECT document_key FROM assertions WHERE entity_key = ?1"
        " UNION ALL SELECT document_key FROM mentions WHERE entity_key = ?1 AND NOT EXISTS"
        " (SELECT 1 FROM assertions WHERE assertions.document_key = mentions.document_key AND source = 'given')"
    )
    return BitMap(key for key in sql.column(connection, statement, (entity_key,)))


def _entities_of(connection: apsw.Connection, document_key: int) -> tuple[Link, ...]:
    statement = (
        "SELECT entity_key, max(standing) FROM ("
        " SELECT entity_key, CASE source WHEN 'given' THEN 3 WHEN 'name' THEN 2 ELSE 0 END AS standing"
        " FROM assertions WHERE document_key = ?1"
        " UNION ALL SELECT entity_key, 1 FROM mentions WHERE document_key = ?1) GROUP BY entity_key"
    )
    return tuple(Link(key, standing) for key, standing in sql.rows(connection, statement, (document_key,)))


class _Cache(Generic[Key, Value]):
    """Least recently used out first. What an older transaction read is never kept after a change."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self.changes = 0

    def get(
        self, keys: Iterable[Key], load: Callable[[Sequence[Key]], dict[Key, Value]], is_current: Callable[[], bool]
    ) -> dict[Key, Value]:
        found: dict[Key, Value] = {}
        missing: list[Key] = []
        with self._lock:
            for key in keys:
                if key in self._values:
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
                else:
                    missing.append(key)
        if not missing:
            return found
        loaded = load(missing)
        with self._lock:
            if is_current():
                self._values.update(loaded)
                while len(self._values) > self._capacity:
                    self._values.popitem(last=False)
        return found | loaded

    def forget(self, keys: Iterable[Key]) -> None:
        with self._lock:
            self.changes += 1
            for key in keys:
                self._values.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self.changes += 1
            self._values.clear()
