"""A database of an earlier version is brought up to date as a whole, with all that waited in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from faults import Faults, FaultyVfs
from opened_store import opened_store

from thread_service.errors import StoreFailed
from thread_service.store import contents
from thread_service.store.database import Database
from thread_service.store.disk import SCHEMA
from thread_service.store.migrations import NEWEST, schema_version

ROWS = np.random.default_rng(0).standard_normal((12, 1024), dtype="<f4")
WAITING = [(key, ROWS[key - 1].tobytes()) for key in range(2, 13, 2)]
"""Every other text brought its vector."""

# As version 3 had it.
_PARTITIONS = """
CREATE TABLE partitions (                 -- keys of one content are consecutive, in order
    partition_key INTEGER PRIMARY KEY AUTOINCREMENT,
    content_key INTEGER NOT NULL REFERENCES contents ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    text TEXT NOT NULL,
    brought INTEGER NOT NULL CHECK (brought IN (0, 1)),   -- the caller brought the vector
    vector BLOB,                          -- a brought vector (little-endian float32) until it lies in a segment
    UNIQUE (content_key, ordinal)
) STRICT;
"""


@pytest.fixture
def version_3(tmp_path: Path) -> Path:
    """A database with a content that waits, of which every other text brought its vector, and one that is filed."""
    with opened_store(tmp_path / "data") as opened:
        texts = [f"text {number}" for number in range(12)]
        vectors = [row if number % 2 else None for number, row in enumerate(ROWS)]
        opened.write(lambda c, _: contents.create(c, b"waits", "text", texts, vectors))
        filed = opened.write(lambda c, _: contents.create(c, b"filed", "text", ["filed", "filed too"], [None, ROWS[0]]))
        opened.write(lambda c, changes: contents.mark_ready(c, filed, changes))
        gone = opened.write(lambda c, _: contents.create(c, b"gone", "text", ["gone"], [None]))
        opened.write(lambda c, _: c.execute("DELETE FROM contents WHERE content_key = ?", (gone,)) and None)
        path = shutil.copy(opened.store.directory.database, tmp_path / "old.db")
        shutil.copy(f"{opened.store.directory.database}-wal", tmp_path / "old.db-wal")
    with apsw.Connection(str(path)) as connection:
        connection.execute(
            "CREATE TEMP TABLE waiting AS SELECT * FROM partitions LEFT JOIN brought_vectors USING (partition_key);"
            f"DROP TABLE brought_vectors; DROP TABLE partitions; {_PARTITIONS}"
            "INSERT INTO partitions SELECT * FROM waiting;"
            "UPDATE sqlite_sequence SET seq = 15 WHERE name = 'partitions'"
        )
        connection.pragma("user_version", 3)
    connection.close()
    return Path(path)


def rows(database: Database, statement: str) -> list[Any]:
    with database.read() as connection:
        return connection.execute(statement).fetchall()


def check(database: Database) -> None:
    assert rows(database, "SELECT * FROM brought_vectors") == WAITING
    texts = [(key, 1, key - 1, f"text {key - 1}", 1 - key % 2) for key in range(1, 13)]
    assert rows(database, "SELECT * FROM partitions") == [*texts, (13, 2, 0, "filed", 0), (14, 2, 1, "filed too", 1)]
    assert rows(database, "SELECT seq FROM sqlite_sequence WHERE name = 'partitions'") == [(15,)]
    with database.read() as connection:
        assert schema_version(connection) == NEWEST
        assert connection.pragma("integrity_check") == "ok"
        assert connection.pragma("foreign_key_check") is None


def shape(path: Path) -> list[Any]:
    """Every table's columns and foreign keys."""
    with apsw.Connection(str(path)) as connection:
        found = connection.execute(
            'SELECT s.name, c.name, c.type, "notnull", pk FROM sqlite_schema s, pragma_table_xinfo(s.name) c'
            ' UNION ALL SELECT s.name, f."from", f."table", f.seq, on_delete'
            " FROM sqlite_schema s, pragma_foreign_key_list(s.name) f ORDER BY 1, 2, 3"
        ).fetchall()
    connection.close()
    return found


def test_brought_vectors_that_wait_in_a_database_of_version_3_still_wait(version_3: Path, tmp_path: Path) -> None:
    Database(tmp_path / "new.db", schema=SCHEMA).close()
    assert shape(version_3) != shape(tmp_path / "new.db")
    database = Database(version_3, schema=SCHEMA)
    check(database)
    database.close()
    assert shape(version_3) == shape(tmp_path / "new.db")


def test_a_power_loss_during_a_migration_leaves_the_one_version_or_the_other(version_3: Path, tmp_path: Path) -> None:
    left = set[int]()
    done = False
    for operations in range(1, 1_000):
        disk = tmp_path / f"disk {operations}"
        disk.mkdir()
        shutil.copy(version_3, disk / "thread.db")
        faults = Faults(disk)
        vfs = FaultyVfs("migrating", faults)
        faults.cut_power(operations)
        try:
            Database(disk / "thread.db", schema=SCHEMA, vfs="migrating").close()
            done = faults.powered
        except (StoreFailed, OSError):
            pass
        finally:
            vfs.unregister()
        for seed in (None, operations):
            copy = tmp_path / f"copy {operations} {seed}"
            faults.survivors(copy, seed)
            with apsw.Connection(str(copy / "thread.db")) as connection:
                left.add(schema_version(connection))
            connection.close()
            database = Database(copy / "thread.db", schema=SCHEMA)
            check(database)
            database.close()
        if done:
            break
    assert done
    assert left == {3, NEWEST}
