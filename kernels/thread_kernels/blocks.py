"""The vectors of a CPU table: blocks of float32 rows that are filled once and never moved.

A reader that knows the row count may read every row below it without a lock, whatever the writer does meanwhile. A
block is reserved whole; the operating system gives memory for it only as rows are written, so a table of three rows
costs three.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thread_kernels.exact import Piece, floors_of
from thread_kernels.interface import Bool, Float32, Float64, Int64

BLOCK_ROWS = 16_384
_GATHERED_ROWS = 2_048
"""Rows copied at a time: few enough to stay in the cache and not to map new memory for every copy."""


class Blocks:
    """Rows 0, 1, 2, … of float32[width] and their norms."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._blocks: list[Piece] = []

    def write(self, first: int, vectors: Float32, squared_norms: Float64) -> None:
        """Store `vectors` from row `first` on, where no reader looks yet. For one writer at a time."""
        norms = np.sqrt(squared_norms).astype(np.float32)
        floors = floors_of(norms, self.width)
        done = 0
        while done < len(vectors):
            number, offset = divmod(first + done, BLOCK_ROWS)
            if number == len(self._blocks):
                self._blocks.append(_reserve(number, self.width))
            count = min(BLOCK_ROWS - offset, len(vectors) - done)
            block, source, target = self._blocks[number], slice(done, done + count), slice(offset, offset + count)
            block.vectors[target], block.norms[target], block.floors[target] = (
                vectors[source],
                norms[source],
                floors[source],
            )
            done += count

    def scan(self, start: int, stop: int, mask: Bool | None = None) -> Iterator[Piece]:
        """Rows `start` to `stop` where they lie, less those for which `mask` (bool, from row 0) is false."""
        while start < stop:
            number, offset = divmod(start, BLOCK_ROWS)
            count = min(stop - start, BLOCK_ROWS - offset)
            passing = None if mask is None else mask[start : start + count]
            if passing is None or passing.any():
                block, part = self._blocks[number], slice(offset, offset + count)
                yield Piece(block.rows[part], block.vectors[part], block.norms[part], block.floors[part], passing)
            start += count

    def gather(self, rows: Int64) -> Iterator[Piece]:
        """Copies of int64[n] `rows`, which ascend."""
        for start in range(0, len(rows), _GATHERED_ROWS):
            part = rows[start : start + _GATHERED_ROWS]
            norms = self.norms(part)
            yield Piece(part, self.vectors(part), norms, floors_of(norms, self.width))

    def vectors(self, rows: Int64) -> Float32:
        """float32[n, width] of int64[n] `rows`, which ascend."""
        out = np.empty((len(rows), self.width), dtype=np.float32)
        for block, places, offsets in self._located(rows):
            block.vectors.take(offsets, axis=0, out=out[places], mode="clip")
        return out

    def norms(self, rows: Int64) -> Float32:
        """float32[n] of int64[n] `rows`, which ascend."""
        out = np.empty(len(rows), dtype=np.float32)
        for block, places, offsets in self._located(rows):
            block.norms.take(offsets, out=out[places], mode="clip")
        return out

    def _located(self, rows: Int64) -> Iterator[tuple[Piece, slice, Int64]]:
        """Each block that holds some of `rows`, which part of `rows` that is, and where they lie in the block."""
        start = 0
        while start < len(rows):
            number = int(rows[start]) // BLOCK_ROWS
            first = number * BLOCK_ROWS
            stop = start + int(np.searchsorted(rows[start:], first + BLOCK_ROWS))
            yield self._blocks[number], slice(start, stop), rows[start:stop] - first
            start = stop


def _reserve(number: int, width: int) -> Piece:
    return Piece(
        rows=np.arange(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS),
        vectors=np.empty((BLOCK_ROWS, width), dtype=np.float32),
        norms=np.empty(BLOCK_ROWS, dtype=np.float32),
        floors=np.empty(BLOCK_ROWS, dtype=np.float32),
    )
