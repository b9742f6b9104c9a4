"""Exact nearest rows at the speed of a matrix product.

|q − x|² = |q|² + |x|² − 2 q·x is one product for a whole block of rows, but float32 cancellation spoils it where it
matters, for near rows. So the product only rules rows out: each row gets a lower and an upper bound of its true
distance, rows whose lower bound is above the k-th smallest upper bound are dropped, and the few that are left are
measured in float64. The answer is therefore exact: identical vectors are at distance 0, and ties are ordered by row
number.

The bounds: a float32 product of n terms, summed in any order, is off by at most n·u·|q||x| ≤ n·u·(|q|² + |x|²)/2 with
u = 2⁻²⁴ (Higham, "Accuracy and Stability of Numerical Algorithms", §3.1). All of them leave out |q|², which is the
same for every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from thread_kernels.interface import Bool, Float32, Float64, Hits, Int64

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)
_MEASURED_ROWS = 2_048
"""Rows measured at a time, so that many ties cost time but not memory."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a table, with what is known of each."""

    rows: Int64
    """int64[n]: row numbers"""
    vectors: Float32
    """float32[n, width]"""
    squares: Float32
    """float32[n]: squared Euclidean norms"""
    floors: Float32
    """float32[n]: `floors_of(squares, width)`"""
    mask: Bool | None = None
    """bool[n]: true for the rows to consider; None for all"""


def floors_of(squares: Float32, width: int) -> Float32:
    """|x|² less the error that a row of this norm can bring into a product: what a lower bound starts from."""
    return squares * np.float32(1 - _relative_error(width))


def nearest(
    queries: Float32, squared_norms: Float64, k: int, pieces: Iterable[Piece], take: Callable[[Int64], Float32]
) -> list[Hits]:
    """The `k` rows of `pieces` nearest to each of float32[q, width], whose squared norms are float64[q].

    `take` gives the vectors float32[n, width] of int64[n] rows, which ascend; NaN for a row that is gone.
    """
    listed = shortlist(queries, squared_norms, k, pieces)
    return [measured(query, rows, take, k) for query, rows in zip(queries, listed, strict=True)]


def shortlist(queries: Float32, squared_norms: Float64, k: int, pieces: Iterable[Piece]) -> list[Int64]:
    """For each query the rows, ascending, that may be among its `k` nearest: a little more than `k`."""
    pools = [_Pool(query.size, float(norm), k) for query, norm in zip(queries, squared_norms, strict=True)]
    factors = queries * np.float32(-2)
    for piece in pieces:
        # One query is a matrix-vector product, which BLAS runs faster than a matrix product of one row.
        products = (piece.vectors @ factors[0])[None] if len(factors) == 1 else factors @ piece.vectors.T
        products += piece.floors
        for pool, lower in zip(pools, products, strict=True):
            pool.offer(piece, lower)
    return [np.sort(pool.rows) for pool in pools]


def measured(query: Float32, rows: Int64, take: Callable[[Int64], Float32], k: int) -> Hits:
    """The `k` nearest of int64[n] `rows`, which ascend, measured in float64."""
    exact = query.astype(np.float64)
    distances = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _MEASURED_ROWS):
        part = slice(start, start + _MEASURED_ROWS)
        differences = take(rows[part]) - exact
        distances[part] = np.einsum("ij,ij->i", differences, differences)
    return _best(rows, distances, k)


def closest(query: Float32, rows: Int64, vectors: Float32, k: int) -> Hits:
    """The `k` nearest of int64[n] rows whose float32[n, width] vectors are at hand; as `nearest`, for few rows.

    The differences are rounded once each and their squares added up in float32: what that leaves within reach of the
    k-th is measured in float64.
    """
    differences = vectors - query
    rough = np.einsum("ij,ij->i", differences, differences)
    rough[np.isnan(rough)] = np.inf  # a row that is gone
    if len(rows) > k > 0:
        bound = float(np.partition(rough, k - 1)[k - 1])
        near = (rough <= bound * (1 + 4 * _relative_error(query.size)) + query.size * _SMALLEST).nonzero()[0]
        rows, vectors = rows[near], vectors[near]
    exact = vectors - query.astype(np.float64)
    return _best(rows, np.einsum("ij,ij->i", exact, exact).astype(np.float32), k)


def _best(rows: Int64, distances: Float32, k: int) -> Hits:
    """The `k` nearest, ties by row; the distance of a row that is gone is NaN."""
    order = np.lexsort((rows, distances))[:k]
    if np.isnan(distances).any():
        order = order[~np.isnan(distances[order])]
    return Hits(rows[order], distances[order])


class _Pool:
    """The rows that may still be among the `k` nearest of one query."""

    def __init__(self, width: int, squared_norm: float, k: int) -> None:
        self.rows: Int64 = np.empty(0, dtype=np.int64)
        self._lower: Float32 = np.empty(0, dtype=np.float32)
        self._upper: Float32 = np.empty(0, dtype=np.float32)
        self._bound = _LARGEST
        self._k = k
        self._row_spread = np.float32(2 * _relative_error(width))
        # Products of components too small for float32 vanish; the last term allows for all of them.
        self._query_spread = np.float32(2 * _relative_error(width) * squared_norm + width * _SMALLEST)

    def offer(self, piece: Piece, lower: Float32) -> None:
        """Take in the rows of `piece`, `lower` being the lower bound of each (overwritten)."""
        if not self._k:
            return
        if piece.mask is not None:
            np.putmask(lower, ~piece.mask, np.inf)
        picks = (lower <= self._bound).nonzero()[0]
        if not picks.size:
            return
        lower, squares = lower[picks], piece.squares[picks]
        self.rows = np.concatenate([self.rows, piece.rows[picks]])
        self._lower = np.concatenate([self._lower, lower])
        self._upper = np.concatenate([self._upper, lower + self._row_spread * squares + self._query_spread])
        if self.rows.size > self._k:
            self._narrow()

    def _narrow(self) -> None:
        kth = np.partition(self._lower, self._k - 1)[self._k - 1]
        self._bound = min(self._bound, float(self._upper[self._lower <= kth].max()))
        kept = (self._lower <= self._bound).nonzero()[0]
        self.rows, self._lower, self._upper = self.rows[kept], self._lower[kept], self._upper[kept]


def _relative_error(width: int) -> float:
    """Of a bound, relative to |q|² + |x|²: the product, a squared norm summed in float32, and some roundings."""
    return (2 * width + 16) * 2.0**-24
