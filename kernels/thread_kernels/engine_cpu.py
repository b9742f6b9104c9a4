"""The CPU engine: a search takes the cheapest of three plans.

    gather   few rows pass the filter: measure just those
    scan     a matrix product over all rows, those that do not pass masked out
    codes    a large table: order the rows by their 4-bit codes, measure the first of them and the rows not coded yet

The first two are exact; the third has recall ≥ 0.97, and the distances it gives are exact too. FAISS takes one filter
a call, so queries are served in groups of equal filters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from thread_kernels import saved
from thread_kernels.blocks import Blocks, View
from thread_kernels.blockwise import block_scores
from thread_kernels.compression import Compressed, Compression, CompressPolicy
from thread_kernels.costs import row_costs
from thread_kernels.exact import closest, measured, shortlist
from thread_kernels.inputs import as_counts, as_rows, as_vectors, as_width
from thread_kernels.interface import (
    Compress,
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
from thread_kernels.reach import DEEPEST, Look

CODES_ABOVE = 4_096
"""Live rows up to which a table is scanned exactly, unless codes are asked for: their vectors fit into a cache."""
NARROWEST = 32
"""Vectors narrower than this are scanned exactly too: their codes would hardly be smaller than they are."""
_CANDIDATES, _CANDIDATES_A_RESULT = 128, 4
"""The best by the rescored distance are among so many of the nearest."""

Plan = Literal["gather", "scan", "codes"]
T = TypeVar("T")


class CpuTable:
    """A `Table` in main memory."""

    def __init__(self, width: int, policy: CompressPolicy, stored: StoredVectors | None = None) -> None:
        self.width = as_width(width)
        self._blocks = Blocks(width, stored)
        self._members = Membership()
        self._writing = Lock()
        self._is_always_coded = policy.above == 0
        self._plans: Counter[Plan] = Counter()
        self.compression = Compression(self._blocks, self._members, policy)

    @property
    def row_count(self) -> int:
        return self._members.row_count

    @property
    def live_count(self) -> int:
        return self._members.live_count

    def append(self, vectors: ArrayLike) -> range:
        new, squared_norms = as_vectors(vectors, self.width)
        with self._writing:
            self._blocks.write(new, squared_norms)
            rows = self._members.extend(len(new))
        self.compression.wake()
        return rows

    def remove(self, rows: ArrayLike) -> None:
        self._members.remove(rows)
        self.compression.wake()

    def row_set(self) -> RowSet:
        return self._members.row_set()

    def count(self, filter: Filter) -> int:
        return len(self._members.passing(filter))

    def search(self, queries: ArrayLike, k: int | Sequence[int], filters: Sequence[Filter | None]) -> list[Hits]:
        vectors, squared_norms = as_vectors(queries, self.width, name="query")
        counts = as_counts(k, len(vectors), len(filters))

        def nearest(asked: _Asked, most: int) -> list[Hits]:
            plan, look = self._plan(asked, most)
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

        def listed(asked: _Asked, most: int) -> list[Int64]:
            plan, look = self._plan(asked, most)
            wanted = max(_CANDIDATES_A_RESULT * most, _CANDIDATES)
            if look is None:
                return self._exact(asked, wanted, plan)
            return self._by_code(asked, wanted, look)

        found = self._by_filter(vectors, squared_norms, counts, filters, listed)
        return [rows if count else rows[:0] for rows, count in zip(found, counts, strict=True)]

    def rescore(self, query: ArrayLike, rows: ArrayLike) -> Rescored:
        vectors, squared_norms = as_vectors(np.asarray(query)[None], self.width, name="query")
        numbers = as_rows(rows, self.row_count)
        order = np.argsort(numbers)
        scores = block_scores(vectors[0], float(squared_norms[0]) ** 0.5, self._blocks.view.vectors(numbers[order]))
        given = np.empty_like(order)
        given[order] = np.arange(len(order))
        return Rescored(scores.distances[given], scores.cosines[given])

    def save(self) -> SavedCodes | None:
        current = self.compression.current
        return None if current is None else saved.save(current, self._members.removed())

    def restore(self, data: bytes, count: int) -> range:
        if self.row_count or not self._blocks.is_backed:
            raise ValueError("codes are restored into an empty table that reads its vectors from a store")
        compressed = saved.load(data, count, self.width)
        self._blocks.skip(count)
        self.compression.adopt(compressed)
        return self._members.extend(count)

    def compact(self) -> None:
        self.compression.compact()

    def stats(self) -> TableStats:
        current = self.compression.current
        live, dead = self._members.live_count, self._members.dead_count
        coded_rows = 0 if current is None else current.codes.coded_rows
        look = None if current is None else current.look(10, self._members.passing(None))
        costs = row_costs(self.width)
        if current is None:
            crossover = live * costs.scanned / costs.gathered
        else:
            crossover = current.codes.coded_rows * current.coded_cost / current.gathered_cost
        return TableStats(
            rows=live + dead,
            dead_rows=dead,
            coded_rows=coded_rows,
            code_bytes=0 if current is None else current.codes.codebook.code_bytes,
            vector_bytes=self._blocks.kept_bytes,
            depth=coded_rows if look is None else look.depth,
            crossover_rows=int(crossover),
            state=self._state(current),
            trained_rows=0 if current is None else current.trained_rows,
            training_seconds=0.0 if current is None else current.training_seconds,
            gathered=self._plans["gather"],
            scanned=self._plans["scan"],
            by_code=self._plans["codes"],
        )

    def close(self) -> None:
        self.compression.close()

    def _state(self, current: Compressed | None) -> Literal["exact", "training", "coded", "failed"]:
        if self.compression.is_working:
            return "training"
        if self.compression.has_failed:
            return "failed"
        return "exact" if current is None else "coded"

    def _by_filter(
        self,
        vectors: Float32,
        squared_norms: Float64,
        counts: Sequence[int],
        filters: Sequence[Filter | None],
        answer: Callable[[_Asked, int], list[T]],
    ) -> list[T]:
        """One call of `answer` for the queries of each filter, and their answers in the order of the queries."""
        groups: dict[Filter | None, list[int]] = {}
        for query, each in enumerate(filters):
            groups.setdefault(each, []).append(query)
        found: dict[int, T] = {}
        for each, members in groups.items():
            compressed = self.compression.current  # before the filter, so that every row with a code is one it knows
            asked = _Asked(
                vectors[members], squared_norms[members], self._members.passing(each), compressed, self._blocks.view
            )
            answers = answer(asked, max(counts[query] for query in members))
            found.update(zip(members, answers, strict=True))
        return [found[query] for query in range(len(filters))]

    def _plan(self, asked: _Asked, k: int) -> tuple[Plan, Look | None]:
        """The cheapest plan for the `k` nearest, by what a row costs in each; with `codes`, how far to look."""
        passing, compressed = asked.passing, asked.compressed
        costs = row_costs(self.width)
        gathered, scanned = costs.gathered, costs.scanned
        look = None
        if compressed is not None and k and len(passing):
            gathered = compressed.gathered_cost
            if self._blocks.is_backed:
                scanned = gathered
            look = compressed.look(k, passing)
            if look is None and self._is_always_coded:
                look = Look(max(k, DEEPEST), 1.0)
            if look is not None:
                codes = compressed.codes
                coded = look.share * codes.coded_rows * compressed.coded_cost + min(look.depth, len(passing)) * gathered
                uncoded = (passing.row_count - codes.rows) * costs.scanned
                exact = min(len(passing) * gathered, passing.row_count * scanned)
                if not self._is_always_coded and coded + uncoded >= exact:
                    look = None
        plan: Plan = "codes"
        if look is None:
            plan = "gather" if len(passing) * gathered < passing.row_count * scanned else "scan"
        self._plans[plan] += len(asked.queries)
        return plan, look

    def _exact(self, asked: _Asked, k: int, plan: Plan) -> list[Int64]:
        passing = asked.passing
        if plan == "gather":
            pieces = asked.view.gather(passing.rows())
        else:
            pieces = asked.view.scan(0, passing.row_count, passing.mask())
        return shortlist(asked.queries, asked.squared_norms, k, pieces)

    def _by_code(self, asked: _Asked, k: int, look: Look) -> list[Int64]:
        """The rows that codes put first, and the nearest of those without a code."""
        assert asked.compressed is not None
        codes, passing = asked.compressed.codes, asked.passing
        found = codes.nearest(asked.queries, max(look.depth, k), passing, look.share)
        if codes.rows < passing.row_count:
            uncoded = asked.view.scan(codes.rows, passing.row_count, passing.mask())
            newest = shortlist(asked.queries, asked.squared_norms, k, uncoded)
            found = [np.concatenate(pair) for pair in zip(found, newest, strict=True)]
        if look.share < 1 and any(len(rows) < min(k, len(passing)) for rows in found):
            return self._by_code(asked, k, Look(look.depth, 1.0))  # fewer than k mean that no more pass
        return found

    def _measured_by_code(self, asked: _Asked, k: int, look: Look) -> list[Hits]:
        hits = []
        for query, rows in zip(asked.queries, self._by_code(asked, k, look), strict=True):
            ascending = np.sort(rows)
            hits.append(closest(query, ascending, asked.view.vectors(ascending), k))
        return hits


@dataclass(frozen=True, slots=True)
class _Asked:
    """Queries with one filter: float32[q, width], float64[q], the rows that pass and the codes of that moment."""

    queries: Float32
    squared_norms: Float64
    passing: Passing
    compressed: Compressed | None
    view: View


class CpuEngine:
    """An `Engine` on the CPU."""

    name = "cpu"

    def __init__(self, compress: Compress = "auto", pq_bits: int = 8) -> None:
        self._compress = compress
        self._bits = pq_bits

    def table(self, width: int, stored: StoredVectors | None = None) -> CpuTable:
        above = 0 if self._compress == "always" else CODES_ABOVE if as_width(width) >= NARROWEST else None
        return CpuTable(width, CompressPolicy(above, self._bits), stored)
