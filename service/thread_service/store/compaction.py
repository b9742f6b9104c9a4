"""Compaction: what was removed goes from the disk, and its room with it.

Segments first. One with removed rows is sealed; its live rows are checked, copied behind the open segment of their
width, and the database is pointed to the copies, a bounded number of rows in each transaction. The transaction that
moves the last row forgets the segment, and only after it the file is deleted. So a crash leaves each row at its old
place or at its new one, and a file that nobody knows is deleted at the next start.

Then memory and cache, the index of words (what was removed is still in it until its parts are merged), and the
database file. `secure_delete` zeroes removed rows and pages, but not the copies of a row that stay behind in a page
when rows move between neighbours; so the file is rebuilt, which also gives its free pages back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw

from thread_service.store import sql, vectors
from thread_service.store.changes import Changes, MovedVectors, Purpose
from thread_service.store.disk import Disk
from thread_service.store.rebuild import rebuild
from thread_service.store.segments import Location, Segments

DEAD_SHARE = 0.2
"""From more than this share of removed rows in a segment, or of free pages in the database, on it is worth the work."""
FREE_PAGES = 256
"""Free pages that are not worth rebuilding a database for."""
MOVE_ROWS = 16_384
MOVE_BYTES = 16 << 20
"""At most so much is moved in one transaction: others who file wait that long."""
MERGE_PAGES = 256
"""Pages of the index of words that are merged in one transaction."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did. `left`: what could not be done and why, empty for nothing."""

    rows: int
    """Removed rows whose place was given back."""
    segments: int
    """Files of vectors that were emptied and deleted."""
    bytes_before: int
    """Of all files of the node."""
    bytes_after: int
    left: str


@dataclass(frozen=True, slots=True)
class _Row:
    vector_key: int
    purpose: Purpose
    subject_key: int
    location: Location


def is_due(connection: apsw.Connection) -> bool:
    """Whether enough was removed: counted without reading a vector."""
    return any(_has_much_dead(*counts) for counts in _counts(connection).values())


def free_pages(connection: apsw.Connection) -> int:
    """Of the database; 0 unless they are so many that it is worth rebuilding."""
    free, pages = connection.pragma("freelist_count"), connection.pragma("page_count")
    assert isinstance(free, int)
    assert isinstance(pages, int)
    return free if free > FREE_PAGES and free > DEAD_SHARE * pages else 0


def give_back_free_pages(disk: Disk) -> Compacted:
    """Rebuild the database and nothing else. Blocking; who writes waits meanwhile."""
    before = _bytes(disk.path)
    left = rebuild(disk.database, disk.path)
    return Compacted(0, 0, before, _bytes(disk.path), left)


def compact(disk: Disk, *, every: bool, progress: Progress, go_on: Callable[[], None]) -> Compacted:
    """Compact `disk`. Blocking; searches and deposits go on beside it, one compaction at a time.

    `every`: all that was removed goes, however little it is; else segments with enough of it. `go_on` is called between
    the steps and ends the compaction by raising. `StorageFull`: no room to move rows to; what was not moved is as it
    was. `StoreFailed` names the segment and row of a damaged vector; the store writes no more then.
    """
    before = _bytes(disk.path)
    with disk.appending() as segments, disk.read() as connection:
        chosen = _choose(connection, segments, every=every)
        for number in chosen:
            segments.seal(number)
    rows = 0
    for number, (slots, live) in chosen.items():
        progress(f"segment {number}: {slots - live} of {slots} rows were removed, {live} move")
        rows += _empty(disk, number, slots, go_on)
    if every:
        with disk.appending() as segments:
            segments.trim()
    go_on()
    disk.release_removed()
    progress("merging the index of words")
    _merge_words(disk, go_on)
    go_on()
    progress("rebuilding the database")
    left = rebuild(disk.database, disk.path)
    return Compacted(rows, len(chosen), before, _bytes(disk.path), left)


# ------------------------------------------------------------------------------------------------------ segments


def _counts(connection: apsw.Connection) -> dict[int, tuple[int, int]]:
    """Committed rows of each segment, and how many of them live."""
    statement = (
        "SELECT segment, slots, (SELECT count(*) FROM vectors WHERE vectors.segment = segments.segment)"
        " FROM segments ORDER BY segment"
    )
    return {segment: (slots, live) for segment, slots, live in sql.rows(connection, statement)}


def _has_much_dead(slots: int, live: int) -> bool:
    return slots - live > DEAD_SHARE * slots


