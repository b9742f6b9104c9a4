"""The codes of a table's rows on the device, and the search that orders rows by them: one launch for a whole batch.

Immutable, so that a search keeps the version it began with; the memory is shared between versions (`device_rows`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from thread_kernels import scan_exact, scan_lut
from thread_kernels.device import Device, OutOfRoom, Residence
from thread_kernels.device_codebook import DeviceCodebook
from thread_kernels.device_filters import DeviceFilters
from thread_kernels.device_rows import Tiles, Vectors
from thread_kernels.exact import Piece
from thread_kernels.interface import Float32, Int64
from thread_kernels.membership import Passing
from thread_kernels.selection import Best, best_rows

_UPLOADED_BYTES = 256 << 20
_ONE_LIST = np.empty(0, dtype=np.uint16)

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

    @classmethod
    def of(
        cls, codebook: DeviceCodebook, tiles: Tiles, vectors: Vectors | None, numbers: Int64, rows: int
    ) -> DeviceCodes:
        is_dense = not len(numbers) or int(numbers[-1]) == len(numbers) - 1
        filters = DeviceFilters(codebook.residence, numbers, is_dense)
        return cls(codebook, tiles, vectors, numbers, rows, filters)

    @classmethod
    def empty(cls, codebook: DeviceCodebook, with_vectors: bool) -> DeviceCodes:
        residence = codebook.residence
        vectors = Vectors.none(residence, codebook.width) if with_vectors else None
        return cls.of(codebook, Tiles.none(residence), vectors, np.empty(0, dtype=np.int64), 0)

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

    def grown(self, pieces: Iterable[Piece], stop: int) -> DeviceCodes:
        """With the codes of `pieces`, which are the rows from `rows` on; rows below `stop` are covered then.

        OutOfRoom when not even the codes fit.
        """
        tiles, vectors, numbers = self.tiles, self.vectors, [self.numbers]
        room = len(self.numbers) + stop - self.rows
        with self._residence.using():
            vectors = _while_room(lambda: vectors and vectors.with_room(room), room)
            tiles = tiles.with_room(room)
        for rows, found in _batches(pieces, self.codebook.width):
            with self._residence.using() as device:
                uploaded = device.tensor(device.upload(found))
                tiles = tiles.and_codes(device.array(self.codebook.encode(uploaded)))
                vectors = vectors and vectors.and_vectors(uploaded)
            numbers.append(rows)
        return DeviceCodes.of(self.codebook, tiles, vectors, np.concatenate(numbers), stop)

    merged = grown

    def without(self, rows: Int64) -> DeviceCodes:
        """Less the codes of int64[n] `rows`, which ascend."""
        kept = np.isin(self.numbers, rows, assume_unique=True, invert=True)
        if kept.all():
            return self
        places = kept.nonzero()[0]
        with self._residence.using():
            tiles = self.tiles.only(places)
            vectors = _while_room(lambda: self.vectors and self.vectors.only(places), len(places))
        return DeviceCodes.of(self.codebook, tiles, vectors, self.numbers[kept], self.rows)

    def lists_near(self, rotated: Float32) -> Int64:
        return np.zeros((len(rotated), 1), dtype=np.int64)

    def nearest(self, queries: Float32, count: int, passing: Passing, share: float) -> list[Int64]:
        return self._listed(queries, [count] * len(queries), [passing] * len(queries), self._by_code)

    def search(self, queries: Float32, counts: Sequence[int], passing: Sequence[Passing]) -> list[Int64]:
        """The rows nearest to each of float32[q, width] that pass its filter, as many as its count, nearest first.

        By their codes, or by the vectors where they are there and that is faster for so many queries.
        """
        from_batch = None
        if self.vectors is not None:
            with self._residence.using() as device:
                from_batch = device.product_from(self.codebook.width)
        is_large = from_batch is not None and len(queries) >= from_batch
        return self._listed(queries, counts, passing, self._by_vector if is_large else self._by_code)

    def _listed(
        self,
        queries: Float32,
        counts: Sequence[int],
        passing: Sequence[Passing],
        best_of: Callable[[Device, Float32, int, Sequence[Passing]], Best],
    ) -> list[Int64]:
        keep = min(max(counts, default=0), len(self.numbers))
        if not keep:
            return [np.empty(0, dtype=np.int64)] * len(queries)
        with self._residence.using() as device:
            best = best_of(device, queries, keep, passing)
            places, found = device.download(best.rows), device.download(best.counts)
        return [self.numbers[row[: min(most, wanted)]] for row, most, wanted in zip(places, found, counts, strict=True)]

    @property
    def _residence(self) -> Residence:
        return self.codebook.residence

    def _by_code(self, device: Device, queries: Float32, keep: int, passing: Sequence[Passing]) -> Best:
        bitmaps, filter_of = self.filters.of(passing)
        tables = self.codebook.tables(device.tensor(device.upload(queries)))
        scan = scan_lut.Scan(tables, len(queries), self.tiles.packed, len(self.numbers), bitmaps, filter_of)
        return best_rows(scan, keep, device.scan_lut, device.arrays)

    def _by_vector(self, device: Device, queries: Float32, keep: int, passing: Sequence[Passing]) -> Best:
        assert self.vectors is not None
        bitmaps, filter_of = self.filters.of(passing)
        asked = scan_exact.pack(device.tensor(device.upload(queries)), torch.float16)
        scan = scan_exact.Scan(asked, self.vectors.packed, len(self.numbers), bitmaps, filter_of)
        return best_rows(scan, keep, device.scan_exact, device.arrays)


def _while_room(make: Callable[[], Vectors | None], rows: int) -> Vectors | None:
    """The vectors are the first to leave the device: all answers are the same without them."""
    try:
        return make()
    except OutOfRoom as error:
        _log.warning(
            "the vectors of %d rows do not fit on the device (%s): they stay in main memory, and large batches are "
            "scanned by codes, which takes up to 5 times as long",
            rows,
            error,
        )
        return None


def _batches(pieces: Iterable[Piece], width: int) -> Iterator[tuple[Int64, Float32]]:
    """The rows of `pieces` that pass and are not gone, and their vectors, many at a time."""
    rows: list[Int64] = []
    vectors: list[Float32] = []
    most = max(1, _UPLOADED_BYTES // (4 * width))
    for piece in pieces:
        kept = ~np.isnan(piece.squares)
        if piece.mask is not None:
            kept &= piece.mask
        rows.append(piece.rows[kept])
        vectors.append(piece.vectors[kept])
        if sum(map(len, rows)) >= most:
            yield np.concatenate(rows), np.concatenate(vectors)
            rows, vectors = [], []
    if any(map(len, rows)):
        yield np.concatenate(rows), np.concatenate(vectors)
