"""Rebuilding the database file: only what is live is written, and free pages go back to the file system.

SQLite copies the database beside it and then through the write-ahead log, so there must be room for it twice. Reading
goes on meanwhile, writing waits: 60,000 passages (100 MB) took 0.4 s.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from thread_service.errors import StorageFull
from thread_service.store.database import Database

COPIES = 2
"""Room that is needed, in times of what is live: the copy, and the log through which it comes back."""
TRUNCATIONS = 3
"""How often the log is tried to be emptied: readers of the past are in its way, for as long as they read."""

_NO_ROOM = "the database was not rebuilt, so some removed text may still be in it"
_temporary = threading.Lock()


def rebuild(database: Database, directory: Path) -> str:
    """Rebuild the database and empty its log; what could not be done and why, empty for nothing. Blocking.

    `directory`: where the copy goes, for it holds what callers filed.
    """
    try:
        needed, free = database.maintain(lambda connection: _rebuild(connection, directory)).result()
    except StorageFull:
        return f"{_NO_ROOM}: the disk is full"
    if needed > free:
        return f"{_NO_ROOM}: that takes {needed // 1_000_000 + 1} MB of disk, {free // 1_000_000} MB are free"
    for _ in range(TRUNCATIONS):
        if database.maintain(_truncate_log).result():
            return ""
    return "the write-ahead log was not emptied, because it is being read; some removed text may still be in it"


def _rebuild(connection: apsw.Connection, directory: Path) -> tuple[int, int]:
    """Bytes needed and bytes free; when there are enough it was done."""
    numbers = [connection.pragma(name) for name in ("page_count", "freelist_count", "page_size")]
    pages, unused, size = (number for number in numbers if isinstance(number, int))
    needed, free = COPIES * (pages - unused) * size, shutil.disk_usage(directory).free
    if needed <= free:
        with _temporary_files_in(connection, directory):
            connection.execute("VACUUM")
    return needed, free


def _truncate_log(connection: apsw.Connection) -> bool:
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    return True


@contextmanager
def _temporary_files_in(connection: apsw.Connection, directory: Path) -> Iterator[None]:
    # Where they are otherwise, memory, there may be no room for a whole database. The directory is the process's.
    with _temporary:
        connection.pragma("temp_store", "file")
        connection.pragma("temp_store_directory", str(directory))
        try:
            yield
        finally:
            connection.pragma("temp_store_directory", "")
            connection.pragma("temp_store", "memory")
