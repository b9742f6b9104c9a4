"""What lies on the device for each row of a table: its code in tiles, and the whole vector while there is room.

Both grow without moving for every batch: their room doubles, or grows by an eighth where that is all there is, and an
append writes only the tiles that changed. An older version of the codes reads the same memory up to its own row count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from thread_kernels import scan_lut, scan_wide
from thread_kernels.device import Lease, OutOfRoom, Residence
from thread_kernels.interface import Int64
from thread_kernels.scan_exact import PADDING, Packed, pack
from thread_kernels.selection import TILE_ROWS, Array, tile_count

_FEWEST = 2_048
"""Rows there is room for at least."""
_MOVED_ROWS, _MOVED_BYTES = 1 << 18, 64 << 20
"""Codes, and vectors, at a time when removed rows are dropped."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """How the codes of 128 rows lie in a tile: as `scan_lut` reads those of a byte, or `scan_wide` those of two."""

    dtype: type[np.uint8 | np.uint16]
    """Of the code of a sub-space."""
    subspaces: int
    """That there is room for, and the scan reads."""

    @classmethod
    def of(cls, subspaces: int, centroids: int) -> CodeLayout:
        """For codes of so many centroids in each of so many sub-spaces."""
        if centroids > scan_lut.CODES:
            return cls(np.uint16, subspaces)
        return cls(np.uint8, scan_lut.SUBSPACES)

    @property
    def code_bytes(self) -> int:
        """Of one row."""
        return self.subspaces * np.dtype(self.dtype).itemsize

    def room(self, residence: Residence, tiles: int) -> Array:
        return residence.room((tiles, TILE_ROWS * self.subspaces), self.dtype)

    def pack(self, codes: Array, arrays: Any) -> Array:
        scan = scan_wide if self.dtype is np.uint16 else scan_lut
        return scan.pack_codes(codes, arrays)

    def unpack(self, packed: Array, rows: int, subspaces: int, arrays: Any) -> Array:
        if self.dtype is np.uint16:
            return scan_wide.unpack_codes(packed, rows, self.subspaces, arrays)[:, :subspaces]
        return scan_lut.unpack_codes(packed, rows, subspaces, arrays)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Codes of rows 0 to `rows`, as a scan reads them. Immutable; one writer makes the next version."""

    residence: Residence
    layout: CodeLayout
    memory: Array
    """uint8[room in tiles, 8192], or uint16[room in tiles, 128 × subspaces]"""
    rows: int

    @classmethod
    def none(cls, residence: Residence, layout: CodeLayout) -> Tiles:
        return cls(residence, layout, layout.room(residence, 0), 0)

    @property
    def packed(self) -> Array:
        return self.memory[: tile_count(self.rows)]

    def with_room(self, rows: int) -> Tiles:
        """Room for so many rows. OutOfRoom when they do not fit."""
        tiles = tile_count(rows)
        if tiles <= len(self.memory):
            return self
        memory = _with_spare(
            lambda room: self.layout.room(self.residence, room),
            tiles,
            least=tile_count(_FEWEST),
            present=len(self.memory),
        )
        memory[: len(self.packed)] = self.packed
        return replace(self, memory=memory)

    def and_codes(self, codes: Array) -> Tiles:
        """With uint8 or uint16[n, subspaces] `codes` of the next rows."""
        stop = self.rows + len(codes)
        roomy = self.with_room(stop)
        first = self.rows // TILE_ROWS
        arrays = self.residence.device.arrays
        begun = self.rows - first * TILE_ROWS
        if begun:  # rows that share a tile with the first new one are written once more, as they are
            old = self.layout.unpack(self.memory[first : first + 1], begun, codes.shape[1], arrays)
            codes = arrays.concatenate([old, codes])
        roomy.memory[first : tile_count(stop)] = self.layout.pack(codes, arrays)
        return replace(roomy, rows=stop)

    def only(self, kept: Int64) -> Tiles:
        """Of rows int64[n] `kept`, which ascend. OutOfRoom when they do not fit beside these."""
        tiles = Tiles.none(self.residence, self.layout).with_room(len(kept))
        for start in range(0, self.rows, _MOVED_ROWS):
            stop = min(start + _MOVED_ROWS, self.rows)
            first, last = np.searchsorted(kept, (start, stop))
            places = self.residence.device.upload(kept[first:last] - start)
            tiles = tiles.and_codes(self.codes(start, stop, self.layout.subspaces)[places])
        return tiles

    def codes(self, start: int, stop: int, subspaces: int) -> Array:
        """uint8 or uint16[stop − start, subspaces]"""
        first = start // TILE_ROWS
        tiles = self.memory[first : tile_count(stop)]
        arrays = self.residence.device.arrays
        return self.layout.unpack(tiles, stop - first * TILE_ROWS, subspaces, arrays)[start - first * TILE_ROWS :]


