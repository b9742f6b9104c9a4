"""What all tables share that keep float32 vectors in main memory or in a store, and have codes beside them.

An engine's table adds how it answers `search` and `candidates`, and how its codes are saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from thread_kernels.blocks import Blocks, View
from thread_kernels.blockwise import block_scores
from thread_kernels.coding import Coder
from thread_kernels.compression import Compressed, Compression, CompressPolicy
from thread_kernels.costs import row_costs
from thread_kernels.exact import shortlist
from thread_kernels.inputs import as_rows, as_vectors, as_width
from thread_kernels.interface import (
    Compress,
    Filter,
    Float32,
    Float64,
    Int64,
    Rescored,
    RowSet,
    StoredVectors,
    TableStats,
)
from thread_kernels.membership import Membership, Passing
from thread_kernels.reach import DEEPEST, Look

_CODES_ABOVE = 4_096
"""Live rows up to which a table is scanned exactly, unless codes are asked for: their vectors fit into a cache."""
_NARROWEST = 32
"""Vectors narrower than this are scanned exactly too: their codes would hardly be smaller than they are."""
_CANDIDATES, _CANDIDATES_A_RESULT = 128, 4
"""The best by the rescored distance are among so many of the nearest."""

Plan = Literal["gather", "scan", "codes"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries with one filter: float32[q, width], float64[q], the rows that pass and the codes of that moment."""

    queries: Float32
    squared_norms: Float64
    passing: Passing
    compressed: Compressed | None
    view: View


class CodedTable:
    """A `Table` but for its searches."""

    def __init__(
        self,
        width: int,
        policy: CompressPolicy,
        coder: Coder,
        stored: StoredVectors | None,
        *,
        composes_filters: bool = False,
    ) -> None:
        """`composes_filters`: whether the codes do so by themselves, wherever they are."""
        self.width = as_width(width)
        self._blocks = Blocks(width, stored)
        self._members = Membership(keeps_parts=composes_filters)
        self._writing = Lock()
        self._is_always_coded = policy.above == 0
        self._plans: Counter[Plan] = Counter()
        self.compression = Compression(self._blocks, self._members, policy, coder)

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

    def rescore(self, query: ArrayLike, rows: ArrayLike) -> Rescored:
        vectors, squared_norms = as_vectors(np.asarray(query)[None], self.width, name="query")
        numbers = as_rows(rows, self.row_count)
        order = np.argsort(numbers)
        scores = block_scores(vectors[0], float(squared_norms[0]) ** 0.5, self._blocks.view.vectors(numbers[order]))
        given = np.empty_like(order)
        given[order] = np.arange(len(order))
        return Rescored(scores.distances[given], scores.cosines[given])

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

    def _check_restorable(self) -> None:
        if self.row_count or not self._blocks.is_backed:
            raise ValueError("codes are restored into an empty table that reads its vectors from a store")

    def _restored(self, compressed: Compressed, count: int) -> range:
        self._blocks.skip(count)
        self.compression.adopt(compressed)
        return self._members.extend(count)

    def _by_filter(
        self,
        vectors: Float32,
        squared_norms: Float64,
        counts: Sequence[int],
        filters: Sequence[Filter | None],
        answer: Callable[[Asked, int], list[T]],
    ) -> list[T]:
        """One call of `answer` for the queries of each filter, and their answers in the order of the queries."""
        found: dict[int, T] = {}
        for each, members in queries_of(filters).items():
            compressed = self.compression.current  # before the filter, so that every row with a code is one it knows
            asked = Asked(
                vectors[members], squared_norms[members], self._members.passing(each), compressed, self._blocks.view
            )
            answers = answer(asked, max(counts[query] for query in members))
            found.update(zip(members, answers, strict=True))
        return [found[query] for query in range(len(filters))]

    def _plan(self, asked: Asked, k: int) -> tuple[Plan, Look | None]:
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
        return plan, look

    def _exact(self, asked: Asked, k: int, plan: Plan) -> list[Int64]:
        passing = asked.passing
        if plan == "gather":
            pieces = asked.view.gather(passing.rows())
        else:
            pieces = asked.view.scan(0, passing.row_count, passing.mask())
        return shortlist(asked.queries, asked.squared_norms, k, pieces)

    def _beside(self, asked: Asked, compressed: Compressed, k: int, found: list[Int64]) -> list[Int64]:
        """`found` by codes, and the `k` nearest of the rows that have no code yet."""
        rows, passing = compressed.codes.rows, asked.passing
        if rows >= passing.row_count:
            return found
        uncoded = asked.view.scan(rows, passing.row_count, passing.mask())
        newest = shortlist(asked.queries, asked.squared_norms, k, uncoded)
        return [np.concatenate(pair) for pair in zip(found, newest, strict=True)]


def queries_of(filters: Sequence[Filter | None]) -> dict[Filter | None, list[int]]:
    """The numbers of the queries with each filter."""
    groups: dict[Filter | None, list[int]] = {}
    for query, each in enumerate(filters):
        groups.setdefault(each, []).append(query)
    return groups


def candidate_count(k: int) -> int:
    """Of the nearest rows: the best `k` by the rescored distance are among so many."""
    return max(_CANDIDATES_A_RESULT * k, _CANDIDATES)


def codes_above(width: int, compress: Compress) -> int | None:
    """Live rows up to which a table of `width` components has no codes; None for one that never has."""
    if compress == "always":
        return 0
    return _CODES_ABOVE if as_width(width) >= _NARROWEST else None
