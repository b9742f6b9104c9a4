"""Where every vector lies: rows of `vectors` point into segment files. Runs inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.store import sql
from thread_service.store.changes import Purpose
from thread_service.store.segments import Location, Segments, SegmentState

LOAD_ROWS = 65_536
"""Rows read from the segments at a time when a table is loaded."""


def record(
    connection: apsw.Connection,
    purpose: Purpose,
    width: int,
    subject_keys: Sequence[int],
    locations: Sequence[Location],
) -> None:
    """Commit rows that were appended and synced: one location per subject."""
    used: dict[int, int] = {}
    for location in locations:
        used[location.segment] = max(used.get(location.segment, 0), location.slot + 1)
    connection.executemany(
        "INSERT INTO segments VALUES (?, ?, ?) ON CONFLICT (segment) DO UPDATE SET slots = max(slots, excluded.slots)",
        [(segment, width, slots) for segment, slots in used.items()],
    )
    connection.executemany(
        "INSERT INTO vectors (purpose, width, subject_key, segment, slot, crc) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (purpose, width, subject, location.segment, location.slot, location.crc)
            for subject, location in zip(subject_keys, locations, strict=True)
        ],
    )


def committed(connection: apsw.Connection) -> dict[int, SegmentState]:
    return {
        segment: SegmentState(width, slots)
        for segment, width, slots in sql.rows(connection, "SELECT segment, width, slots FROM segments")
    }


@dataclass(frozen=True, slots=True)
class LoadedRows:
    purpose: Purpose
    width: int
    subject_keys: list[int]
    vectors: NDArray[np.float32]


def load(connection: apsw.Connection, segments: Segments) -> Iterator[LoadedRows]:
    """Every committed vector, checked against its CRC, table by table in order of filing."""
    tables: list[tuple[Purpose, int]] = sql.rows(connection, "SELECT DISTINCT purpose, width FROM vectors")
    for purpose, width in sorted(tables):
        found = connection.execute(
            "SELECT subject_key, segment, slot, crc FROM vectors WHERE purpose = ? AND width = ? ORDER BY vector_key",
            (purpose, width),
        )
        while rows := list(islice(found, LOAD_ROWS)):
            locations = [Location(segment, slot, crc) for _, segment, slot, crc in rows]
            yield LoadedRows(purpose, width, [row[0] for row in rows], segments.read_checked(locations))


def locate(connection: apsw.Connection, purpose: Purpose, subject_keys: Sequence[int]) -> dict[int, Location]:
    """Locations by subject, for those that have a vector."""
    found: dict[int, Location] = {}
    for subject in subject_keys:
        for segment, slot, crc in sql.rows(
            connection,
            "SELECT segment, slot, crc FROM vectors WHERE purpose = ? AND subject_key = ?",
            (purpose, subject),
        ):
            found[subject] = Location(segment, slot, crc)
    return found
