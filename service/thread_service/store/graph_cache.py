"""Links of the graph in memory: documents of an entity, entities of a document. A bounded cache over the store.

Hubs and hot documents are asked for by every query and change rarely, so they stay; memory does not grow with the
graph.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

import apsw
from pyroaring import BitMap

from thread_service.store import sql

ENTITIES_MAX = 65_536
DOCUMENTS_MAX = 65_536

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
        self._documents_of: _Cache[BitMap] = _Cache(ENTITIES_MAX)
        self._entities_of: _Cache[tuple[Link, ...]] = _Cache(DOCUMENTS_MAX)

    def version(self) -> int:
        """To be read before the transaction whose reads may be cached is opened."""
        return self._documents_of.changes + self._entities_of.changes

    def at(self, connection: apsw.Connection, version: int) -> Links:
        """The links as this read transaction sees them, through the cache."""
        return Links(self._documents_of, self._entities_of, connection, version)

    def invalidate(self, entity_keys: Iterable[int], document_keys: Iterable[int]) -> None:
        self._documents_of.forget(entity_keys)
        self._entities_of.forget(document_keys)

    def clear(self) -> None:
        self._documents_of.clear()
        self._entities_of.clear()


class Links:
    """The graph's links during one search."""

    def __init__(
        self,
        documents_of: _Cache[BitMap],
        entities_of: _Cache[tuple[Link, ...]],
        connection: apsw.Connection,
        version: int,
    ) -> None:
        self._documents_of = documents_of
        self._entities_of = entities_of
        self._connection = connection
        self._is_current = lambda: documents_of.changes + entities_of.changes == version

    def documents_of(self, entity_keys: Iterable[int]) -> dict[int, BitMap]:
        """Every document that lists each entity (see `listed`). Shared: not to be changed."""
        return self._documents_of.get(entity_keys, lambda key: _documents_of(self._connection, key), self._is_current)

    def entities_of(self, document_keys: Iterable[int]) -> dict[int, tuple[Link, ...]]:
        """Every entity each document is linked to."""
        return self._entities_of.get(document_keys, lambda key: _entities_of(self._connection, key), self._is_current)


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


class _Cache(Generic[Value]):
    """Least recently used out first. What an older transaction read is never kept after a change."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._values: OrderedDict[int, Value] = OrderedDict()
        self.changes = 0

    def get(
        self, keys: Iterable[int], load: Callable[[int], Value], is_current: Callable[[], bool]
    ) -> dict[int, Value]:
        found: dict[int, Value] = {}
        missing: list[int] = []
        with self._lock:
            for key in keys:
                if key in self._values:
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
                else:
                    missing.append(key)
        loaded = {key: load(key) for key in missing}
        with self._lock:
            if is_current():
                self._values.update(loaded)
                while len(self._values) > self._capacity:
                    self._values.popitem(last=False)
        return found | loaded

    def forget(self, keys: Iterable[int]) -> None:
        with self._lock:
            self.changes += 1
            for key in keys:
                self._values.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self.changes += 1
            self._values.clear()