@dataclass(frozen=True, slots=True)
class Vectors:
    """float16 vectors of rows 0 to `rows`. Immutable until its lease is over; one writer makes the next version."""

    residence: Residence
    lease: Lease
    """float16[room, width filled up] on the device, or in main memory, which it reads over the bus; scales and squares,
    float32[room] each, on the device"""
    rows: int

    @classmethod
    def none(cls, residence: Residence, width: int) -> Vectors:
        return cls._resident(residence, -(-width // PADDING) * PADDING, 0)

    @property
    def values(self) -> Array:
        return self.lease.parts[0]

    @property
    def is_resident(self) -> bool:
        """Whether `values` lie on the device, so that they can be scanned."""
        return self.lease.is_resident

    @property
    def packed(self) -> Packed:
        tensor = self.residence.device.tensor
        values, scales, squares = self.lease.parts
        there = tensor(values) if self.is_resident else torch.from_numpy(values)
        return Packed(there, tensor(scales), tensor(squares))

    def with_room(self, rows: int) -> Vectors:
        """Room for so many rows: on the device, else in main memory. OutOfRoom when they fit in neither."""
        if rows <= len(self.values):
            return self
        roomy = self._room(lambda make: _with_spare(make, rows, least=_FEWEST, present=len(self.values)))
        self._say_that_they_left(roomy)
        if self.rows:
            for new, old in zip(roomy.packed.parts, self.packed.parts, strict=True):
                new[: self.rows].copy_(old[: self.rows])
        return replace(roomy, rows=self.rows)

    def and_vectors(self, vectors: torch.Tensor) -> Vectors:
        """With float32[n, width] of the next rows."""
        stop = self.rows + len(vectors)
        roomy = self.with_room(stop)
        for memory, part in zip(roomy.packed.parts, pack(vectors, torch.float16).parts, strict=True):
            memory[self.rows : stop].copy_(part)
        return replace(roomy, rows=stop)

    def left(self) -> Vectors:
        """The same in main memory, with all the room there is: the lease of all versions that read them on the device
        ends. OutOfRoom when they do not fit there, and then they are gone."""
        values, scales, squares = self.lease.end()
        there = self.residence.pinned_room(values.shape, np.float16)
        left = replace(self, lease=self.residence.lease(there, scales, squares, is_resident=False))
        left.packed.values[: self.rows].copy_(self.residence.device.tensor(values)[: self.rows])
        self._say_that_they_left(left)
        return left

    def only(self, kept: Int64) -> Vectors:
        """Of rows int64[n] `kept`, which ascend.

        Where they do not fit beside these, rows move towards the front of the memory they are in: it is kept for rows
        to come, and the lease of all versions that read it ends.
        """
        fewer, present = self._beside(len(kept)), self.packed
        if fewer is None:
            is_resident = self.is_resident
            fewer = replace(self, lease=self.residence.lease(*self.lease.end(), is_resident=is_resident))
        step = max(1, _MOVED_BYTES // (2 * fewer.values.shape[1]))
        for start in range(0, len(kept), step):
            part = slice(start, min(start + step, len(kept)))
            places = torch.from_numpy(kept[part])
            # A copy of the rows that move: no row moves away from the front, so none is overwritten before its turn.
            for new, old in zip(fewer.packed.parts, present.parts, strict=True):
                new[part].copy_(old.index_select(0, places.to(old.device)))
        return replace(fewer, rows=len(kept))

    def _beside(self, rows: int) -> Vectors | None:
        """Room for so many rows beside these, on the device or where these lie; None where there is none."""
        for make in (self._resident,) if self.is_resident else (self._resident, self._in_main_memory):
            try:
                return make(self.residence, self.values.shape[1], rows)
            except OutOfRoom:
                continue
        return None

    def _room(self, sized: Callable[[Callable[[int], Vectors]], Vectors]) -> Vectors:
        """What `sized` makes by a call with so many rows: on the device, else in main memory."""
        width = self.values.shape[1]
        try:
            return sized(partial(self._resident, self.residence, width))
        except OutOfRoom:
            return sized(partial(self._in_main_memory, self.residence, width))

    @classmethod
    def _resident(cls, residence: Residence, width: int, rows: int) -> Vectors:
        values = residence.room((rows, width), np.float16)
        return cls(residence, residence.lease(values, *_norms(residence, rows), is_resident=True), 0)

    @classmethod
    def _in_main_memory(cls, residence: Residence, width: int, rows: int) -> Vectors:
        values = residence.pinned_room((rows, width), np.float16)
        return cls(residence, residence.lease(values, *_norms(residence, rows), is_resident=False), 0)

    def _say_that_they_left(self, roomy: Vectors) -> None:
        if self.is_resident and not roomy.is_resident:
            _log.warning(
                "the vectors of %d rows do not fit on the device and lie in main memory: large batches are scanned by "
                "codes, which takes up to 5 times as long, and near rows are read over the bus",
                len(roomy.values),
            )


def _norms(residence: Residence, rows: int) -> tuple[Array, Array]:
    """Room for scales and squares."""
    return residence.room((rows,), np.float32), residence.room((rows,), np.float32)


def _with_spare(make: Callable[[int], T], wanted: int, *, least: int, present: int) -> T:
    """What `make` makes with room for `wanted`, and for twice what is `present`; for an eighth more where that does not
    fit."""
    spare, little = max(wanted, least, 2 * present), max(wanted + wanted // 8, least)
    try:
        return make(spare)
    except OutOfRoom:
        if little >= spare:
            raise
        return make(little)
