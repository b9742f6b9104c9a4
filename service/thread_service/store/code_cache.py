"""The codes of the tables on disk, so that a start codes nothing twice; droppable at any time.

    cache/codes-000007/    manifest.json  rows  model-384.codes  caller-1024.codes  …
    cache/codes-000008.new/    being written, or left by a crash

`rows` is a snapshot of `vectors` (`stored_rows.snapshot`, little-endian int64), so that a start need not read all of it
again. A file of codes is: the vector keys (int64), the CRCs of their vectors (uint32), the engine's codes. What it says
is believed of a row whose key and CRC the database has too, so a cache of another node, or of a time before a
restore, gives no row a wrong code. The manifest has the CRC-32 (zlib) of every file and of what it says about it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from thread_service.store.changes import Purpose
from thread_service.store.files import OsFiles
from thread_service.store.stored_rows import COLUMNS

FORMAT = 2

_NAME = re.compile(r"codes-(\d{6,})(\.new)?")
_MANIFEST = "manifest.json"
_ROWS = "rows"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedCodes:
    """Codes of one table. `vector_keys` int64 [n] and `crcs` uint32 [n], one per coded row; key 0: it is gone."""

    purpose: Purpose
    width: int
    vector_keys: NDArray[np.int64]
    crcs: NDArray[np.uint32]
    data: bytes


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What the newest cache holds: rows of each table, and when it was written (Unix time; None without one)."""

    rows: dict[tuple[Purpose, int], int]
    written_at: float | None


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    purpose: Purpose
    width: int
    count: _Count
    file: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]+-[0-9]+\.codes$")]
    crc: int


class _Manifest(msgspec.Struct, frozen=True):
    format: int
    sequence: int
    rows: _Count
    rows_crc: int
    tables: list[_Entry]


class _Damaged(Exception):
    """What is wrong with a file of the cache."""


