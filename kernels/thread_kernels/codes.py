"""The codes of a table's first rows, and how far down the order they give one has to look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import faiss
import numpy as np

from thread_kernels.codebook import Codebook
from thread_kernels.exact import Piece
from thread_kernels.interface import Bool, Float32, Int64

CALIBRATED_COUNTS = (10, 100, 1_000)
_RECALL = 0.985
"""The promise is 0.97; the rest is for the error of a small sample of queries."""
_DEEPEST = 8_192


@dataclass(frozen=True, slots=True)
class Codes:
    """Codes of rows 0 to `rows`. Immutable, so that searches need no lock: more rows make another object."""

    codebook: Codebook
    index: faiss.Index

    @classmethod
    def empty(cls, codebook: Codebook) -> Codes:
        return cls(codebook, faiss.clone_index(codebook.index))

    @property
    def rows(self) -> int:
        return int(self.index.ntotal)

    def extended(self, pieces: Iterable[Piece]) -> Codes:
        """These codes and those of `pieces`, the rows that follow. A copy, which costs less than the coding."""
        index = faiss.clone_index(self.index)
        for piece in pieces:
            index.add(self.codebook.rotate(piece.vectors))
        return Codes(self.codebook, index)

    def nearest(self, queries: Float32, count: int, mask: Bool | None) -> list[Int64]:
        """The `count` rows nearest to each of float32[q, width] by their codes, nearest first.

        Rows for which `mask` (bool[≥ rows]) is false are left out.
        """
        parameters = faiss.SearchParametersIVF()
        if mask is not None:
            bits = np.packbits(mask, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))  # FAISS keeps the pointers only
            parameters.sel = selector
        _, rows = self.index.search(self.codebook.rotate(queries), min(count, self.rows), params=parameters)
        return [each[each >= 0] for each in rows]


@dataclass(frozen=True, slots=True)
class Depth:
    """How many rows by code to measure exactly, so that recall@k is at least 0.97."""

    measured: tuple[tuple[int, int], ...]
    """(k, rows), ascending; a `k` for which no depth was enough, and all above it, are missing."""

    def of(self, k: int) -> int | None:
        """The depth for `k`, interpolated on logarithmic axes; None when the codes cannot answer that many."""
        if not self.measured or (k > self.measured[-1][0] and len(self.measured) < len(CALIBRATED_COUNTS)):
            return None
        counts, depths = np.log(np.array(self.measured, dtype=np.float64)).T
        largest = max(k, 1) / self.measured[-1][0]
        depth = np.exp(np.interp(np.log(max(k, 1)), counts, depths)) * max(largest, 1.0)
        return max(k, int(np.ceil(depth)))

    def or_deeper(self, other: Depth) -> Depth:
        """The deeper of two depths, for every count that both can answer."""
        both = zip(self.measured, other.measured, strict=False)
        return Depth(tuple((count, max(one, two)) for (count, one), (_, two) in both))


def calibrate(codes: Codes, queries: Float32, rows: Int64, truth: Sequence[Int64], mask: Bool | None) -> Depth:
    """The depth at which the mean recall over float32[q, width] `queries` reaches its target, for each calibrated
    count.

    The queries are int64[q] `rows` of the table. `truth` has the rows nearest to each, nearest first and without
    itself: as many as the largest count, or as there are.
    """
    if not len(queries):
        return Depth(())
    found = codes.nearest(queries, _DEEPEST + 1, mask)
    found = [each[each != own][:_DEEPEST] for each, own in zip(found, rows, strict=True)]
    measured: list[tuple[int, int]] = []
    for count in CALIBRATED_COUNTS:
        wanted = [each[:count] for each in truth]
        ranks = np.sort(
            np.concatenate([np.isin(each, near).nonzero()[0] for each, near in zip(found, wanted, strict=True)])
        )
        needed = int(np.ceil(_RECALL * sum(len(each) for each in wanted)))
        if not needed or len(ranks) < needed:
            break
        measured.append((count, int(ranks[needed - 1]) + 1))
    return Depth(tuple(measured))
