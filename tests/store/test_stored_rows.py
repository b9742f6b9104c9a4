"""What was known of the rows is taken where it is still right, and read anew where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pytest
from opened_store import opened_store

from thread_service.store import stored_rows
from thread_service.store.places import unpacked
from thread_service.store.stored_rows import CHUNK, by_table, snapshot


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    """The schema, with three chunks of rows in two tables and a gap of many chunks before the last."""
    with opened_store(tmp_path) as opened:
        path = opened.store.directory.database
    connection = apsw.Connection(str(path))
    keys = [*range(1, 2 * CHUNK + 100, 7), *range(50 * CHUNK, 50 * CHUNK + 100)]
    rows = (
        (key, ("caller", "model")[key % 3 == 0], (64, 1024)[key % 3 == 0], 2 * key, key // 9 + 1, key % 9, key * 31)
        for key in keys
    )
    with connection:
        connection.executemany("INSERT INTO vectors VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    yield connection
    connection.close()


def test_rows_come_by_table_in_order_of_their_keys(connection: apsw.Connection) -> None:
    tables = by_table(snapshot(connection))
    assert tables.keys() == {("caller", 64), ("model", 1024)}
    rows = tables["model", 1024]
    found = connection.execute(
        "SELECT vector_key, subject_key, segment, slot, crc FROM vectors WHERE purpose = 'model' ORDER BY vector_key"
    ).fetchall()
    columns = rows.vector_keys, rows.subject_keys, *unpacked(rows.places), rows.crcs
    assert [*zip(*(column.tolist() for column in columns), strict=True)] == found
    assert [(row.segment, row.slot, row.crc) for row in rows[:3].locations()] == [row[2:] for row in found[:3]]


@pytest.mark.parametrize(
    ("change", "chunks_read"),
    [
        ("SELECT 1", 0),
        ("INSERT INTO vectors SELECT vector_key + 1000000, purpose, width, 1, 1, 1, 1 FROM vectors LIMIT 1", 1),
        ("DELETE FROM vectors WHERE vector_key = 8", 1),
        ("DELETE FROM vectors WHERE vector_key % 50 = 1", 3),
        ("UPDATE vectors SET slot = slot + 1 WHERE vector_key = 8", 1),
        ("UPDATE vectors SET segment = segment + 1 WHERE vector_key = 8", 1),
        ("UPDATE vectors SET slot = CASE slot WHEN 1 THEN 2 ELSE 1 END WHERE vector_key IN (1, 29)", 1),
        ("UPDATE vectors SET crc = crc + 1 WHERE vector_key = 8", 1),  # of another history
        ("UPDATE vectors SET subject_key = subject_key + 1 WHERE vector_key = 8", 1),
        ("DELETE FROM vectors", 0),
    ],
)
def test_only_what_differs_from_what_was_known_is_read(
    change: str, chunks_read: int, connection: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = snapshot(connection)
    connection.execute(change)
    wanted = snapshot(connection)
    read: list[int] = []
    actual = stored_rows._read

    def counted(connection: apsw.Connection, start: int, stop: int) -> np.ndarray:
        read.append(start)
        return actual(connection, start, stop)

    monkeypatch.setattr(stored_rows, "_read", counted)
    assert np.array_equal(snapshot(connection, known), wanted)
    assert len(read) == chunks_read
    assert np.array_equal(snapshot(connection, known[:, :0]), wanted)
