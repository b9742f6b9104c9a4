"""The codes of a table's rows on the device, and the search that orders rows by them: one launch for a whole batch.

Immutable, so that a search keeps the version it began with; the memory is shared between versions (`device_rows`). The
one thing an older version may lose is its vectors, without which the answers are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from thread_kernels import rescore, scan_exact, scan_lut, scan_wide
from thread_kernels.device import Device, OutOfRoom, Residence
from thread_kernels.device_codebook import DeviceCodebook, rows_uploaded
from thread_kernels.device_filters import DeviceFilters, ResidentSets, places_of
from thread_kernels.device_rows import Tiles, Vectors
from thread_kernels.exact import Piece
from thread_kernels.interface import Float32, Int64
from thread_kernels.membership import Passing
from thread_kernels.rescore import NO_ROW
from thread_kernels.selection import Array, Best, best_rows

_MOST_GATHERED = 1 << 22
"""Distances of a gathering: 16 MB."""
_ONE_LIST = np.empty(0, dtype=np.uint16)

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceCodes:
    """Codes of the rows below `rows`, less those that were removed when they were made."""

    codebook: DeviceCodebook
    tiles: Tiles
    vectors: Vectors | None
    """Of the same rows; None where there is no room for them, or no scan that reads them."""
    numbers: Int64
    """int64[n], ascending: the rows of the table that have a code"""
    rows: int
    filters: DeviceFilters
    is_complete: bool
    """Whether vectors that are missing were so when this was made for want of room only."""

    @classmethod
    def of(
        cls,
        codebook: DeviceCodebook,
        tiles: Tiles,
        vectors: Vectors | None,
        numbers: Int64,
        rows: int,
        *,
        sets: ResidentSets | None = None,
        is_complete: bool = True,
    ) -> DeviceCodes:
        """`sets`: those of a version whose rows all lie where they did."""
        filters = DeviceFilters(codebook.residence, numbers, sets or ResidentSets(codebook.residence))
        return cls(codebook, tiles, vectors, numbers, rows, filters, is_complete)

    @classmethod
    def empty(cls, codebook: DeviceCodebook, with_vectors: bool) -> DeviceCodes:
        residence = codebook.residence
        vectors = Vectors.none(residence, codebook.width) if with_vectors else None
        return cls.of(codebook, Tiles.none(residence, codebook.layout), vectors, np.empty(0, dtype=np.int64), 0)

    @property
    def is_whole(self) -> bool:
        """False also when codes, of this table or another, have taken the place of its vectors."""
        return self.is_complete and (self.vectors is None or not self.vectors.lease.is_over)

    @property
    def base_rows(self) -> int:
        return self.rows

    @property
    def fresh_rows(self) -> int:
        return 0

    @property
    def coded_rows(self) -> int:
        return len(self.numbers)

    @property
    def list_of(self) -> npt.NDArray[np.uint16]:
        return _ONE_LIST

    @property
    def list_sizes(self) -> Int64:
        return np.array([len(self.numbers)])

    def completed(self, gather: Callable[[Int64], Iterable[Piece]]) -> DeviceCodes:
        vectors = _while_room(lambda: self._gathered(gather), len(self.numbers))
        return replace(self, vectors=vectors, is_complete=True)

    def _gathered(self, gather: Callable[[Int64], Iterable[Piece]]) -> Vectors:
        """The vectors of all rows that have a code; those that are gone count as no row."""
        with self._residence.using():
            vectors = Vectors.none(self._residence, self.codebook.width).with_room(len(self.numbers))
        parts = ((piece.rows, piece.vectors) for piece in gather(self.numbers))
        for _, found in _batches(parts, self.codebook.width):
            with self._residence.using() as device:
                vectors = vectors.and_vectors(device.tensor(device.upload(found)))
        return vectors

    def grown(self, pieces: Iterable[Piece], stop: int) -> DeviceCodes:
        """With the codes of `pieces`, which are the rows from `rows` on; rows below `stop` are covered then.

        OutOfRoom when not even the codes fit.
        """
        numbers = [self.numbers]
        room = len(self.numbers) + stop - self.rows
        with self._residence.using():
            tiles, present = self._codes_first(lambda: self.tiles.with_room(room), self._vectors)
            vectors = self._while_room(lambda: present and present.with_room(room), room)
        for rows, found in _batches(_there(pieces), self.codebook.width):
            with self._residence.using():
                tiles, vectors = self._added(tiles, vectors, found)
            numbers.append(rows)
        sets, is_complete = self.filters.sets, self.is_complete
        return DeviceCodes.of(
            self.codebook, tiles, vectors, np.concatenate(numbers), stop, sets=sets, is_complete=is_complete
        )

    def _added(self, tiles: Tiles, vectors: Vectors | None, found: Float32) -> tuple[Tiles, Vectors | None]:
        """With the codes and vectors of float32[n, width]."""
        device = self._residence.device

        def coded() -> tuple[Tiles, torch.Tensor]:
            uploaded = device.tensor(device.upload(found))
            return tiles.and_codes(self.codebook.encode(uploaded)), uploaded

        (more, uploaded), present = self._codes_first(coded, vectors)
        return more, self._while_room(lambda: present and present.and_vectors(uploaded), more.rows)

    merged = grown

    def without(self, rows: Int64) -> DeviceCodes:
        """Less the codes of int64[n] `rows`, which ascend."""
        kept = np.isin(self.numbers, rows, assume_unique=True, invert=True)
        if kept.all():
            return self
        places = kept.nonzero()[0]
        with self._residence.using():
            tiles, present = self._codes_first(lambda: self.tiles.only(places), self._vectors)
            vectors = self._while_room(lambda: present and present.only(places), len(places))
        return DeviceCodes.of(
            self.codebook, tiles, vectors, self.numbers[kept], self.rows, is_complete=self.is_complete
        )

    def _codes_first(self, make: Callable[[], T], vectors: Vectors | None) -> tuple[T, Vectors | None]:
        """What `make` makes, and these `vectors`. Where there is no room for it, vectors leave the device: these for
        main memory, then those of others. OutOfRoom when none are left there."""
        while True:
            try:
                with self._residence.using():  # so that it is OutOfRoom, whatever the libraries call it
                    return make(), vectors
            except OutOfRoom:
                lease = self._residence.largest_lease()
                if lease is None:
                    raise
            # Not before the error is gone, which holds on to what was made before it.
            if vectors is not None and vectors.is_resident:
                vectors = self._while_room(vectors.left, vectors.rows)
            elif self._vectors is not None and self._vectors.is_resident:
                self._vectors.lease.end()
            else:
                _log.warning("%d vectors leave the device, where there is no other room for codes", len(lease.end()[0]))

    def _while_room(self, make: Callable[[], Vectors | None], rows: int) -> Vectors | None:
        def made() -> Vectors | None:
            with self._residence.using():
                return make()

        return _while_room(made, rows)

    def lists_near(self, rotated: Float32) -> Int64:
        return np.zeros((len(rotated), 1), dtype=np.int64)

    def nearest(self, queries: Float32, count: int, passing: Passing, share: float) -> list[Int64]:
        counts = [count] * len(queries)
        return self._listed(queries, counts, [passing] * len(queries), self._by_code, counts, 1)

    def search(
        self,
        queries: Float32,
        depths: Sequence[int],
        wanted: Sequence[int],
        passing: Sequence[Passing],
        blocks: int,
        row_seconds: float,
    ) -> list[Int64]:
        """For each of float32[q, width] rows that pass its filter, in no order: those among the first of its depth that
        may be among the nearest that are wanted, by the distance summed over so many `blocks`; all of its depth where
        ruling rows out costs more than measuring them does, at `row_seconds` each.

        First by their codes, or by the vectors where they are there and that is faster for so many queries.
        """
        best_of = self._by_code
        with self._residence.using() as device:  # to the end, so that no vectors move meanwhile
            vectors = self._vectors
            if vectors is not None:
                costs = device.costs(self.codebook.width, self.codebook.centroid_count)
                if vectors.is_resident and costs.product_from is not None and len(queries) >= costs.product_from:
                    best_of = self._by_vector
                spared = sum(depth - least for depth, least in zip(depths, wanted, strict=True))
                if spared * row_seconds <= costs.ruling_out:
                    wanted = depths
            return self._listed(queries, depths, passing, best_of, wanted, blocks)

    def gather_up_to(self, queries: int) -> int:
        """Passing rows up to which it is cheaper to measure just those for so many queries than to scan all codes."""
        with self._residence.using() as device:
            vectors = self._vectors
            if vectors is None or not vectors.is_resident:
                return 0
            costs = device.costs(self.codebook.width, self.codebook.centroid_count)
            rows = costs.gather_up_to(len(self.numbers), queries)
        return min(rows, _MOST_GATHERED // queries)

    def gather(self, queries: Float32, wanted: int, rows: Int64, blocks: int) -> list[Int64]:
        """For each of float32[q, width] those of int64[n] `rows`, which ascend, that may be among its `wanted` nearest.

        Only for rows with codes, and with the vectors on the device. OutOfRoom when they have moved meanwhile.
        """
        places = places_of(rows, self.numbers)
        if not len(places) or not wanted:
            return [rows[:0]] * len(queries)
        with self._residence.using() as device:
            if self._vectors is None:
                raise OutOfRoom("the vectors have moved")
            counts = device.tensor(device.upload(np.full(len(queries), wanted)))
            listed = device.tensor(device.upload(places[None]))
            found = self._nearest(device.tensor(device.upload(queries)), listed, counts, blocks)
            near, numbers = (device.download(device.array(each)) for each in found)
        return [self.numbers[row[:most]] for row, most in zip(near, numbers, strict=True)]

    def _listed(
        self,
        queries: Float32,
        depths: Sequence[int],
        passing: Sequence[Passing],
        best_of: Callable[[Device, Array, int, Sequence[Passing]], Best],
        wanted: Sequence[int],
        blocks: int,
    ) -> list[Int64]:
        keep = min(max(depths, default=0), len(self.numbers))
        if not keep:
            return [np.empty(0, dtype=np.int64)] * len(queries)
        with self._residence.using() as device:
            uploaded = device.upload(queries)
            best = best_of(device, uploaded, keep, passing)
            listed, found = best.rows, best.counts
            if self._vectors is not None and any(one < depth for one, depth in zip(wanted, depths, strict=True)):
                limits = device.tensor(device.upload(np.array([depths, wanted])))
                rows = device.tensor(listed)
                # What is asked beside it changes no query's answer.
                rows = rows.masked_fill(torch.arange(keep, device=rows.device) >= limits[0][:, None], NO_ROW)
                near, count = self._nearest(device.tensor(uploaded), rows, limits[1], blocks)
                listed, found = device.array(near), device.array(count)
            places, numbers = device.download(listed), device.download(found)
        return [self.numbers[row[: min(each, depth)]] for row, each, depth in zip(places, numbers, depths, strict=True)]

    def _nearest(
        self, queries: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, blocks: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of int64[q or 1, r] places that may be among the int64[q] nearest: int64[q, most], how many count."""
        assert self._vectors is not None
        table = self._vectors.packed
        distances = self._residence.device.block_distances(queries, table, rows, blocks)
        errors = rescore.errors_of(distances, table, rows, self.codebook.width, blocks)
        near, found = rescore.may_be_nearest(distances, errors, counts)
        return rows.expand(len(queries), -1).gather(1, near), found

    @property
    def _vectors(self) -> Vectors | None:
        """Those that lie where this version knows them. For who uses the device."""
        return None if self.vectors is None or self.vectors.lease.is_over else self.vectors

    @property
    def _residence(self) -> Residence:
        return self.codebook.residence

    def _by_code(self, device: Device, queries: Array, keep: int, passing: Sequence[Passing]) -> Best:
        bitmaps, filter_of = self.filters.of(passing)
        asked, codes, rows = device.tensor(queries), self.tiles.packed, len(self.numbers)
        if not self.codebook.is_wide:
            tables = self.codebook.tables(asked)
            scan = scan_lut.Scan(tables, len(queries), codes, rows, bitmaps, filter_of)
            return best_rows(scan, keep, device.scan_lut, device.arrays)
        at_once = scan_wide.queries_at_once(self.codebook.subspaces, self.codebook.centroid_count)
        parts = []
        for start in range(0, len(queries), at_once):
            part = slice(start, start + at_once)
            wide = scan_wide.Scan(self.codebook.wide_tables(asked[part]), codes, rows, bitmaps, filter_of[part])
            parts.append(best_rows(wide, keep, device.scan_wide, device.arrays))
        return Best.joined(parts, device.arrays)

    def _by_vector(self, device: Device, queries: Array, keep: int, passing: Sequence[Passing]) -> Best:
        assert self._vectors is not None
        bitmaps, filter_of = self.filters.of(passing)
        asked = scan_exact.pack(device.tensor(queries), torch.float16)
        scan = scan_exact.Scan(asked, self._vectors.packed, len(self.numbers), bitmaps, filter_of)
        return best_rows(scan, keep, device.scan_exact, device.arrays)