class CodeCache:
    """The newest cache in `directory`. Reads and writes may not overlap."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._newest: tuple[Path, _Manifest] | None = None

    def open(self) -> None:
        """Find the newest cache with a manifest that can be read; what a crash left over is removed."""
        try:
            paths = self._paths()
        except OSError as error:
            log.warning("%s: %s; the codes are made anew", self._directory, error)
            return
        for path in paths:
            if path.suffix:
                _remove(path)
            elif self._newest is None and (manifest := _manifest(path)) is not None:
                self._newest = path, manifest
            elif self._newest is not None:
                _remove(path)

    def tables(self) -> set[tuple[Purpose, int]]:
        """What the manifest speaks of."""
        return {*self._entries()}

    def stats(self) -> CacheStats:
        """How the newest cache stands. From any thread."""
        if (newest := self._newest) is None:
            return CacheStats({}, None)
        path, manifest = newest
        try:
            written_at = (path / _MANIFEST).stat().st_mtime
        except OSError:
            written_at = None
        return CacheStats({(entry.purpose, entry.width): entry.count for entry in manifest.tables}, written_at)

    def rows(self) -> NDArray[np.int64] | None:
        """The snapshot of `vectors` that was written with the codes; None when there is none. Damage is logged."""
        if self._newest is None:
            return None
        path, manifest = self._newest
        try:
            return _read_rows(path / _ROWS, manifest)
        except (OSError, _Damaged) as error:
            log.warning("%s: %s; the rows are read anew", path / _ROWS, error)
            return None

    def read(self, purpose: Purpose, width: int) -> CachedCodes | None:
        """None when there are none; damage is logged, and the codes are to be made anew."""
        entry = self._entries().get((purpose, width))
        if entry is None or self._newest is None:
            return None
        path = self._newest[0] / entry.file
        try:
            return _read(path, entry)
        except (OSError, _Damaged) as error:
            log.warning("%s: %s; the codes are made anew", path, error)
            return None

    def write(self, rows: NDArray[np.int64], tables: Iterable[CachedCodes]) -> None:
        """Put a new cache in the place of the newest, one table in memory at a time. OSError: nothing has changed."""
        sequence = 1 + max((_sequence(path) for path in self._paths()), default=0)
        target = self._directory / f"codes-{sequence:06d}"
        beside = target.with_name(f"{target.name}.new")
        try:
            beside.mkdir(mode=0o700)
            rows_crc = _write_rows(beside / _ROWS, rows)
            entries = [_write(beside, codes) for codes in tables]
            manifest = _Manifest(FORMAT, sequence, rows.shape[1], rows_crc, entries)
            _write_file(beside / _MANIFEST, [msgspec.json.encode(manifest)])
            OsFiles().sync_directory(beside)
            beside.rename(target)
            OsFiles().sync_directory(self._directory)
        except BaseException:
            _remove(beside)
            raise
        self._newest = target, manifest
        for path in self._paths():
            if path != target:
                _remove(path)

    def clear(self) -> None:
        """Drop every cache."""
        self._newest = None
        for path in self._paths():
            _remove(path)

    def _entries(self) -> dict[tuple[Purpose, int], _Entry]:
        entries = [] if self._newest is None else self._newest[1].tables
        return {(entry.purpose, entry.width): entry for entry in entries}

    def _paths(self) -> list[Path]:
        """Everything here of our names, the newest first."""
        found = [path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=_sequence, reverse=True)


def damages(directory: Path) -> tuple[int, list[tuple[Path, str]]]:
    """How many files of the newest cache were read, and which are damaged and how. Nothing is removed or logged; a
    cache that is replaced meanwhile has none."""
    try:
        found = [path for path in CodeCache(directory)._paths() if not path.suffix]
        if not found:
            return 0, []
        return _damages(found[0])
    except FileNotFoundError:
        return 0, []


def _damages(path: Path) -> tuple[int, list[tuple[Path, str]]]:
    try:
        manifest = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=_Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return 1, [(path / _MANIFEST, str(error))]
    reads: list[tuple[Path, Callable[[], object]]] = [(path / _ROWS, partial(_read_rows, path / _ROWS, manifest))]
    reads += [(file, partial(_read, file, entry)) for entry in manifest.tables for file in [path / entry.file]]
    found: list[tuple[Path, str]] = []
    for file, read in reads:
        try:
            read()
        except (OSError, _Damaged) as error:
            if path.exists():
                found.append((file, str(error)))
    return 1 + len(reads), found


def _sequence(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _manifest(path: Path) -> _Manifest | None:
    file = path / _MANIFEST
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=_Manifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s: %s; the codes are made anew", file, error)
        return None
    if manifest.format != FORMAT:
        log.warning("%s: format %d is unknown here; the codes are made anew", file, manifest.format)
        return None
    return manifest


def _read(path: Path, entry: _Entry) -> CachedCodes:
    keys, crcs, data = _read_file(path, [8 * entry.count, 4 * entry.count])
    if _crc(f"{entry.purpose} {entry.width} {entry.count}", [keys, crcs, data]) != entry.crc:
        raise _Damaged("the checksum does not fit")
    return CachedCodes(
        entry.purpose,
        entry.width,
        np.frombuffer(keys, "<i8").astype(np.int64, copy=False),
        np.frombuffer(crcs, "<u4").astype(np.uint32, copy=False),
        data,
    )


def _read_rows(path: Path, manifest: _Manifest) -> NDArray[np.int64]:
    parts = _read_file(path, [8 * COLUMNS * manifest.rows])
    if _crc(f"rows {manifest.rows}", parts) != manifest.rows_crc:
        raise _Damaged("the checksum does not fit")
    return np.frombuffer(parts[0], "<i8").astype(np.int64, copy=False).reshape(COLUMNS, manifest.rows)


def _read_file(path: Path, sizes: list[int]) -> list[bytes]:
    """Parts of these sizes, and what comes after them."""
    if path.stat().st_size < sum(sizes):
        raise _Damaged("it is too short")
    with path.open("rb") as file:
        return [*map(file.read, sizes), file.read()]


def _write(directory: Path, codes: CachedCodes) -> _Entry:
    name = f"{codes.purpose}-{codes.width}.codes"
    parts = [codes.vector_keys.astype("<i8").tobytes(), codes.crcs.astype("<u4").tobytes(), codes.data]
    _write_file(directory / name, parts)
    table = codes.purpose, codes.width, len(codes.vector_keys)
    return _Entry(*table, name, _crc("{} {} {}".format(*table), parts))


def _write_rows(path: Path, rows: NDArray[np.int64]) -> int:
    parts = [rows.astype("<i8").tobytes()]
    _write_file(path, parts)
    return _crc(f"rows {rows.shape[1]}", parts)


def _write_file(path: Path, parts: list[bytes]) -> None:
    if shutil.disk_usage(path.parent).free < 2 * sum(map(len, parts)):
        # The last room is for what callers file.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with OsFiles().create(path) as file:
        offset = 0
        for part in parts:
            file.write(memoryview(part), offset)
            offset += len(part)
        file.sync()


def _crc(about: str, parts: list[bytes]) -> int:
    crc = zlib.crc32(about.encode())
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def _remove(path: Path) -> None:
    """What cannot be removed now goes with the next cache, or at the next start."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path)
