"""The CPU engine: a search takes the cheapest of three plans.

    gather   few rows pass the filter: measure just those
    scan     a matrix product over all rows, those that do not pass masked out
    codes    a large table: order the rows by their 4-bit codes, measure the first of them and the rows not coded yet

The first two are exact; the third has recall ≥ 0.97, and the distances it gives are exact too. FAISS takes one filter
a call, so queries are served in groups of equal filters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from thread_kernels import saved
from thread_kernels.coded_table import Asked, CodedTable, candidate_count, codes_above
from thread_kernels.coder_cpu import CpuCoder
from thread_kernels.compression import CompressPolicy
from thread_kernels.exact import closest, measured
from thread_kernels.inputs import as_counts, as_vectors
from thread_kernels.interface import Compress, Filter, Hits, Int64, Place, SavedCodes, StoredVectors
from thread_kernels.reach import Look

_LISTED_WHOLE = 4
"""Of rows that are so few times the candidates all are: to rescore them takes less than to find the nearest first."""


class CpuTable(CodedTable):
    """A `Table` in main memory."""

    def __init__(self, width: int, policy: CompressPolicy, stored: StoredVectors | None = None) -> None:
        super().__init__(width, policy, CpuCoder(), stored)

    def search(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Hits]:
        vectors, squared_norms = as_vectors(queries, self.width, name="query")
        counts = as_counts(k, len(vectors), len(filters))

        def nearest(asked: Asked, most: int) -> list[Hits]:
            plan, look = self._plan(asked, most)
            self._plans[plan] += len(asked.queries)
            if look is not None:
                return self._measured_by_code(asked, most, look)
            rows = self._exact(asked, most, plan)
            return [
                measured(query, each, asked.view.vectors, most) for query, each in zip(asked.queries, rows, strict=True)
            ]

        found = self._by_filter(vectors, squared_norms, counts, filters, nearest)
        return [Hits(hits.rows[:count], hits.distances[:count]) for hits, count in zip(found, counts, strict=True)]

    def candidates(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Int64]:
        vectors, squared_norms = as_vectors(queries, self.width, name="query")
        counts = as_counts(k, len(vectors), len(filters))

        def listed(asked: Asked, most: int) -> list[Int64]:
            wanted = candidate_count(most)
            if len(asked.passing) <= _LISTED_WHOLE * wanted and not self._is_always_coded:
                self._plans["gather"] += len(asked.queries)
                return [asked.passing.rows()] * len(asked.queries)
            plan, look = self._plan(asked, most)
            self._plans[plan] += len(asked.queries)
            if look is None:
                return self._exact(asked, wanted, plan)
            return self._by_code(asked, wanted, look)

        found = self._by_filter(vectors, squared_norms, counts, filters, listed)
        return [rows if count else rows[:0] for rows, count in zip(found, counts, strict=True)]

    def save(self) -> SavedCodes | None:
        current = self.compression.current
        return None if current is None else saved.save(current, self._members.removed())

    def restore(self, data: bytes, count: int) -> range:
        self._check_restorable()
        return self._restored(saved.load(data, count, self.width), count)

    def _by_code(self, asked: Asked, k: int, look: Look) -> list[Int64]:
        """The rows that codes put first, and the nearest of those without a code."""
        assert asked.compressed is not None
        codes, passing = asked.compressed.codes, asked.passing
        found = codes.nearest(asked.queries, max(look.depth, k), passing, look.share)
        found = self._beside(asked, asked.compressed, k, found)
        if look.share < 1 and any(len(rows) < min(k, len(passing)) for rows in found):
            return self._by_code(asked, k, Look(look.depth, 1.0))  # fewer than k mean that no more pass
        return found

    def _measured_by_code(self, asked: Asked, k: int, look: Look) -> list[Hits]:
        hits = []
        for query, rows in zip(asked.queries, self._by_code(asked, k, look), strict=True):
            ascending = np.sort(rows)
            hits.append(closest(query, ascending, asked.view.vectors(ascending), k))
        return hits


class CpuEngine:
    """An `Engine` on the CPU."""

    name = "cpu"
    fault = None
    memory_bytes: Mapping[Place, int] = MappingProxyType({})

    def __init__(self, compress: Compress = "auto", pq_bits: int = 8) -> None:
        self._compress = compress
        self._bits = pq_bits

    def table(self, width: int, stored: StoredVectors | None = None) -> CpuTable:
        return CpuTable(width, CompressPolicy(codes_above(width, self._compress), self._bits), stored)