def _choose(connection: apsw.Connection, segments: Segments, *, every: bool) -> dict[int, tuple[int, int]]:
    """The segments to be emptied: their rows and how many live. While nobody appends."""
    found = _counts(connection)
    if not every:
        return {number: counts for number, counts in found.items() if _has_much_dead(*counts)}
    # What was appended and not committed is dead too: its content was removed before it was indexed.
    counts = {number: (state.slots, found.get(number, (0, 0))[1]) for number, state in segments.states().items()}
    return {number: (slots, live) for number, (slots, live) in counts.items() if live < slots}


def _empty(disk: Disk, number: int, slots: int, go_on: Callable[[], None]) -> int:
    """Move what lives in a sealed segment of `slots` rows and delete its file; how many rows went with it."""
    moved = 0
    while True:
        go_on()
        with disk.appending() as segments:
            if number not in segments.states():  # cleared meanwhile
                return 0
            count, is_empty = _move_some(disk, segments, number)
            moved += count
            if is_empty:
                segments.remove(number)
                return slots - moved


def _move_some(disk: Disk, segments: Segments, number: int) -> tuple[int, bool]:
    """How many rows moved, and whether they were the last and the segment is forgotten."""
    width = segments.states()[number].width
    with disk.read() as connection:
        rows = _rows(connection, number, max(1, min(MOVE_ROWS, MOVE_BYTES // (4 * width))))
    copies: list[Location] = []
    if rows:
        copies = segments.append(segments.read_checked([row.location for row in rows]))
        segments.sync()
    return disk.write(lambda connection, changes: _commit(connection, changes, number, width, rows, copies)).result()


def _rows(connection: apsw.Connection, number: int, limit: int) -> list[_Row]:
    statement = "SELECT vector_key, purpose, subject_key, slot, crc FROM vectors WHERE segment = ? LIMIT ?"
    return [
        _Row(vector_key, purpose, subject_key, Location(number, slot, crc))
        for vector_key, purpose, subject_key, slot, crc in sql.rows(connection, statement, (number, limit))
    ]


def _commit(
    connection: apsw.Connection,
    changes: Changes,
    number: int,
    width: int,
    rows: list[_Row],
    copies: list[Location],
) -> tuple[int, bool]:
    """Point the rows that are still there to their copies, and forget the segment once no row is left in it."""
    vectors.use_slots(connection, width, copies)
    statement = "SELECT vector_key FROM vectors WHERE segment = ? AND vector_key IN (SELECT value FROM json_each(?))"
    alive = {*sql.column(connection, statement, (number, sql.array(row.vector_key for row in rows)))}
    # The copy of a row that was removed meanwhile is a removed row.
    moves = [(row, copy) for row, copy in zip(rows, copies, strict=True) if row.vector_key in alive]
    connection.executemany(
        "UPDATE vectors SET segment = ?, slot = ? WHERE vector_key = ?",
        [(copy.segment, copy.slot, row.vector_key) for row, copy in moves],
    )
    for purpose in {row.purpose for row, _ in moves}:
        own = [(row.subject_key, copy) for row, copy in moves if row.purpose == purpose]
        changes.moved.append(MovedVectors(purpose, width, [key for key, _ in own], [copy for _, copy in own]))
    is_empty = not sql.value(connection, "SELECT EXISTS (SELECT 1 FROM vectors WHERE segment = ?)", (number,))
    if is_empty:
        connection.execute("DELETE FROM segments WHERE segment = ?", (number,))
    return len(moves), is_empty


# ------------------------------------------------------------------------------------------------------ words, files


def _merge_words(disk: Disk, go_on: Callable[[], None]) -> None:
    """Merge all parts of the index into one, which leaves out what was removed."""
    with disk.read() as connection:
        pages = sql.value(connection, "SELECT count(*) FROM words_data")
    # The first step, negative, has all parts merged, and later ones go on with it. Filing adds new parts meanwhile.
    _merge_step(disk, -MERGE_PAGES)
    for _ in range(1 + 2 * pages // MERGE_PAGES):
        go_on()
        if not _merge_step(disk, MERGE_PAGES):
            return


def _merge_step(disk: Disk, pages: int) -> bool:
    return disk.write(lambda connection, _: _merge(connection, pages)).result()


def _merge(connection: apsw.Connection, pages: int) -> bool:
    """Whether there was something to do: FTS5 itself changes one row in any case."""
    before = connection.total_changes()
    connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes() - before > 1


def _bytes(directory: Path) -> int:
    """Of all files below; those that are deleted meanwhile do not count."""
    total = 0
    for path, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(path, name)).st_size
    return total
