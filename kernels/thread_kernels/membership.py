"""Which rows exist, which are removed, and the row sets over them: everything of a table but its vectors.

One lock covers the row count, the removed rows and every row set of the table, so a filter is composed against a
single state. Sets are Roaring bitmaps (Lemire et al., "Roaring bitmaps: implementation of an optimized software
library", 2018): composing takes microseconds, and the lock is held no longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from pyroaring import BitMap

from thread_kernels.inputs import as_rows
from thread_kernels.interface import Bool, Filter, Int64

UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]

_REMEMBERED_FILTERS = 16


@dataclass(frozen=True, slots=True)
class Primitive:
    """A row set, and what it held at one moment. Nobody changes `bits` any more."""

    owner: BitmapRowSet
    bits: BitMap


@dataclass(frozen=True, slots=True)
class Parts:
    """What a filter was composed of: a row passes that every union holds and that is not removed."""

    unions: tuple[tuple[Primitive, ...], ...]
    removed: Primitive


class Passing:
    """The live rows that pass one filter, at one moment; what searches make of it is made once."""

    def __init__(self, row_count: int, live_count: int, bits: BitMap | None, parts: Parts | None = None) -> None:
        self.row_count = row_count
        """Rows ever appended at that moment."""
        self.live_count = live_count
        """Rows not removed at that moment."""
        self.bits = bits
        """None: every row."""
        self.parts = parts
        """What `bits` was composed of, where somebody composes it again elsewhere."""
        self._packed: UInt8 | None = None
        self._spread: tuple[object, Int64] | None = None

    def __len__(self) -> int:
        return self.row_count if self.bits is None else len(self.bits)

    def rows(self) -> Int64:
        """int64[n], ascending."""
        if self.bits is None:
            return np.arange(self.row_count, dtype=np.int64)
        return to_rows(self.bits)

    def mask(self) -> Bool | None:
        """bool[row_count], true where a row passes; None when every row does."""
        if self.bits is None:
            return None
        few = 2 * len(self.bits) <= self.row_count
        mask = np.full(self.row_count, not few, dtype=np.bool_)
        mask[to_rows(self.bits if few else self.bits.flip(0, self.row_count))] = few
        return mask

    def only(self, rows: Int64) -> Passing:
        """Of these, int64[n] `rows`."""
        return Passing(self.row_count, self.live_count, BitMap(rows.astype(np.uint32)))

    def packed(self) -> UInt8 | None:
        """`mask` with eight rows a byte, the first in the lowest bit."""
        if self._packed is None and (mask := self.mask()) is not None:
            self._packed = np.packbits(mask, bitorder="little")
        return self._packed

    def spread(self, list_of: UInt16, lists: int) -> Int64 | None:
        """How many passing rows are in each of `lists` lists, `list_of` being the list of rows 0, 1, …; None when every
        row passes."""
        if self.bits is None:
            return None
        known = self._spread
        if known is None or known[0] is not list_of:
            rows = self.rows()
            counts = np.bincount(list_of[rows[: np.searchsorted(rows, len(list_of))]], minlength=lists)
            self._spread = known = (list_of, counts)
        return known[1]


class BitmapRowSet:
    """A `RowSet` of the table that owns `membership`."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.bits = BitMap()
        self._is_shared = False

    def add(self, rows: ArrayLike) -> None:
        bitmap = self.membership.bitmap(rows)
        with self.membership.lock:
            self._keep_what_is_shared()
            self.bits |= bitmap
            self.membership.forget()

    def discard(self, rows: ArrayLike) -> None:
        bitmap = self.membership.bitmap(rows)
        with self.membership.lock:
            self._keep_what_is_shared()
            self.bits -= bitmap
            self.membership.forget()

    def primitive(self) -> Primitive:
        """The set as it is now; the next change is made to a copy. The lock is held."""
        self._is_shared = True
        return Primitive(self, self.bits)

    def _keep_what_is_shared(self) -> None:
        if self._is_shared:
            self.bits = self.bits.copy()
            self._is_shared = False

    def __len__(self) -> int:
        return len(self.bits)

    def __contains__(self, row: object) -> bool:
        if not isinstance(row, int | np.integer):
            return False
        number = int(row)
        return 0 <= number < self.membership.row_count and number in self.bits


