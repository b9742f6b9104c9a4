"""The filters of a batch on the device: a bitmap over the coded rows for each, uploaded once while it stays as it is.

`Membership` composes a filter from its row sets in microseconds and gives the same `Passing` until some row set
changes, so the bitmap is kept for as long as that object is.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from thread_kernels.device import Residence
from thread_kernels.interface import Int64
from thread_kernels.membership import Passing
from thread_kernels.selection import EVERY_ROW, Array, pack_mask, tile_count


class DeviceFilters:
    """Of one version of the codes: row i of the device is row `numbers[i]` of the table. The lock is held."""

    def __init__(self, residence: Residence, numbers: Int64, is_dense: bool) -> None:
        self._residence = residence
        self._numbers = numbers
        self._is_dense = is_dense
        self._bitmaps: WeakKeyDictionary[Passing, Array] = WeakKeyDictionary()

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
                bitmaps.append(self._bitmap(each))
            filter_of[query] = places[id(each)]
        words = 4 * tile_count(len(self._numbers))
        stacked = device.arrays.stack(bitmaps) if bitmaps else device.arrays.zeros((0, words), dtype=np.uint32)
        return stacked, device.upload(filter_of)

    def _bitmap(self, passing: Passing) -> Array:
        known = self._bitmaps.get(passing)
        if known is None:
            mask = passing.mask()
            assert mask is not None, "a filter that every row passes needs no bitmap"
            passes = mask[: len(self._numbers)] if self._is_dense else mask[self._numbers]
            known = self._bitmaps[passing] = self._residence.device.upload(pack_mask(passes))
        return known
