"""The codes of a table's rows, and the search that orders rows by them.

Two parts share one codebook: `base` has most of the rows; `fresh`, a single list, those that came since, few enough to
be copied when more come. Both are immutable, so that searches need no lock: more rows make another `Codes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from thread_kernels.codebook import Codebook
from thread_kernels.exact import Piece
from thread_kernels.interface import Float32, Int64
from thread_kernels.loaded_faiss import faiss, use_threads
from thread_kernels.membership import Passing, UInt8

_QUERIES_IN_PARALLEL = 8

UInt16 = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Codes:
    """Codes of the rows below `rows`, less those that were removed when they were made."""

    codebook: Codebook
    base: faiss.Index
    fresh: faiss.Index
    base_rows: int
    """Rows below this have their codes in `base`, the others in `fresh`."""
    rows: int
    list_of: UInt16
    """uint16[n]: the inverted list of row 0, 1, … of `base`; anything for a row without a code. Empty with one list."""
    list_sizes: Int64
    """int64[lists]: codes in each inverted list of `base`"""

    @classmethod
    def empty(cls, codebook: Codebook) -> Codes:
        return cls.of(codebook, faiss.clone_index(codebook.index), codebook.flat_index(), 0, 0)

    @classmethod
    def of(cls, codebook: Codebook, base: faiss.Index, fresh: faiss.Index, base_rows: int, rows: int) -> Codes:
        sizes = np.array([base.invlists.list_size(number) for number in range(base.nlist)], dtype=np.int64)
        return cls(codebook, base, fresh, base_rows, rows, _list_of(base), sizes)

    @property
    def coded_rows(self) -> int:
        return int(self.base.ntotal + self.fresh.ntotal)

    @property
    def fresh_rows(self) -> int:
        return int(self.fresh.ntotal)

    def all_rows(self) -> Int64:
        """int64[coded_rows], ascending."""
        return np.sort(np.concatenate([*ids_of(self.base), *ids_of(self.fresh)]))

    @property
    def is_whole(self) -> bool:
        return True

    def completed(self, gather: Callable[[Int64], Iterable[Piece]]) -> Codes:
        return self

    def grown(self, pieces: Iterable[Piece], stop: int) -> Codes:
        """With the codes of `pieces` beside the old ones; rows below `stop` are covered then."""
        fresh = faiss.clone_index(self.fresh)
        _add(self.codebook, fresh, pieces)
        return replace(self, fresh=fresh, rows=stop)

    def merged(self, pieces: Iterable[Piece], stop: int) -> Codes:
        """One part again: `pieces` are the rows of `fresh` and those to come, up to `stop`."""
        base = faiss.clone_index(self.base)
        _add(self.codebook, base, pieces)
        return Codes.of(self.codebook, base, self.codebook.flat_index(), stop, stop)

    def without(self, rows: Int64) -> Codes:
        """Less the codes of int64[n] `rows`."""
        if not len(rows):
            return self
        bits = np.zeros(int(rows[-1]) + 1, dtype=np.bool_)
        bits[rows] = True
        packed = np.packbits(bits, bitorder="little")
        selector = faiss.IDSelectorBitmap(len(packed), faiss.swig_ptr(packed))  # FAISS keeps the pointer only
        parts = [faiss.clone_index(part) for part in (self.base, self.fresh)]
        for part in parts:
            part.remove_ids(selector)
        return Codes.of(self.codebook, parts[0], parts[1], self.base_rows, self.rows)

    def lists_near(self, rotated: Float32) -> Int64:
        """int64[q, lists]: the inverted lists, nearest to each of float32[q, dimensions] first."""
        lists = self.codebook.lists
        if lists == 1:
            return np.zeros((len(rotated), 1), dtype=np.int64)
        order: Int64 = self.base.quantizer.search(rotated, lists)[1]
        return order

    def nearest(self, queries: Float32, count: int, passing: Passing, share: float) -> list[Int64]:
        """The `count` rows that pass nearest to each of float32[q, width] by their codes, nearest first.

        `share`: the part, above 0 to 1, of the lists with a passing row that is visited.
        """
        rotated = np.ascontiguousarray(self.codebook.rotate(queries))
        packed = passing.packed()
        visited = self._visited(rotated, passing, share)
        found = _search(self.base, rotated, count, visited, packed)
        if not self.fresh.ntotal:
            return [rows[rows >= 0] for rows in found[1]]
        more = _search(self.fresh, rotated, count, np.zeros((len(rotated), 1), dtype=np.int64), packed)
        distances, rows = np.hstack([found[0], more[0]]), np.hstack([found[1], more[1]])
        order = np.argsort(distances, axis=1, kind="stable")[:, :count]
        return [each[each >= 0] for each in np.take_along_axis(rows, order, axis=1)]

    def _visited(self, rotated: Float32, passing: Passing, share: float) -> Int64:
        order = self.lists_near(rotated)
        lists = order.shape[1]
        counts = passing.spread(self.list_of, lists) if lists > 1 else None
        if counts is None:
            return np.ascontiguousarray(order[:, : int(np.ceil(share * lists))])
        filled = counts > 0
        wanted = int(np.ceil(share * np.count_nonzero(filled)))
        # Where the lists without a passing row are left out, every query has the same number of lists left.
        kept = order[filled[order]].reshape(len(order), -1)
        return np.ascontiguousarray(kept[:, :wanted])


def _search(
    index: faiss.Index, rotated: Float32, count: int, visited: Int64, packed: UInt8 | None
) -> tuple[Float32, Int64]:
    """Distances float32[q, count] by code and rows int64[q, count], ascending; −1 where there are no more."""
    queries = len(rotated)
    count = max(1, min(count, int(index.ntotal)))
    distances = np.full((queries, count), np.inf, dtype=np.float32)
    rows = np.full((queries, count), -1, dtype=np.int64)
    if not visited.shape[1] or not queries:
        return distances, rows
    parameters = faiss.SearchParametersIVF(nprobe=visited.shape[1])
    if packed is not None:
        selector = faiss.IDSelectorBitmap(len(packed), faiss.swig_ptr(packed))  # FAISS keeps the pointers only
        parameters.sel = selector
    use_threads(queries >= _QUERIES_IN_PARALLEL)
    unused = np.zeros(visited.shape, dtype=np.float32)  # distances to the lists' centroids; codes are not relative
    index.search_preassigned_c(
        queries,
        faiss.swig_ptr(rotated),
        count,
        faiss.swig_ptr(visited),
        faiss.swig_ptr(unused),
        faiss.swig_ptr(distances),
        faiss.swig_ptr(rows),
        False,
        parameters,
    )
    return distances, rows


def _add(codebook: Codebook, index: faiss.Index, pieces: Iterable[Piece]) -> None:
    use_threads(True)
    for piece in pieces:
        rows, vectors = piece.rows, piece.vectors
        if piece.mask is not None:
            rows, vectors = rows[piece.mask], vectors[piece.mask]
        known = ~np.isnan(piece.squares if piece.mask is None else piece.squares[piece.mask])
        if not known.all():
            rows, vectors = rows[known], vectors[known]
        if len(rows):
            index.add_with_ids(np.ascontiguousarray(codebook.rotate(vectors)), rows)


def ids_of(index: faiss.Index) -> list[Int64]:
    """The row numbers in each inverted list: views of what FAISS holds, as long as `index` lives."""
    return [
        faiss.rev_swig_ptr(index.invlists.get_ids(number), size) if size else np.empty(0, dtype=np.int64)
        for number in range(index.nlist)
        for size in (index.invlists.list_size(number),)
    ]


def _list_of(index: faiss.Index) -> UInt16:
    if index.nlist == 1:
        return np.empty(0, dtype=np.uint16)
    lists = ids_of(index)
    list_of = np.zeros(1 + max((int(rows.max()) for rows in lists if len(rows)), default=-1), dtype=np.uint16)
    for number, rows in enumerate(lists):
        list_of[rows] = number
    return list_of
