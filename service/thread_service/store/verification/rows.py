"""The vectors: every file that the database knows is there and long enough, every row is what its CRC says.

Beside a running node a row that looks damaged may only have moved: it is looked up again before it is called damaged.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
from pyroaring import BitMap

from thread_service.store import sql, vectors
from thread_service.store.files import OsFiles
from thread_service.store.segments import FILE_NAME, Location, file_name, runs
from thread_service.store.verification.look import Look, Range, documents_of_subject

_ITEM = 4
_ROWS_AT_ONCE = 256
_RUN_BYTES = 4 << 20
"""Read at once at most, and at least one row."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of `vectors`. `segment_width` and `slots`: what `segments` says of its segment, None without one."""

    vector_key: int
    purpose: str
    subject_key: int
    width: int
    location: Location
    segment_width: int | None
    slots: int | None

    @property
    def is_inside(self) -> bool:
        return self.segment_width == self.width and self.slots is not None and 0 <= self.location.slot < self.slots


@dataclass(frozen=True, slots=True)
class _Suspect:
    row: _Row
    what: str


# ------------------------------------------------------------------------------------------------------ files


def check_files(look: Look) -> None:
    """Files that are missing or too short, and files that no segment stands for."""
    with look.place.quiet():
        committed = look.step(vectors.committed, table="segments", rests=False)
        sizes = _sizes(look.place.vectors)
    if committed is None:
        return
    look.examined(len(sizes))
    for number, state in sorted(committed.items()):
        name = file_name(number)
        if name not in sizes:
            what = f"is missing: {state.slots} rows of it are committed"
            look.damage(what, file=f"vectors/{name}", segment=number)
        elif sizes[name] < state.slots * state.width * _ITEM:
            whole = sizes[name] // (state.width * _ITEM)
            what = f"is too short: {sizes[name]} bytes hold {whole} of the {state.slots} rows that are committed"
            look.damage(what, file=f"vectors/{name}", segment=number)
    for name in sorted(sizes):
        match = FILE_NAME.fullmatch(name)
        if match and int(match[1]) not in committed:
            what = (
                "is unknown to the database, and the next start removes it: a crash has left it, or the database is"
                " older than its segments"
            )
            look.damage(what, file=f"vectors/{name}", segment=int(match[1]))


def _sizes(directory: Path) -> dict[str, int]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}
    except FileNotFoundError:
        return {}


# ------------------------------------------------------------------------------------------------------ rows


def check_rows(look: Look) -> None:
    """Every row against its CRC; rows outside their segment; places that two rows share."""
    taken: dict[int, BitMap] = {}
    suspects: list[_Suspect] = []

    def settle(connection: apsw.Connection) -> None:
        """What is still where it looked damaged is damaged; what has moved is read again."""
        before = suspects.copy()
        suspects.clear()
        keys = sql.array(suspect.row.vector_key for suspect in before)
        now = {row.vector_key: row for row in _rows(connection, "vector_key IN (SELECT value FROM json_each(?))", keys)}
        moved: list[_Row] = []
        for suspect in before:
            row = now.get(suspect.row.vector_key)
            if row is not None and row.location == suspect.row.location:
                hit = documents_of_subject(connection, row.purpose, row.subject_key)
                where = {"segment": row.location.segment, "row": row.location.slot}
                look.damage(suspect.what, hit, table="vectors", key=row.vector_key, **where)
            elif row is not None and row.is_inside:
                moved.append(row)
        suspects.extend(_suspects(look.place.vectors, moved))

    def work(connection: apsw.Connection, within: Range) -> int:
        found = _rows(connection, "vector_key > ? AND vector_key <= ?", *within)
        # In this newer snapshot, what looked damaged in the one before.
        settle(connection)
        for row in found:
            _check_place(look, row, taken)
        suspects.extend(_suspects(look.place.vectors, [row for row in found if row.is_inside]))
        return len(found)

    look.slices("vectors", "vector_key", work, rows=_ROWS_AT_ONCE)
    while suspects:
        look.step(settle, table="vectors")


def _rows(connection: apsw.Connection, condition: str, *parameters: Any) -> list[_Row]:
    statement = (
        "SELECT vector_key, purpose, subject_key, v.width, segment, slot, crc, s.width, s.slots"
        f" FROM vectors v LEFT JOIN segments s USING (segment) WHERE {condition}"
    )
    return [
        _Row(key, purpose, subject, width, Location(segment, slot, crc), segment_width, slots)
        for key, purpose, subject, width, segment, slot, crc, segment_width, slots in sql.rows(
            connection, statement, parameters
        )
    ]


def _check_place(look: Look, row: _Row, taken: dict[int, BitMap]) -> None:
    segment, slot = row.location.segment, row.location.slot
    if row.segment_width is None:
        return  # an orphan, of which another check speaks
    where: dict[str, Any] = {"table": "vectors", "key": row.vector_key}
    if row.segment_width != row.width:
        look.damage(f"has width {row.width} in segment {segment}, whose rows have {row.segment_width}", **where)
    elif not row.is_inside:
        look.damage(f"lies in row {slot} of segment {segment}, which has {row.slots} rows", **where)
    elif slot in taken.setdefault(segment, BitMap()):
        look.damage(f"lies in row {slot} of segment {segment}, as another vector does", **where)
    else:
        taken[segment].add(slot)


def _suspects(directory: Path, rows: Sequence[_Row]) -> Iterator[_Suspect]:
    by_width: dict[int, list[_Row]] = {}
    for row in rows:
        by_width.setdefault(row.width, []).append(row)
    for width, here in by_width.items():
        read = read_rows(directory, [row.location for row in here], width)
        for row, data in zip(here, read, strict=True):
            if isinstance(data, str):
                yield _Suspect(row, data)


def read_rows(directory: Path, locations: Sequence[Location], width: int) -> list[bytes | str]:
    """The bytes of rows of one width, each compared with its CRC; for a damaged one, what is wrong with it."""
    found: list[bytes | str] = [""] * len(locations)
    order = sorted(range(len(locations)), key=lambda i: (locations[i].segment, locations[i].slot))
    size = width * _ITEM
    at_once = max(1, _RUN_BYTES // size)
    for run in runs(order, locations):
        for start in range(0, len(run), at_once):
            some = run[start : start + at_once]
            first = locations[some[0]]
            data = _read(directory / file_name(first.segment), len(some) * size, first.slot * size)
            for at, i in enumerate(some):
                row = data if isinstance(data, str) else data[at * size : (at + 1) * size]
                found[i] = row if isinstance(row, str) else _checked(row, size, locations[i])
    return found


def _read(path: Path, size: int, offset: int) -> bytes | str:
    try:
        with OsFiles().open(path) as file:
            return file.read(size, offset)
    except FileNotFoundError:
        return "is lost with its file, which is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _checked(row: bytes, size: int, location: Location) -> bytes | str:
    if len(row) < size:
        return "lies beyond the end of its file"
    return row if zlib.crc32(row) == location.crc else "is damaged: its CRC does not fit"
