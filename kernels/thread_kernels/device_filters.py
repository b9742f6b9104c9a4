"""The filters of a batch on the device: the row sets that they are made of lie there, and are composed there.

A bitmap over the coded rows stands for each row set, the removed rows among them. When a set has changed, the words
that differ go there and nothing else, and a filter is composed anew by an operation a set. So neither an upload nor
work in main memory is of the table's size, however often sets change.

`Membership` gives the same `Passing` until some row set changes, so what was composed is kept for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from weakref import WeakKeyDictionary

import numpy as np
from pyroaring import BitMap

from thread_kernels.device import OutOfRoom, Residence
from thread_kernels.interface import Int64
from thread_kernels.membership import BitmapRowSet, Parts, Passing, Primitive, to_rows
from thread_kernels.selection import EVERY_ROW, Array, tile_count, word_masks

_MOST_BYTES = 256 << 20
"""Of the row sets of one table: 200 of them at ten million rows. The least recently used leave first."""
_TILE_WORDS = 4


@dataclass(slots=True)
class _Resident:
    """A row set as the device has it."""

    memory: Array
    """uint32[words]: bit i of word w for the row at place 32 w + i. There may be room for more rows."""
    covered: int
    """Places that it tells of; the others are zero."""
    source: BitMap
    """What it was made of."""
    shown: BitMap
    """The rows whose bits are set, with those up to the last place that have none."""


class ResidentSets:
    """The row sets of one table, whose coded rows keep their places while there come more. The lock is held."""

    def __init__(self, residence: Residence) -> None:
        self._residence = residence
        self._kept: WeakKeyDictionary[BitmapRowSet, _Resident] = WeakKeyDictionary()

    def of(self, primitive: Primitive, numbers: Int64) -> Array:
        """uint32[4 × tiles], a bit for each of the rows int64[n] `numbers`, which ascend. Not to be written to, and
        overwritten when the set has changed."""
        known = self._kept.pop(primitive.owner, None)
        if known is not None and len(numbers) < known.covered:
            self._kept[primitive.owner] = known
            return self.passing(primitive.bits, numbers)  # for a search that began before the last rows had codes
        words = _TILE_WORDS * tile_count(len(numbers))
        if known is None or len(known.memory) < words:
            known = self._with_room(known, words)
        if known.source is not primitive.bits or known.covered < len(numbers):
            shown = _up_to_the_last(primitive.bits, numbers)
            self._flip(known.memory, known.shown ^ shown, numbers)
            known.covered, known.source, known.shown = len(numbers), primitive.bits, shown
        self._kept[primitive.owner] = known  # behind those that were used before it
        return known.memory[:words]

    def passing(self, bits: BitMap, numbers: Int64) -> Array:
        """As `of`, for rows of which nothing is kept."""
        zeros = self._residence.device.arrays.zeros(_TILE_WORDS * tile_count(len(numbers)), dtype=np.uint32)
        self._flip(zeros, _up_to_the_last(bits, numbers), numbers)
        return zeros

    def _flip(self, memory: Array, rows: BitMap, numbers: Int64) -> None:
        """Change the bits of `rows`, whose places are found in `numbers`; those without one are left out."""
        changed = word_masks(places_of(to_rows(rows), numbers))
        if changed.size:
            words, masks = self._residence.device.upload(changed)
            memory[words] ^= masks

    def _with_room(self, known: _Resident | None, words: int) -> _Resident:
        room = words if known is None else max(words, 2 * len(known.memory))
        while self._kept and 4 * (room + sum(len(each.memory) for each in self._kept.values())) > _MOST_BYTES:
            del self._kept[next(iter(self._kept))]
        try:
            memory = self._residence.room((room,), np.uint32, is_for_queries=True)
        except OutOfRoom:
            self._kept.clear()
            memory = self._residence.room((room,), np.uint32, is_for_queries=True)
        if known is None:
            return _Resident(memory, 0, BitMap(), BitMap())
        memory[: len(known.memory)] = known.memory
        return _Resident(memory, known.covered, known.source, known.shown)


class DeviceFilters:
    """Of one version of the codes: row i of the device is row `numbers[i]` of the table. The lock is held."""

    def __init__(self, residence: Residence, numbers: Int64, sets: ResidentSets) -> None:
        self.sets = sets
        self._residence = residence
        self._numbers = numbers
        self._composed: WeakKeyDictionary[Passing, Array] = WeakKeyDictionary()

    def of(self, passing: Sequence[Passing]) -> tuple[Array, Array]:
        """uint32[filters, 4 × tiles] and int32[queries], as a scan takes them, for the filter of each query."""
        device = self._residence.device
        places: dict[int, int] = {}
        bitmaps: list[Array] = []
        filter_of = np.full(len(passing), EVERY_ROW, dtype=np.int32)
        for query, each in enumerate(passing):
            if each.bits is None:
                continue
            if id(each) not in places:
                places[id(each)] = len(bitmaps)
                bitmaps.append(self._bitmap(each, each.bits))
            filter_of[query] = places[id(each)]
        words = _TILE_WORDS * tile_count(len(self._numbers))
        stacked = device.arrays.stack(bitmaps) if bitmaps else device.arrays.zeros((0, words), dtype=np.uint32)
        return stacked, device.upload(filter_of)

    def _bitmap(self, passing: Passing, bits: BitMap) -> Array:
        known = self._composed.get(passing)
        if known is None:
            parts = passing.parts
            known = self.sets.passing(bits, self._numbers) if parts is None else self._compose(parts)
            self._composed[passing] = known
        return known

    def _compose(self, parts: Parts) -> Array:
        composed = ~self.sets.of(parts.removed, self._numbers)
        for union in parts.unions:
            if union:
                composed &= reduce(or_, [self.sets.of(each, self._numbers) for each in union])
            else:
                composed[:] = 0
        return composed


def places_of(rows: Int64, numbers: Int64) -> Int64:
    """Where those of int64[n] `rows` lie that are among int64[m] `numbers`; both ascend."""
    last = int(numbers[-1]) if len(numbers) else -1
    rows = rows[: np.searchsorted(rows, last, side="right")]
    if last == len(numbers) - 1:
        return rows
    places: Int64 = np.searchsorted(numbers, rows)
    found: Int64 = places[numbers[places] == rows]
    return found


def _up_to_the_last(bits: BitMap, numbers: Int64) -> BitMap:
    """Those of `bits` that are not beyond the last of `numbers`."""
    return bits & BitMap(range(int(numbers[-1]) + 1)) if len(numbers) else BitMap()
