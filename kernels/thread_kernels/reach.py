"""How far a search by codes has to look, measured and not guessed.

Held-out rows of the table are the queries and exact search is the truth: how many rows by code must be measured, and
how many inverted lists visited, until the mean recall@k reaches its target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from thread_kernels.coding import AnyCodes
from thread_kernels.interface import Float32, Int64
from thread_kernels.membership import Passing

CALIBRATED_COUNTS = (10, 100, 1_000)
DEEPEST = 8_192
_FEWEST_QUERIES = 32
"""Fewer say nothing about a mean; the tables that have no more are small."""
_MOST_MISSED = 0.015
"""The promise is a recall of 0.97; the rest is for the error of a small sample of queries."""
_MISSED_BY_LISTS = 0.0075
"""The part of it that may be lost by not visiting a list; with a single list none is."""


@dataclass(frozen=True, slots=True)
class Look:
    """`depth`: rows by code to measure; `share`: the part of the lists with a passing row to visit."""

    depth: int
    share: float


@dataclass(frozen=True, slots=True)
class Reach:
    """How far to look so that recall@k is at least 0.97."""

    measured: tuple[tuple[int, int, float], ...]
    """(k, depth, share), ascending; a `k` for which no depth was enough, and all above it, are missing"""
    rows: int
    """Rows that passed when it was measured."""

    def of(self, k: int, passing: int) -> Look | None:
        """How far for the `k` nearest of `passing` rows, interpolated on logarithmic axes; None when the codes cannot
        answer that many."""
        look = _look(self.measured, k)
        if look is None or passing >= self.rows:
            return look
        # Of fewer rows the nearest are spread over as many lists as proportionally more are of many.
        wider = _look(self.measured, -(-k * self.rows // max(1, passing)))
        return Look(look.depth, 1.0 if wider is None else wider.share)

    def or_farther(self, other: Reach) -> Reach:
        """The farther of two, for every count that both can answer, and as many rows as `other` was measured with."""
        both = zip(self.measured, other.measured, strict=False)
        farther = ((k, max(one, two), max(part, share)) for (k, one, part), (_, two, share) in both)
        return Reach(tuple(farther), other.rows)


@lru_cache(maxsize=256)
def _look(measured: tuple[tuple[int, int, float], ...], k: int) -> Look | None:
    if not measured or (k > measured[-1][0] and len(measured) < len(CALIBRATED_COUNTS)):
        return None
    counts, depths, shares = (np.array(each, dtype=np.float64) for each in zip(*measured, strict=True))
    at, points = np.log(max(k, 1)), np.log(counts)
    beyond = max(k / counts[-1], 1.0)
    depth = np.exp(np.interp(at, points, np.log(depths))) * beyond
    share = np.interp(at, points, shares) * beyond
    return Look(max(k, int(np.ceil(depth))), min(1.0, float(share)))


def calibrate(
    codes: AnyCodes,
    queries: Float32,
    rows: Int64,
    truth: Sequence[Int64],
    passing: Passing,
    counts: Sequence[int] = CALIBRATED_COUNTS,
) -> Reach:
    """The reach at which the mean recall over float32[q, width] `queries` is enough, for each count, ascending.

    The queries are int64[q] `rows` of the table. `truth` has the passing rows nearest to each, nearest first and
    without itself: as many as the largest count, or as there are.
    """
    if len(queries) < _FEWEST_QUERIES:
        return Reach((), len(passing))
    found = codes.nearest(queries, DEEPEST + 1, passing, 1.0)
    found = [each[each != own][:DEEPEST] for each, own in zip(found, rows, strict=True)]
    places = _places(codes, queries, truth, passing)
    by_lists = _MISSED_BY_LISTS if places is not None else 0.0
    measured: list[tuple[int, int, float]] = []
    for count in counts:
        wanted = [each[:count] for each in truth]
        ranks = np.sort(
            np.concatenate([np.isin(each, near).nonzero()[0] for each, near in zip(found, wanted, strict=True)])
        )
        total = sum(len(each) for each in wanted)
        needed = int(np.ceil((1 - _MOST_MISSED + by_lists) * total))
        if not needed or len(ranks) < needed:
            break
        share = 1.0
        if places is not None:
            shares = np.sort(np.concatenate([each[:count] for each in places]))
            share = float(shares[int(np.ceil((1 - by_lists) * len(shares))) - 1])
        measured.append((count, int(ranks[needed - 1]) + 1, share))
    return Reach(tuple(measured), len(passing))


def _places(codes: AnyCodes, queries: Float32, truth: Sequence[Int64], passing: Passing) -> list[Float32] | None:
    """For each true row the share of the lists with a passing row that is visited up to its own; None with one list."""
    lists = codes.codebook.lists
    if lists == 1:
        return None
    order = codes.lists_near(np.ascontiguousarray(codes.codebook.rotate(queries)))
    counts = passing.spread(codes.list_of, lists)
    filled = np.ones(lists, dtype=np.bool_) if counts is None else counts > 0
    places = []
    for lists_of_query, rows in zip(order, truth, strict=True):
        visited = np.cumsum(filled[lists_of_query])
        place_of = np.empty(lists, dtype=np.float32)
        place_of[lists_of_query] = visited / max(1, visited[-1])
        coded = rows[rows < len(codes.list_of)]
        places.append(place_of[codes.list_of[coded]])
    return places
