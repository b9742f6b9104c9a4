"""The truth every engine is tested against: each operation as its definition says, in float64, never mind the speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from thread_kernels.blockwise import block_count
from thread_kernels.inputs import as_counts, as_rows, as_vectors, as_width
from thread_kernels.interface import (
    DamagedCodes,
    Filter,
    Float32,
    Float64,
    Hits,
    Int64,
    Place,
    Rescored,
    RowSet,
    SavedCodes,
    StoredVectors,
    TableStats,
)


class ReferenceRowSet:
    def __init__(self, table: ReferenceTable) -> None:
        self.table = table
        self.rows: set[int] = set()

    def add(self, rows: ArrayLike) -> None:
        self.rows.update(as_rows(rows, self.table.row_count).tolist())

    def discard(self, rows: ArrayLike) -> None:
        self.rows.difference_update(as_rows(rows, self.table.row_count).tolist())

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, row: object) -> bool:
        return row in self.rows


class ReferenceTable:
    def __init__(self, width: int) -> None:
        self.width = as_width(width)
        self._vectors: Float32 = np.empty((0, width), dtype=np.float32)
        self._removed: set[int] = set()

    @property
    def row_count(self) -> int:
        return len(self._vectors)

    @property
    def live_count(self) -> int:
        return self.row_count - len(self._removed)

    def append(self, vectors: ArrayLike) -> range:
        new, _ = as_vectors(vectors, self.width)
        first = self.row_count
        self._vectors = np.concatenate([self._vectors, new])
        return range(first, self.row_count)

    def remove(self, rows: ArrayLike) -> None:
        self._removed.update(as_rows(rows, self.row_count).tolist())

    def row_set(self) -> RowSet:
        return ReferenceRowSet(self)

    def count(self, filter: Filter) -> int:
        return len(self._passing(filter))

    def search(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Hits]:
        vectors, _ = as_vectors(queries, self.width, name="query")
        counts = as_counts(k, len(vectors), len(filters))
        return [self._nearest(*each) for each in zip(vectors, counts, filters, strict=True)]

    def candidates(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Int64]:
        vectors, _ = as_vectors(queries, self.width, name="query")
        counts = as_counts(k, len(vectors), len(filters))
        return [
            np.array(self._passing(each) if k else [], dtype=np.int64) for k, each in zip(counts, filters, strict=True)
        ]

    def rescore(self, query: ArrayLike, rows: ArrayLike) -> Rescored:
        [vector], _ = as_vectors(np.asarray(query)[None], self.width, name="query")
        distances, cosines = block_scores(vector, self._vectors[as_rows(rows, self.row_count)])
        return Rescored(distances.astype(np.float32), cosines.astype(np.float32))

    def save(self) -> SavedCodes | None:
        return None

    def restore(self, data: bytes, count: int) -> range:
        raise DamagedCodes("the reference has no codes, so these are none of its")

    def compact(self) -> None:
        """Nothing to give back: the truth keeps everything."""

    def stats(self) -> TableStats:
        return TableStats(
            self.row_count, len(self._removed), 0, 0, self._vectors.nbytes, 0, 0, "exact", 0, 0.0, 0, 0, 0
        )

    def close(self) -> None:
        """There is nothing in the background."""

    def _nearest(self, query: Float32, k: int, filter: Filter | None) -> Hits:
        rows = np.array(self._passing(filter), dtype=np.int64)
        differences = self._vectors[rows].astype(np.float64) - query
        distances = (differences**2).sum(axis=1).astype(np.float32)
        order = np.lexsort((rows, distances))[:k]
        return Hits(rows[order], distances[order])

    def _passing(self, filter: Filter | None) -> list[int]:
        passing = set(range(self.row_count)) - self._removed
        for union in filter.all_of if filter else ():
            members: set[int] = set()
            for each in union:
                if not isinstance(each, ReferenceRowSet) or each.table is not self:
                    raise ValueError("a filter holds a row set of another table")
                members |= each.rows
            passing &= members
        return sorted(passing)


class ReferenceEngine:
    name = "reference"
    fault = None
    memory_bytes: Mapping[Place, int] = MappingProxyType({})

    def table(self, width: int, stored: StoredVectors | None = None) -> ReferenceTable:
        return ReferenceTable(width)


def block_scores(query: ArrayLike, vectors: ArrayLike) -> tuple[Float64, Float64]:
    """float64[n] block distances and float64[n] cosines of float[n, width] `vectors` to float[width] `query`."""
    vector, rows = np.asarray(query, dtype=np.float64), np.asarray(vectors, dtype=np.float64)
    blocks = np.split(rows - vector, block_count(len(vector)), axis=1)
    distances: Float64 = np.sum([np.linalg.norm(block, axis=1) for block in blocks], axis=0)
    norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(vector)
    return distances, np.divide(rows @ vector, norms, out=np.zeros(len(rows)), where=norms > 0)


def product_scores(queries: ArrayLike, vectors: ArrayLike) -> Float64:
    """float64[q, n]: 2 q · x − |x|² of each of float[q, width] with each of float[n, width]."""
    asked, rows = np.asarray(queries, dtype=np.float64), np.asarray(vectors, dtype=np.float64)
    scores: Float64 = 2 * asked @ rows.T - (rows**2).sum(axis=1)
    return scores


def centroid_distances(vectors: ArrayLike, centroids: ArrayLike) -> Float64:
    """float64[n, subspaces, k]: |x − c|² of each sub-space of float[n, width] with float[subspaces, k, components]."""
    points = np.asarray(centroids, dtype=np.float64)
    parts = np.asarray(vectors, dtype=np.float64).reshape(-1, len(points), 1, points.shape[2])
    distances: Float64 = ((parts - points) ** 2).sum(axis=3)
    return distances


def lookup_tables(queries: ArrayLike, centroids: ArrayLike) -> Float64:
    """float64[q, subspaces, k]: how much nearer than the mean centroid of its sub-space each centroid is.

    T[q, m, k] = mean over k' of |y − c[m, k']|² − |y − c[m, k]|², y being sub-space m of float[q, width] `queries`
    and c float[subspaces, k, width / subspaces] `centroids`.
    """
    squared = centroid_distances(queries, centroids)
    tables: Float64 = squared.mean(axis=2, keepdims=True) - squared
    return tables


def lookup_scores(tables: ArrayLike, codes: ArrayLike) -> Float64:
    """float64[q, n]: for each of integer[n, subspaces] `codes` the sum of the entries it selects in `tables`."""
    entries, selected = np.asarray(tables, dtype=np.float64), np.asarray(codes)
    scores: Float64 = entries[:, np.arange(selected.shape[1]), selected].sum(axis=2)
    return scores


def best_rows(scores: ArrayLike, keep: int, masks: Sequence[ArrayLike | None]) -> list[Int64]:
    """For each of float[q, n] `scores` the `keep` rows with the highest that pass bool[n] mask, best first.

    Equal scores are ordered by row; NaN never passes.
    """
    found = []
    for row_scores, mask in zip(np.asarray(scores), masks, strict=True):
        passing = ~np.isnan(row_scores) if mask is None else ~np.isnan(row_scores) & mask
        rows = passing.nonzero()[0]
        found.append(rows[np.lexsort((rows, -row_scores[rows]))][:keep])
    return found
