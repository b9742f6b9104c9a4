"""The store of one node: its directory, database, segments and resident memory, opened and closed as one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import apsw

from thread_kernels import Engine
from thread_service.errors import StoreFailed
from thread_service.store import vectors
from thread_service.store.changes import Changes
from thread_service.store.database import Database
from thread_service.store.directory import DataDirectory
from thread_service.store.files import Files, OsFiles
from thread_service.store.resident import Resident
from thread_service.store.segments import Segments

T = TypeVar("T")

SCHEMA = files("thread_service.store").joinpath("schema.sql").read_text("utf-8")

# In the order of deletion: what refers to others first.
_TABLES = (
    "pending", "set_aside", "unembedded", "relink", "mentions", "names", "relationship_assertions", "assertions",
    "predicate_readers", "relationships", "predicates", "entities", "document_groups", "documents", "vectors",
    "segments", "partitions", "contents", "groups", "owners", "words", "stamp",
)  # fmt: skip


class Store:
    """`read` for a consistent snapshot; `write` for one change that is durable when its future is done."""

    def __init__(
        self,
        directory: DataDirectory,
        engine: Engine,
        *,
        files: Files | None = None,
        vfs: str | None = None,
        on_failure: Callable[[StoreFailed], None] | None = None,
    ) -> None:
        self.directory = directory
        self.database = Database(directory.database, schema=SCHEMA, vfs=vfs, on_failure=on_failure)
        self.segments = Segments(directory.vectors, files or OsFiles())
        self.resident = Resident(engine)
        self._appending = threading.Lock()
        with self.read() as connection:
            self.segments.open(vectors.committed(connection))
            self.resident.load(connection, self.segments)

    @property
    def node_id(self) -> str:
        return self.directory.node_id

    def read(self) -> AbstractContextManager[apsw.Connection]:
        return self.database.read()

    def write(self, work: Callable[[apsw.Connection, Changes], T]) -> Future[T]:
        """Run `work` in a transaction; once it is committed its changes are published, then the future is done."""
        changes = Changes()
        return self.database.write(
            lambda connection: work(connection, changes), publish=lambda _: self.resident.publish(changes)
        )

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

    def clear(self, before: Callable[[apsw.Connection], T]) -> T:
        """Empty everything but the node's id; answers what `before` saw. Blocking."""

        def work(connection: apsw.Connection, changes: Changes) -> T:
            seen = before(connection)
            for table in _TABLES:
                connection.execute(f"DELETE FROM {table}")
            changes.cleared = True
            return seen

        with self.appending() as segments:
            seen = self.write(work).result()
            segments.clear()
        return seen

    def close(self) -> None:
        self.database.close()
        self.resident.close()
        self.segments.close()
        self.directory.close()

    @property
    def path(self) -> Path:
        return self.directory.path
