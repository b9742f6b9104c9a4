"""Vectors on disk: append-only files of float32 rows, `NNNNNN.f32`, rows of one width in a file.

The files hold no lengths and no checksums. What is valid is what the database says is: the committed number of rows of
each segment, and the CRC of each row. Rows beyond that number are free space and are written over. So the order
is always: `append`, `sync`, then the transaction that stores the `Location`s and `states()`; if that fails, `rollback`.

Files are allocated ahead in extents, so a full disk shows in `append`, where nothing has been promised, and not in
`sync`. A failed fsync is never retried: from then on nothing more is written.

`open`, `append`, `sync`, `states`, `rollback`, `seal`, `trim`, `remove` and `clear` belong to one thread at a time;
reads may come from any.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import StorageFull, StoreFailed
from thread_service.store.files import File, Files

SEGMENT_BYTES = 1 << 30
"""What a file holds at most, unless one row is larger."""
FIRST_EXTENT = 1 << 20
LAST_EXTENT = 16 << 20

FILE_NAME = re.compile(r"(\d{6,})\.f32")
"""Of a segment; its number."""
_ITEM = 4
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class SegmentState:
    """Numbers per row, and rows that are valid."""

    width: int
    slots: int


@dataclass(frozen=True, slots=True)
class Location:
    """Where a row is. `crc`: CRC-32 (zlib) of its little-endian bytes."""

    segment: int
    slot: int
    crc: int


@dataclass(slots=True, eq=False)
class _Segment:
    """`allocated`: bytes reserved. `file`: open for appending. `rows`: the file, as it was when it was mapped."""

    number: int
    path: Path
    width: int
    slots: int
    allocated: int
    file: File | None = None
    unsynced: bool = False
    rows: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))

    @property
    def row_bytes(self) -> int:
        return self.width * _ITEM


class Segments:
    """The segments in `directory`. A file holds at most `segment_bytes`, and at least one row."""

    def __init__(self, directory: Path, files: Files, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._files = files
        self._segment_bytes = segment_bytes
        self._segments: dict[int, _Segment] = {}
        self._appending: dict[int, _Segment] = {}
        self._next = 1
        self._names_unsynced = False
        self._failure: StoreFailed | None = None
        self._mapping = threading.Lock()

    def open(self, committed: Mapping[int, SegmentState]) -> None:
        """Take up the committed state: files that no committed segment knows are removed.

        `StoreFailed`: a file is missing, or too short for its committed rows.
        """
        present = {int(match[1]): name for name in self._names() if (match := FILE_NAME.fullmatch(name))}
        for number, state in sorted(committed.items()):
            path = self._path(number)
            needed = state.slots * state.width * _ITEM
            try:
                with self._files.open(path) as file:
                    size = file.size()
            except FileNotFoundError:
                raise StoreFailed(f"{path} is missing: restore a backup with `thread restore`") from None
            except OSError as error:
                raise StoreFailed(f"{path}: cannot be read: {error.strerror}") from error
            if size < needed:
                raise StoreFailed(
                    f"{path} is damaged: {size} bytes for {state.slots} rows of {needed} bytes: "
                    "restore a backup with `thread restore`"
                )
            segment = _Segment(number, path, state.width, state.slots, size)
            self._segments[number] = segment
            if segment.slots < self._capacity(state.width):
                self._appending[state.width] = segment
        for number, name in present.items():
            if number not in committed:
                self._unlink(self._directory / name)
        self._next = max([0, *committed, *present]) + 1

    def append(self, vectors: NDArray[np.float32]) -> list[Location]:
        """Write rows (float32 [n, width]) to the open segment of their width, and to new ones as it fills.

        They are durable after `sync`. `StorageFull`: nothing was appended. `StoreFailed`: nothing more will be.
        """
        self._refuse_if_failed()
        rows = np.ascontiguousarray(vectors, dtype="<f4")
        if rows.ndim != 2 or rows.shape[1] < 1:
            raise ValueError(f"rows of one width are wanted, not shape {rows.shape}")
        before = self.states()
        locations: list[Location] = []
        try:
            while len(locations) < len(rows):
                locations += self._append_to_one(rows[len(locations) :])
        except OSError as error:
            self.rollback(before)
            if error.errno in _FULL:
                raise StorageFull("the disk is full; nothing was written") from error
            raise self._fail(f"{self._directory}: cannot be written: {error.strerror}", error) from error
        return locations

    def sync(self) -> None:
        """Make every appended row durable. `StoreFailed`: it is unknown what is; nothing more will be written."""
        self._refuse_if_failed()
        try:
            for segment in self._segments.values():
                if segment.unsynced and segment.file is not None:
                    segment.file.sync()
                    segment.unsynced = False
                    if segment.slots >= self._capacity(segment.width):
                        self._close_file(segment)
            if self._names_unsynced:
                self._files.sync_directory(self._directory)
                self._names_unsynced = False
        except OSError as error:
            raise self._fail(f"{self._directory}: fsync failed: {error.strerror}", error) from error

    def states(self) -> dict[int, SegmentState]:
        """Every segment that holds rows, appended ones included: what the transaction that commits them stores."""
        return {number: SegmentState(s.width, s.slots) for number, s in self._segments.items() if s.slots}

    def is_full(self, state: SegmentState) -> bool:
        """Whether a segment of so many rows is never written to again."""
        return state.slots >= self._capacity(state.width)

    def rollback(self, committed: Mapping[int, SegmentState]) -> None:
        """Forget every row appended since `committed`, after the transaction that was to commit them has failed."""
        for number in self._segments.keys() - committed.keys():
            self.remove(number)
        for number, segment in self._segments.items():
            if committed[number].slots < segment.slots:
                segment.slots = committed[number].slots
                # A segment that was sealed for compaction has a successor.
                if self._appending.get(segment.width, segment).number <= number:
                    self._appending[segment.width] = segment

    def seal(self, number: int) -> None:
        """Append no more to this segment and give its unused space back (compaction empties it into another)."""
        segment = self._segments[number]
        self._trim(segment)
        if self._appending.get(segment.width) is segment:
            del self._appending[segment.width]

    def trim(self) -> None:
        """Give back the unused space of every open segment, and what was written there and never committed."""
        for segment in self._appending.values():
            if segment.allocated > segment.slots * segment.row_bytes:
                self._trim(segment)

    def remove(self, number: int) -> None:
        """Delete a segment, once the transaction that forgets it has committed. Its number is not used again."""
        segment = self._segments.pop(number)
        if self._appending.get(segment.width) is segment:
            del self._appending[segment.width]
        self._close_file(segment)
        self._unlink(segment.path)

    def clear(self) -> None:
        """Delete every segment, once the transaction that forgets them has committed."""
        for number in list(self._segments):
            self.remove(number)

    def close(self) -> None:
        for segment in self._segments.values():
            self._close_file(segment)
        self._segments.clear()
        self._appending.clear()

    def read(self, segment: int, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows `slots` (int64 [n]) of one segment, float32 [n, width], through a memory map and unchecked.

        `KeyError`: the segment was removed since the row was looked up. `IndexError`: no such row.
        """
        entry = self._segments[segment]
        if not len(slots):
            return np.empty((0, entry.width), np.float32)
        last = int(slots.max())
        if int(slots.min()) < 0 or last >= entry.slots:
            raise IndexError(f"{entry.path} has {entry.slots} rows")
        return self._rows(entry, last + 1).take(slots, axis=0)

    def read_checked(self, locations: Sequence[Location]) -> NDArray[np.float32]:
        """Rows of one width, float32 [n, width], each compared with its CRC; runs of slots are read at once.

        `StoreFailed` names segment and row of a damaged one. `KeyError` as in `read`.
        """
        if not locations:
            return np.empty((0, 0), np.float32)
        width = self._segments[locations[0].segment].width
        found = np.empty((len(locations), width), "<f4")
        target = found.view(np.uint8)
        order = sorted(range(len(locations)), key=lambda i: (locations[i].segment, locations[i].slot))
        for run in runs(order, locations):
            first = locations[run[0]]
            entry = self._segments[first.segment]
            if entry.width != width:
                raise ValueError("rows of one width are wanted")
            data = self._read_run(entry, first.slot, len(run))
            for at, i in enumerate(run):
                row = data[at * entry.row_bytes : (at + 1) * entry.row_bytes]
                if len(row) < entry.row_bytes or zlib.crc32(row) != locations[i].crc:
                    raise StoreFailed(
                        f"{entry.path}: row {locations[i].slot} of segment {entry.number} is damaged: "
                        "restore a backup with `thread restore`"
                    )
                target[i] = np.frombuffer(row, np.uint8)
        return found.astype(np.float32, copy=False)

    def _append_to_one(self, rows: NDArray[np.float32]) -> list[Location]:
        width = rows.shape[1]
        capacity = self._capacity(width)
        segment = self._appending.get(width) or self._create(width)
        if segment.file is None:
            segment.file = self._files.open(segment.path, writable=True)
        rows = rows[: capacity - segment.slots]
        self._reserve(segment, segment.slots + len(rows))
        data = rows.data.cast("B")
        segment.unsynced = True
        segment.file.write(data, segment.slots * segment.row_bytes)
        size = segment.row_bytes
        locations = [
            Location(segment.number, segment.slots + i, zlib.crc32(data[i * size : (i + 1) * size]))
            for i in range(len(rows))
        ]
        segment.slots += len(rows)
        if segment.slots >= capacity:
            del self._appending[width]
        return locations

    def _trim(self, segment: _Segment) -> None:
        self._refuse_if_failed()
        try:
            with self._files.open(segment.path, writable=True) as file:
                file.truncate(segment.slots * segment.row_bytes)
                file.sync()
        except OSError as error:
            raise self._fail(f"{segment.path}: cannot be trimmed: {error.strerror}", error) from error
        segment.allocated = segment.slots * segment.row_bytes
        segment.unsynced = False
        self._close_file(segment)

    def _create(self, width: int) -> _Segment:
        number, self._next = self._next, self._next + 1
        path = self._path(number)
        segment = _Segment(number, path, width, 0, 0, self._files.create(path))
        self._names_unsynced = True
        self._segments[number] = self._appending[width] = segment
        return segment

    def _reserve(self, segment: _Segment, slots: int) -> None:
        assert segment.file is not None
        limit = self._capacity(segment.width) * segment.row_bytes
        while segment.allocated < slots * segment.row_bytes:
            extent = min(max(segment.allocated, FIRST_EXTENT), LAST_EXTENT, limit - segment.allocated)
            try:
                segment.file.allocate(segment.allocated, extent)
            except OSError:
                # What was reserved before the disk was full is given back; nobody has mapped it yet.
                with contextlib.suppress(OSError):
                    segment.file.truncate(segment.allocated)
                raise
            segment.unsynced = True
            segment.allocated += extent

    def _rows(self, segment: _Segment, count: int) -> NDArray[np.float32]:
        """The file as float32 [at least `count`, width]. Old maps live as long as somebody reads them."""
        rows = segment.rows
        if len(rows) >= count:
            return rows
        with self._mapping:
            if len(segment.rows) < count:
                try:
                    with self._files.open(segment.path) as file:
                        mapped = file.map()
                except FileNotFoundError:
                    raise KeyError(segment.number) from None
                # Rows are picked here and there: reading ahead would only push others out of memory.
                mapped.madvise(mmap.MADV_RANDOM)
                whole = len(mapped) // segment.row_bytes
                flat = np.frombuffer(mapped, "<f4", count=whole * segment.width)
                segment.rows = flat.reshape(whole, segment.width)
            return segment.rows

    def _read_run(self, segment: _Segment, slot: int, count: int) -> memoryview:
        try:
            with self._files.open(segment.path) as file:
                return memoryview(file.read(count * segment.row_bytes, slot * segment.row_bytes))
        except FileNotFoundError:
            raise KeyError(segment.number) from None
        except OSError as error:
            raise StoreFailed(
                f"{segment.path}: rows {slot} to {slot + count - 1} of segment {segment.number} cannot be read: "
                f"{error.strerror}"
            ) from error

    def _capacity(self, width: int) -> int:
        return capacity(width, self._segment_bytes)

    def _path(self, number: int) -> Path:
        return self._directory / file_name(number)

    def _names(self) -> list[str]:
        try:
            return self._files.names(self._directory)
        except OSError as error:
            raise StoreFailed(f"{self._directory}: cannot be read: {error.strerror}") from error

    def _close_file(self, segment: _Segment) -> None:
        if segment.file is not None:
            segment.file.close()
            segment.file = None

    def _unlink(self, path: Path) -> None:
        # A file that cannot be removed now is unknown to the database and goes at the next start.
        with contextlib.suppress(OSError):
            self._files.remove(path)

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise StoreFailed(str(self._failure))

    def _fail(self, message: str, cause: OSError) -> StoreFailed:
        self._failure = StoreFailed(f"{message}; the store has stopped writing")
        self._failure.__cause__ = cause
        return self._failure


def capacity(width: int, segment_bytes: int) -> int:
    """Rows of a file."""
    return max(1, segment_bytes // (width * _ITEM))


def file_name(number: int) -> str:
    return f"{number:06d}.f32"


def runs(order: list[int], locations: Sequence[Location]) -> list[list[int]]:
    """Indices of `locations`, in `order`, cut wherever the next slot does not follow the one before."""
    found: list[list[int]] = []
    for i in order:
        here = locations[i]
        if found:
            last = locations[found[-1][-1]]
            if (here.segment, here.slot) == (last.segment, last.slot + 1):
                found[-1].append(i)
                continue
        found.append([i])
    return found