def _while_room(make: Callable[[], Vectors | None], rows: int) -> Vectors | None:
    """The vectors are the first to go: all answers are the same without them."""
    try:
        return make()
    except OutOfRoom as error:
        _log.warning(
            "the vectors of %d rows do not fit on the device nor in main memory (%s): large batches are scanned by "
            "codes, which takes up to 5 times as long, and more rows are read from the store",
            rows,
            str(error),  # whoever keeps the error keeps the memory that it found too little
        )
        return None


def _there(pieces: Iterable[Piece]) -> Iterator[tuple[Int64, Float32]]:
    """The rows of each piece that pass and are not gone, and their vectors."""
    for piece in pieces:
        kept = ~np.isnan(piece.squares)
        if piece.mask is not None:
            kept &= piece.mask
        yield piece.rows[kept], piece.vectors[kept]


def _batches(parts: Iterable[tuple[Int64, Float32]], width: int) -> Iterator[tuple[Int64, Float32]]:
    """The same rows and vectors, many at a time."""
    rows: list[Int64] = []
    vectors: list[Float32] = []
    most = rows_uploaded(width)
    for numbers, found in parts:
        rows.append(numbers)
        vectors.append(found)
        if sum(map(len, rows)) >= most:
            yield np.concatenate(rows), np.concatenate(vectors)
            rows, vectors = [], []
    if any(map(len, rows)):
        yield np.concatenate(rows), np.concatenate(vectors)
