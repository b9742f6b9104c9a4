"""The vectors of a CPU table: pieces of float32 rows that are filled once and never moved.

A reader takes a `View` and reads every row that existed then without a lock, whatever the writer does meanwhile: what
changes is which pieces there are, and that is one assignment. A table that has a store behind it forgets its first
pieces once they have codes, and reads those rows from there; removed rows are squeezed out of full pieces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from threading import Lock

import numpy as np

from thread_kernels.exact import Piece, floors_of
from thread_kernels.interface import Bool, Float32, Float64, Int64, StoredVectors

_SMALLEST_PIECE, _LARGEST_PIECE = 256, 65_536
_GATHERED_ROWS = 2_048
"""Rows copied at a time: few enough to stay in the cache and not to map new memory for every copy."""


class View:
    """The pieces of one moment. Rows below `kept_from` are in the store; `starts` has the first row of each piece."""

    __slots__ = ("_stored", "_width", "kept_from", "pieces", "starts")

    def __init__(
        self, width: int, stored: StoredVectors | None, kept_from: int = 0, pieces: tuple[Piece, ...] = ()
    ) -> None:
        self._width = width
        self._stored = stored
        self.kept_from = kept_from
        self.pieces = pieces
        self.starts = [int(piece.rows[0]) for piece in pieces]

    def but(self, kept_from: int, pieces: tuple[Piece, ...]) -> View:
        return View(self._width, self._stored, kept_from, pieces)

    def scan(self, start: int, stop: int, mask: Bool | None = None) -> Iterator[Piece]:
        """Rows `start` to `stop`, less those for which `mask` (bool, from row 0) is false and those that are gone."""
        if start < self.kept_from:
            end = min(stop, self.kept_from)
            rows = np.arange(start, end) if mask is None else start + mask[start:end].nonzero()[0]
            yield from self.gather(rows)
        for piece in self.pieces:
            first, last = np.searchsorted(piece.rows, (start, stop)).tolist()
            if first == last:
                continue
            part = slice(first, last)
            rows = piece.rows[part]
            passing = None
            if mask is not None:
                passing = mask[rows[0] : rows[0] + len(rows)] if _is_dense(rows) else mask[rows]
                if not passing.any():
                    continue
            yield Piece(rows, piece.vectors[part], piece.squares[part], piece.floors[part], passing)

    def gather(self, rows: Int64) -> Iterator[Piece]:
        """Copies of int64[n] `rows`, which ascend."""
        for start in range(0, len(rows), _GATHERED_ROWS):
            part = rows[start : start + _GATHERED_ROWS]
            vectors = self.vectors(part)
            squares = np.vecdot(vectors, vectors)
            yield Piece(part, vectors, squares, floors_of(squares, self._width))

    def vectors(self, rows: Int64) -> Float32:
        """float32[n, width] of int64[n] `rows`, which ascend; NaN for one that is gone."""
        done = int(np.searchsorted(rows, self.kept_from)) if self._stored is not None else 0
        if self._stored is not None and done == len(rows):
            return self._stored(rows)
        out = np.empty((len(rows), self._width), dtype=np.float32)
        if self._stored is not None and done:
            out[:done] = self._stored(rows[:done])
        while done < len(rows):
            number = bisect_right(self.starts, int(rows[done])) - 1
            stop = len(rows)
            if number + 1 < len(self.starts):
                stop = int(np.searchsorted(rows, self.starts[number + 1]))
            if number < 0:
                out[done:stop] = np.nan
            else:
                _take(self.pieces[number], rows[done:stop], out[done:stop])
            done = stop
        return out


class Blocks:
    """Rows 0, 1, 2, … of float32[width] and their squared norms; `stored` reads those that are not kept here."""

    def __init__(self, width: int, stored: StoredVectors | None = None) -> None:
        self.width = width
        self.is_backed = stored is not None
        self.view = View(width, stored)
        self._end = 0
        self._changing = Lock()

    @property
    def kept_bytes(self) -> int:
        written = sum(int(np.searchsorted(piece.rows, self._end)) for piece in self.view.pieces)
        return written * self.width * 4

    def skip(self, count: int) -> None:
        """Begin with `count` rows that are in the store only. For an empty table."""
        self.view, self._end = self.view.but(count, ()), count

    def write(self, vectors: Float32, squared_norms: Float64) -> None:
        """Add rows where no reader looks yet. For one writer at a time."""
        squares = squared_norms.astype(np.float32)
        floors = floors_of(squares, self.width)
        done = 0
        with self._changing:
            while done < len(vectors):
                piece, offset = self._open_piece(len(vectors) - done)
                count = min(len(piece.rows) - offset, len(vectors) - done)
                source, target = slice(done, done + count), slice(offset, offset + count)
                piece.vectors[target], piece.squares[target] = vectors[source], squares[source]
                piece.floors[target] = floors[source]
                done += count
                self._end += count

    def release(self, row: int) -> None:
        """Forget the pieces that hold only rows below `row`; without a store there is nothing to forget."""
        if not self.is_backed:
            return
        with self._changing:
            view = self.view
            gone = 0
            while gone < len(view.pieces) and min(int(view.pieces[gone].rows[-1]), self._end - 1) < row:
                gone += 1
            if gone:
                kept_from = min(int(view.pieces[gone - 1].rows[-1]) + 1, self._end)
                self.view = view.but(kept_from, view.pieces[gone:])

    def squeeze(self, removed: Int64) -> int:
        """Give back the memory of int64[n] removed rows, which ascend, in pieces that have no room for more.

        Returns the first row that was left as it is.
        """
        with self._changing:
            view = self.view
            kept: list[Piece] = []
            for piece in view.pieces:
                full = piece.rows[-1] < self._end
                live = np.isin(piece.rows, removed, assume_unique=True, invert=True) if full else None
                if live is None or live.all():
                    kept.append(piece)
                elif live.any():
                    kept.append(Piece(piece.rows[live], piece.vectors[live], piece.squares[live], piece.floors[live]))
            self.view = view.but(view.kept_from, tuple(kept))
            is_open = bool(view.pieces) and view.pieces[-1].rows[-1] >= self._end
            return int(view.pieces[-1].rows[0]) if is_open else self._end

    def _open_piece(self, wanted: int) -> tuple[Piece, int]:
        """The piece the next row goes into, and its place there. The lock is held."""
        view = self.view
        if view.pieces and view.pieces[-1].rows[-1] >= self._end:
            return view.pieces[-1], self._end - int(view.pieces[-1].rows[0])
        kept = sum(len(piece.rows) for piece in view.pieces)
        # As many as there are, so that pieces are few where rows are kept and small where they soon have codes.
        piece = _reserve(self._end, min(max(kept, wanted, _SMALLEST_PIECE), _LARGEST_PIECE), self.width)
        kept_from = view.kept_from if view.pieces or not self.is_backed else self._end
        self.view = view.but(kept_from, (*view.pieces, piece))
        return piece, 0


def _take(piece: Piece, rows: Int64, out: Float32) -> None:
    if rows[-1] <= piece.rows[-1] and _is_dense(piece.rows):
        piece.vectors.take(rows - piece.rows[0], axis=0, out=out, mode="clip")
        return
    places = np.minimum(np.searchsorted(piece.rows, rows), len(piece.rows) - 1)
    piece.vectors.take(places, axis=0, out=out)
    out[piece.rows[places] != rows] = np.nan


def _is_dense(rows: Int64) -> bool:
    return int(rows[-1]) - int(rows[0]) == len(rows) - 1


def _reserve(first: int, count: int, width: int) -> Piece:
    """Room for rows; the operating system gives memory for it only as they are written."""
    return Piece(
        rows=np.arange(first, first + count),
        vectors=np.empty((count, width), dtype=np.float32),
        squares=np.empty(count, dtype=np.float32),
        floors=np.empty(count, dtype=np.float32),
    )
