"""Where every vector lies: rows of `vectors` point into segment files. Runs inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from thread_service.store import sql
from thread_service.store.changes import Purpose
from thread_service.store.segments import Location, SegmentState


def record(
    connection: apsw.Connection,
    purpose: Purpose,
    width: int,
    subject_keys: Sequence[int],
    locations: Sequence[Location],
) -> None:
    """Commit rows that were appended and synced: one location per subject."""
    use_slots(connection, width, locations)
    connection.executemany(
        "INSERT INTO vectors (purpose, width, subject_key, segment, slot, crc) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (purpose, width, subject, location.segment, location.slot, location.crc)
            for subject, location in zip(subject_keys, locations, strict=True)
        ],
    )


def use_slots(connection: apsw.Connection, width: int, locations: Sequence[Location]) -> None:
    """Commit the slots of rows that were appended and synced."""
    used: dict[int, int] = {}
    for location in locations:
        used[location.segment] = max(used.get(location.segment, 0), location.slot + 1)
    connection.executemany(
        "INSERT INTO segments VALUES (?, ?, ?) ON CONFLICT (segment) DO UPDATE SET slots = max(slots, excluded.slots)",
        [(segment, width, slots) for segment, slots in used.items()],
    )


def committed(connection: apsw.Connection) -> dict[int, SegmentState]:
    return {
        segment: SegmentState(width, slots)
        for segment, width, slots in sql.rows(connection, "SELECT segment, width, slots FROM segments")
    }


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
