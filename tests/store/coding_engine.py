"""A test double of the engine: it codes every row at once, keeps no vector, and reads all it measures from the store.

So a search answers right only if every row lies where the store says it does, and a restart restores only what the
cache holds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pyroaring import BitMap

from thread_kernels import DamagedCodes, Filter, Hits, Place, Rescored, SavedCodes, StoredVectors, TableStats

CODE_BYTES = 8


class CodingEngine:
    """`appended`: rows that came as vectors, over all tables; `trainings` can be raised by a test."""

    name = "coding double"
    fault = None
    memory_bytes: Mapping[Place, int] = MappingProxyType({})

    def __init__(self) -> None:
        self.appended = 0
        self.trainings = 1

    def table(self, width: int, stored: StoredVectors | None = None) -> CodingTable:
        assert stored is not None
        return CodingTable(self, width, stored)


class _RowSet(BitMap):
    def add(self, rows: Any) -> None:
        self.update(BitMap(np.atleast_1d(rows)))

    def discard(self, rows: Any) -> None:
        self.difference_update(BitMap(np.atleast_1d(rows)))


class CodingTable:
    def __init__(self, engine: CodingEngine, width: int, stored: StoredVectors) -> None:
        self._engine = engine
        self.width = width
        self._stored = stored
        self._codes = np.empty((0, CODE_BYTES), np.uint8)
        self._live = BitMap()

    @property
    def row_count(self) -> int:
        return len(self._codes)

    @property
    def live_count(self) -> int:
        return len(self._live)

    def append(self, vectors: ArrayLike) -> range:
        new = np.asarray(vectors, np.float32)
        first = self.row_count
        rows = range(first, first + len(new))
        assert np.array_equal(self._stored(np.arange(rows.start, rows.stop)), new), "not where the store says"
        self._engine.appended += len(new)
        codes = np.ascontiguousarray(new).view(np.uint8)[:, :CODE_BYTES]
        self._codes = np.concatenate([self._codes, codes])
        self._live |= BitMap(rows)
        return rows

    def remove(self, rows: ArrayLike) -> None:
        self._live -= BitMap(np.atleast_1d(rows))

    def row_set(self) -> _RowSet:
        return _RowSet()

    def count(self, filter: Filter) -> int:
        return len(self._passing(filter))

    def search(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Hits]:
        hits: list[Hits] = []
        for query, each in zip(np.asarray(queries, np.float32), filters, strict=True):
            rows = self._passing(each)
            distances = np.square(self._stored(rows) - query).sum(1, dtype=np.float32)
            assert not np.isnan(distances).any(), "a live row is gone"
            order = np.lexsort((rows, distances))[:k]
            hits.append(Hits(rows[order], distances[order]))
        return hits

    def candidates(
        self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]
    ) -> list[np.ndarray]:
        return [hits.rows for hits in self.search(queries, k, filters)]

    def rescore(self, query: ArrayLike, rows: ArrayLike) -> Rescored:
        raise NotImplementedError

    def save(self) -> SavedCodes | None:
        if not self._live:
            return None
        rows = np.array(self._live.to_array(), dtype=np.int64)
        codes = self._codes[rows].tobytes()
        return SavedCodes(rows, zlib.crc32(codes).to_bytes(4, "little") + codes)

    def restore(self, data: bytes, count: int) -> range:
        assert self.row_count == 0
        if len(data) != 4 + CODE_BYTES * count or zlib.crc32(data[4:]).to_bytes(4, "little") != data[:4]:
            raise DamagedCodes("flipped bits")
        self._codes = np.frombuffer(data, np.uint8, offset=4).reshape(count, CODE_BYTES)
        self._live = BitMap(range(count))
        return range(count)

    def compact(self) -> None:
        pass

    def stats(self) -> TableStats:
        dead, coded = self.row_count - self.live_count, self.live_count
        trained, seconds = self._engine.trainings, 1.0
        return TableStats(self.row_count, dead, coded, CODE_BYTES, 0, 0, 0, "coded", trained, seconds, 0, 0, 0)

    def close(self) -> None:
        pass

    def _passing(self, filter: Filter | None) -> np.ndarray:
        rows = self._live.copy()
        for union in () if filter is None else filter.all_of:
            rows &= BitMap.union(BitMap(), *union)
        return np.array(rows.to_array(), dtype=np.int64)
