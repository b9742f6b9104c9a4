"""How SQLite is opened, and what its errors mean for the store.

No memory mapping: through a map a bad sector is a SIGBUS that ends the process, through read() it is an error.
Temporary tables and journals stay in memory: what a caller filed does not go to a shared directory, nor wait for room
there.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import apsw

from thread_service.errors import Busy, StorageFull, StoreFailed, ThreadError

BUSY_MILLISECONDS = 5_000
"""How long to wait for a lock some other program holds; within the node nobody waits for one."""
LOG_BYTES = 64 << 20
"""What the write-ahead log shrinks back to after it has grown."""
_WRITER_CACHE_KIB = 64 << 10
_READER_CACHE_KIB = 8 << 10
_STATEMENTS = 200


def connect_writer(path: Path, vfs: str | None) -> apsw.Connection:
    """The writing connection: WAL, every commit fsynced, removed content overwritten with zeros.

    The caller checkpoints: SQLite's own checkpoint after a commit swallows a failed fsync.
    """
    connection = _connect(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, vfs)
    mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        connection.close()
        raise StoreFailed(f"{path}: the file system cannot hold a write-ahead log (journal mode {mode})")
    connection.pragma("synchronous", "full")
    connection.pragma("secure_delete", "on")
    connection.pragma("cache_size", -_WRITER_CACHE_KIB)
    connection.pragma("journal_size_limit", LOG_BYTES)
    connection.wal_autocheckpoint(0)
    return connection


def connect_reader(path: Path, vfs: str | None) -> apsw.Connection:
    connection = _connect(path, apsw.SQLITE_OPEN_READONLY, vfs)
    connection.pragma("query_only", "on")
    connection.pragma("cache_size", -_READER_CACHE_KIB)
    return connection


def connect_at_rest(path: Path) -> apsw.Connection:
    """For reading a database that no process has open: nothing is changed, and unless a crash has left a log, nothing
    is created beside it. The caller sees to it that nobody opens it meanwhile.
    """
    if path.with_name(f"{path.name}-wal").exists():
        return connect_reader(path, None)
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return _connect(f"file:{quote(str(path))}?immutable=1", flags, None)


def _connect(path: Path | str, flags: int, vfs: str | None) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=_STATEMENTS)
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    connection.pragma("foreign_keys", "on")
    connection.pragma("temp_store", "memory")
    connection.pragma("cell_size_check", "on")
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
    return connection


def is_full(error: BaseException) -> bool:
    """No room. Growing the shared-memory index has an I/O code of its own for it; that file need not be durable."""
    return isinstance(error, apsw.FullError) or (
        isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE
    )


def is_fatal(error: BaseException) -> bool:
    """The medium or the file can no longer be trusted: write no more."""
    return not is_full(error) and isinstance(
        error, (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.ReadOnlyError)
    )


def translate(error: BaseException, path: Path) -> BaseException:
    """An error of SQLite as a new one of ours, with its cause; anything else as it is."""
    ours: ThreadError
    if is_full(error):
        ours = StorageFull("the disk is full; nothing was written")
    elif is_fatal(error) or isinstance(error, apsw.CantOpenError):
        ours = StoreFailed(f"{path}: {error}")
    elif isinstance(error, (apsw.BusyError, apsw.LockedError)):
        ours = Busy("another program holds a lock on the database; nothing was written", retry_after_seconds=1)
    else:
        return error
    ours.__cause__ = error
    return ours
