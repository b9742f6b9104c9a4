"""Which rows exist, which are removed, and the row sets over them: everything of a table but its vectors.

One lock covers the row count, the removed rows and every row set of the table, so a filter is composed against a
single state. Sets are Roaring bitmaps (Lemire et al., "Roaring bitmaps: implementation of an optimized software
library", 2018): composing takes microseconds, and the lock is held no longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import ArrayLike
from pyroaring import BitMap

from thread_kernels.inputs import as_rows
from thread_kernels.interface import Bool, Filter, Int64


@dataclass(frozen=True, slots=True)
class Passing:
    """The live rows that pass one filter, at one moment."""

    row_count: int
    """Rows ever appended at that moment."""
    live_count: int
    """Rows not removed at that moment."""
    bits: BitMap | None
    """None: every row."""

    def __len__(self) -> int:
        return self.row_count if self.bits is None else len(self.bits)

    def rows(self) -> Int64:
        """int64[n], ascending."""
        if self.bits is None:
            return np.arange(self.row_count, dtype=np.int64)
        return _to_rows(self.bits)

    def mask(self) -> Bool | None:
        """bool[row_count], true where a row passes; None when every row does."""
        if self.bits is None:
            return None
        few = 2 * len(self.bits) <= self.row_count
        mask = np.full(self.row_count, not few, dtype=np.bool_)
        mask[_to_rows(self.bits if few else self.bits.flip(0, self.row_count))] = few
        return mask


class BitmapRowSet:
    """A `RowSet` of the table that owns `membership`."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.bits = BitMap()

    def add(self, rows: ArrayLike) -> None:
        bitmap = self.membership.bitmap(rows)
        with self.membership.lock:
            self.bits |= bitmap

    def discard(self, rows: ArrayLike) -> None:
        bitmap = self.membership.bitmap(rows)
        with self.membership.lock:
            self.bits -= bitmap

    def __len__(self) -> int:
        return len(self.bits)

    def __contains__(self, row: object) -> bool:
        if not isinstance(row, int | np.integer):
            return False
        number = int(row)
        return 0 <= number < self.membership.row_count and number in self.bits


class Membership:
    """The rows of one table as sets."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.row_count = 0
        self._removed = BitMap()

    @property
    def live_count(self) -> int:
        with self.lock:
            return self.row_count - len(self._removed)

    def extend(self, count: int) -> range:
        """Let `count` more rows exist. Whoever calls has stored their vectors before."""
        with self.lock:
            first = self.row_count
            self.row_count = first + count
        return range(first, first + count)

    def remove(self, rows: ArrayLike) -> None:
        bitmap = self.bitmap(rows)
        with self.lock:
            self._removed |= bitmap

    def row_set(self) -> BitmapRowSet:
        return BitmapRowSet(self)

    def passing(self, filter: Filter | None) -> Passing:
        """ValueError when the filter holds a row set of another table."""
        with self.lock:
            live_count = self.row_count - len(self._removed)
            unions = [self._union(union) for union in filter.all_of] if filter else []
            if unions:
                bits = BitMap.intersection(*unions) - self._removed
            elif self._removed:
                bits = self._removed.flip(0, self.row_count)
            else:
                bits = None
            if bits is not None and len(bits) == self.row_count:
                bits = None  # a filter that every row passes costs nothing: the common case of one owner
            return Passing(self.row_count, live_count, bits)

    def bitmap(self, rows: ArrayLike) -> BitMap:
        """`rows` as a bitmap. ValueError for a row that was never appended.

        Needs no lock: the row count only grows, so what passes the check stays right.
        """
        if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start < rows.stop <= self.row_count:
            return BitMap(rows)
        return BitMap(as_rows(rows, self.row_count).astype(np.uint32))

    def _union(self, sets: tuple[object, ...]) -> BitMap:
        bitmaps = []
        for each in sets:
            if not isinstance(each, BitmapRowSet) or each.membership is not self:
                raise ValueError("a filter holds a row set of another table")
            bitmaps.append(each.bits)
        if len(bitmaps) == 1:
            return bitmaps[0]
        return BitMap.union(*bitmaps) if bitmaps else BitMap()


def _to_rows(bits: BitMap) -> Int64:
    return np.asarray(bits.to_array()).astype(np.int64)
