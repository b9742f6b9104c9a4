"""Where the rows of one engine table lie in the segments: what the engine reads its vectors through."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from thread_service.store.growing import GrowingInts
from thread_service.store.segments import Location, Segments

Ints = NDArray[np.int64]

_SLOT_BITS = 32
PACKED = f"(segment << {_SLOT_BITS} | slot)"
"""A place as one number, in SQL."""


def packed(locations: Sequence[Location]) -> Ints:
    """Places of locations, int64 [n]."""
    return np.array([location.segment << _SLOT_BITS | location.slot for location in locations], dtype=np.int64)


def unpacked(places: Ints) -> tuple[Ints, Ints]:
    """(segments, slots), int64 [n] each."""
    return places >> _SLOT_BITS, places & ((1 << _SLOT_BITS) - 1)


class Places:
    """A place for each row, eight bytes in one number, so that a reader never sees half of a move.

    One writer; `read` may be called from any thread.
    """

    def __init__(self, segments: Segments, width: int) -> None:
        self._segments = segments
        self._width = width
        self._places = GrowingInts(dtype=np.int64)

    def set(self, rows: Ints, places: Ints) -> None:
        self._places.set(rows, places)

    def get(self, rows: Ints) -> Ints:
        """-1 for a row without a place."""
        return self._places.get(rows)

    def read(self, rows: Ints) -> NDArray[np.float32]:
        """float32 [n, width] of int64 [n] rows, unchecked; NaN for a row that is gone for good.

        A segment may be removed between look-up and read: its rows have moved by then, so they are looked up again.
        """
        places = self._places.get(rows)
        segments, slots = unpacked(places)
        if len(rows) and segments[0] >= 0 and (segments == segments[0]).all():
            with contextlib.suppress(KeyError):
                return self._segments.read(int(segments[0]), slots)
        found = np.full((len(rows), self._width), np.nan, np.float32)
        wanted = np.flatnonzero(places >= 0)
        while len(wanted):
            lost = self._read_into(found, wanted, places)
            now = self._places.get(rows[lost])
            wanted = lost[now != places[lost]]
            places[lost] = now
        return found

    def _read_into(self, found: NDArray[np.float32], wanted: Ints, places: Ints) -> Ints:
        """Fill in the wanted entries; those whose segment is not there any more."""
        segments, slots = unpacked(places[wanted])
        lost = [np.empty(0, np.int64)]
        for segment in np.unique(segments).tolist():
            here = segments == segment
            try:
                found[wanted[here]] = self._segments.read(segment, slots[here])
            except KeyError:
                lost.append(wanted[here])
        return np.concatenate(lost)
