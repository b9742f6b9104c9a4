"""The CPU engine: a search takes the cheapest of three plans.

    gather   few rows pass the filter: measure just those
    scan     a matrix product over all rows, those that do not pass masked out
    codes    a large table: order the rows by their 4-bit codes, measure the first of them and the rows not coded yet

The first two are exact; the third has recall ≥ 0.97, and the distances it gives are exact too. FAISS takes one filter
a call, so queries are served in groups of equal filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from threading import Lock

import numpy as np
from numpy.typing import ArrayLike

from thread_kernels.blocks import Blocks
from thread_kernels.blockwise import block_scores
from thread_kernels.compression import Compressed, Compression
from thread_kernels.exact import nearest
from thread_kernels.inputs import as_counts, as_rows, as_vectors, as_width
from thread_kernels.interface import (
    DamagedCodes,
    Filter,
    Float32,
    Float64,
    Hits,
    Int64,
    Rescored,
    RowSet,
    SavedCodes,
    StoredVectors,
    TableStats,
)
from thread_kernels.membership import Membership, Passing

COMPRESS_ABOVE = 50_000
"""Live rows up to which exact search is fast enough, and better."""

# Cost of a row, in units of scanning it where it lies: 90 ns at 384 dimensions and 220 ns at 1,024, on 2 cores.
_GATHERED = 4
_CODED = 1 / 16


class CpuTable:
    """A `Table` in main memory."""

    def __init__(self, width: int, compress_above: int = COMPRESS_ABOVE) -> None:
        self.width = as_width(width)
        self._blocks = Blocks(width)
        self._members = Membership()
        self._writing = Lock()
        self.compression = Compression(self._blocks, self._members, compress_above)

    @property
    def row_count(self) -> int:
        return self._members.row_count

    @property
    def live_count(self) -> int:
        return self._members.live_count

    def append(self, vectors: ArrayLike) -> range:
        new, squared_norms = as_vectors(vectors, self.width)
        with self._writing:
            self._blocks.write(self._members.row_count, new, squared_norms)
            rows = self._members.extend(len(new))
        self.compression.wake()
        return rows

    def remove(self, rows: ArrayLike) -> None:
        self._members.remove(rows)

    def row_set(self) -> RowSet:
        return self._members.row_set()

    def count(self, filter: Filter) -> int:
        return len(self._members.passing(filter))

    def search(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Hits]:
        vectors, squared_norms = as_vectors(queries, self.width, name="query")
        counts = as_counts(k, len(vectors), len(filters))
        groups: dict[Filter | None, list[int]] = {}
        for query, each in enumerate(filters):
            groups.setdefault(each, []).append(query)

        compressed = self.compression.current  # before the filters, so that every row with a code is one they know
        found: dict[int, Hits] = {}
        for each, members in groups.items():
            passing = self._members.passing(each)
            most = max(counts[query] for query in members)
            hits = self._search(vectors[members], squared_norms[members], most, passing, compressed)
            found.update(zip(members, hits, strict=True))
        return [Hits(found[query].rows[:count], found[query].distances[:count]) for query, count in enumerate(counts)]

    def candidates(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Int64]:
        counts = as_counts(k, len(np.asarray(queries)), len(filters))
        return [
            hits.rows for hits in self.search(queries, [max(4 * each, 256) if each else 0 for each in counts], filters)
        ]

    def rescore(self, query: ArrayLike, rows: ArrayLike) -> Rescored:
        vectors, squared_norms = as_vectors(np.asarray(query)[None], self.width, name="query")
        numbers = as_rows(rows, self.row_count)
        order = np.argsort(numbers)
        ascending = numbers[order]
        scores = block_scores(
            vectors[0], float(squared_norms[0]) ** 0.5, self._blocks.vectors(ascending), self._blocks.norms(ascending)
        )
        given = np.argsort(order)
        return Rescored(scores.distances[given], scores.cosines[given])

    def save(self) -> SavedCodes | None:
        return None

    def restore(self, data: bytes, count: int) -> range:
        raise DamagedCodes("not yet")

    def compact(self) -> None:
        pass

    def stats(self) -> TableStats:
        return TableStats(self.row_count, self.row_count - self.live_count, 0, 0, 0, 0, 0, "exact", 0, 0.0, 0, 0, 0)

    def close(self) -> None:
        self.compression.close()

    def _search(
        self, queries: Float32, squared_norms: Float64, k: int, passing: Passing, compressed: Compressed | None
    ) -> list[Hits]:
        gathering, scanning = len(passing) * _GATHERED, passing.row_count
        if compressed is not None and passing.live_count > self.compression.above:
            filtered = len(passing) < passing.live_count
            depth = (compressed.filtered_depth if filtered else compressed.depth).of(k)
            coded = compressed.codes.rows
            if depth is not None and coded * _CODED + depth * _GATHERED + scanning - coded < min(gathering, scanning):
                return self._search_codes(queries, squared_norms, k, passing, compressed, depth)
        if gathering < scanning:
            pieces = self._blocks.gather(passing.rows())
        else:
            pieces = self._blocks.scan(0, passing.row_count, passing.mask())
        return nearest(queries, squared_norms, k, pieces, self._blocks.vectors)

    def _search_codes(
        self, queries: Float32, squared_norms: Float64, k: int, passing: Passing, compressed: Compressed, depth: int
    ) -> list[Hits]:
        mask = passing.mask()
        ordered = compressed.codes.nearest(queries, depth, mask)
        hits: list[Hits] = []
        for query, rows in enumerate(ordered):
            one = slice(query, query + 1)
            uncoded = self._blocks.scan(compressed.codes.rows, passing.row_count, mask)
            pieces = chain(self._blocks.gather(np.sort(rows)), uncoded)
            hits += nearest(queries[one], squared_norms[one], k, pieces, self._blocks.vectors)
        return hits


class CpuEngine:
    """An `Engine` on the CPU."""

    name = "cpu"

    def table(self, width: int, stored: StoredVectors | None = None) -> CpuTable:
        return CpuTable(width)