class Membership:
    """The rows of one table as sets. With `keeps_parts`, filters say what they were composed of."""

    def __init__(self, *, keeps_parts: bool = False) -> None:
        self.lock = Lock()
        self.row_count = 0
        self._keeps_parts = keeps_parts
        self._removed = BitmapRowSet(self)
        self._squeezed = BitMap()
        self._known: OrderedDict[Filter | None, Passing] = OrderedDict()

    @property
    def live_count(self) -> int:
        with self.lock:
            return self.row_count - len(self._removed.bits)

    def extend(self, count: int) -> range:
        """Let `count` more rows exist. Whoever calls has stored their vectors before."""
        with self.lock:
            first = self.row_count
            self.row_count = first + count
            self.forget()
        return range(first, first + count)

    def remove(self, rows: ArrayLike) -> None:
        self._removed.add(rows)

    @property
    def dead_count(self) -> int:
        """Removed rows that still take memory."""
        with self.lock:
            return len(self._removed.bits) - len(self._squeezed)

    def removed(self) -> Int64:
        """int64[n], ascending: rows that were removed."""
        with self.lock:
            return to_rows(self._removed.bits)

    def squeezed(self, rows: Int64) -> None:
        """The memory of these removed rows was given back."""
        with self.lock:
            self._squeezed |= BitMap(rows.astype(np.uint32))

    def row_set(self) -> BitmapRowSet:
        return BitmapRowSet(self)

    def passing(self, filter: Filter | None) -> Passing:
        """ValueError when the filter holds a row set of another table."""
        with self.lock:
            known = self._known.get(filter)
            if known is None:
                known = self._known[filter] = self._composed(filter)
                if len(self._known) > _REMEMBERED_FILTERS:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(filter)
            return known

    def forget(self) -> None:
        """Compose every filter anew: something changed. The lock is held."""
        self._known.clear()

    def _composed(self, filter: Filter | None) -> Passing:
        removed = self._removed.bits
        live_count = self.row_count - len(removed)
        unions = [self._checked(union) for union in filter.all_of] if filter else []
        if unions:
            bits = BitMap.intersection(*map(_union, unions)) - removed
        elif removed:
            bits = removed.flip(0, self.row_count)
        else:
            bits = None
        if bits is None or len(bits) == self.row_count:  # a filter that every row passes costs nothing: one owner
            return Passing(self.row_count, live_count, None)
        parts = None
        if self._keeps_parts:
            kept = tuple(tuple(each.primitive() for each in union) for union in unions)
            parts = Parts(kept, self._removed.primitive())
        return Passing(self.row_count, live_count, bits, parts)

    def bitmap(self, rows: ArrayLike) -> BitMap:
        """`rows` as a bitmap. ValueError for a row that was never appended.

        Needs no lock: the row count only grows, so what passes the check stays right.
        """
        if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start < rows.stop <= self.row_count:
            return BitMap(rows)
        return BitMap(as_rows(rows, self.row_count).astype(np.uint32))

    def _checked(self, sets: tuple[object, ...]) -> list[BitmapRowSet]:
        checked = []
        for each in sets:
            if not isinstance(each, BitmapRowSet) or each.membership is not self:
                raise ValueError("a filter holds a row set of another table")
            checked.append(each)
        return checked


def to_rows(bits: BitMap) -> Int64:
    """int64[n], ascending."""
    return np.asarray(bits.to_array()).astype(np.int64)


def _union(sets: Sequence[BitmapRowSet]) -> BitMap:
    if len(sets) == 1:
        return sets[0].bits
    return BitMap.union(*(each.bits for each in sets)) if sets else BitMap()
