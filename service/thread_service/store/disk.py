"""What a node keeps on disk, opened without its memory: the database and the segments, and how both are changed as one.

`store.Store` is this with the memory that answers searches; a command that works on the directory of a node that does
not run needs no more than this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, TypeVar

import apsw
import numpy as np

from thread_service.errors import StoreFailed
from thread_service.store import sql, vectors
from thread_service.store.changes import Changes
from thread_service.store.code_cache import CodeCache
from thread_service.store.database import Database
from thread_service.store.directory import DataDirectory
from thread_service.store.files import Files, OsFiles
from thread_service.store.segments import Segments

T = TypeVar("T")

SCHEMA = resources("thread_service.store").joinpath("schema.sql").read_text("utf-8")


class Disk:
    """`read` for a consistent snapshot; `write` for one change that is durable when its future is done."""

    def __init__(
        self,
        directory: DataDirectory,
        *,
        files: Files | None = None,
        vfs: str | None = None,
        on_failure: Callable[[StoreFailed], None] | None = None,
    ) -> None:
        self.directory = directory
        self.database = Database(directory.database, schema=SCHEMA, vfs=vfs, on_failure=on_failure)
        self.segments = Segments(directory.vectors, files or OsFiles())
        self._appending = threading.Lock()
        with self.read() as connection:
            self.segments.open(vectors.committed(connection))

    @property
    def path(self) -> Path:
        return self.directory.path

    def read(self) -> AbstractContextManager[apsw.Connection]:
        return self.database.read()

    def write(self, work: Callable[[apsw.Connection, Changes], T], *, is_large: bool = False) -> Future[T]:
        """Run `work` in a transaction; once it is committed its changes are published, then the future is done.

        `is_large`: it may take thousands of statements.
        """
        changes = Changes()

        def run(connection: apsw.Connection) -> T:
            result = work(connection, changes)
            self.look(connection, changes)
            return result

        return self.database.write(run, lambda _: self.publish(changes), is_large=is_large)

    def look(self, connection: apsw.Connection, changes: Changes) -> None:
        """Last in the transaction: what the memory has to know of it; nothing without one."""

    def publish(self, changes: Changes) -> None:
        """Bring the memory up to date with a committed write; nothing to do without one."""

    def release_removed(self) -> None:
        """Let go of what memory and cache hold of removed rows. Here: drop a cache that holds any."""
        cache = CodeCache(self.directory.cache)
        cache.open()
        with self.read() as connection:
            alive = sql.integers(connection, "SELECT vector_key FROM vectors", 1)[0]
        for purpose, width in cache.tables():
            codes = cache.read(purpose, width)
            if codes is None or not np.isin(codes.vector_keys, alive).all():
                cache.clear()
                return

    @contextmanager
    def appending(self) -> Iterator[Segments]:
        """From the append of vectors to their commit: nothing is cleared in between, and rows whose commit failed are
        free space again. A segment that cannot be written stops the whole store."""
        with self._appending:
            try:
                yield self.segments
            except StoreFailed as error:
                self.database.fail(error)
                raise
            except BaseException:
                with self.read() as connection:
                    self.segments.rollback(vectors.committed(connection))
                raise

    def still(self) -> AbstractContextManager[Any]:
        """While it is held nobody appends to a segment and no segment goes: what lies there is what is committed."""
        return self._appending

    def close(self) -> None:
        self.database.close()
        self.segments.close()
        self.directory.close()
