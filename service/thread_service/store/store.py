"""The store of one node: what is on its disk and what is in its memory, opened and closed as one."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from thread_kernels import Engine
from thread_service.errors import NotReady, StoreFailed
from thread_service.store import backup, compaction, graph_cache, sql, verification
from thread_service.store.changes import Changes
from thread_service.store.code_cache import CacheStats, CodeCache
from thread_service.store.code_keeper import CodeKeeper
from thread_service.store.compaction import Compacted, Progress
from thread_service.store.compactor import Compactor
from thread_service.store.directory import DataDirectory
from thread_service.store.disk import Disk
from thread_service.store.files import Files
from thread_service.store.loading import give_memory_back, load
from thread_service.store.resident import Resident
from thread_service.store.scrub import Scrub

T = TypeVar("T")

_log = logging.getLogger(__name__)

LONGEST_REST_SECONDS = 1.0
"""Of a verification, which rests after each slice as long as that took."""

# In the order of deletion: what refers to others first.
_TABLES = (
    "pending", "set_aside", "unembedded", "unextracted", "relink", "changed_names", "mentions", "names",
    "relationship_assertions", "relationship_counts", "assertions", "entity_counts", "entity_readers",
    "predicate_readers", "relationships", "predicates", "entity_words", "entities", "group_tags", "document_groups",
    "documents", "vectors", "segments", "brought_vectors", "partitions", "contents", "groups", "owners", "words",
    "stamp", "next_stamp",
)  # fmt: skip


class Store(Disk):
    """A disk whose committed changes are published to the memory that answers searches."""

    def __init__(
        self,
        directory: DataDirectory,
        engine: Engine,
        *,
        files: Files | None = None,
        vfs: str | None = None,
        on_failure: Callable[[StoreFailed], None] | None = None,
    ) -> None:
        super().__init__(directory, files=files, vfs=vfs, on_failure=on_failure)
        self.resident = Resident(engine, self.segments)
        cache = self._cache = CodeCache(directory.cache)
        cache.open()
        with self.read() as connection:
            loaded = load(self.resident, connection, self.segments, cache)
        self.restored_rows = loaded.restored_rows
        """Rows of each table whose codes the start took from the cache."""
        self._keeper = CodeKeeper(cache, self.resident, self.read, loaded.restored)
        self._scrub = Scrub(
            self.read,
            self.segments,
            checked=loaded.checked,
            last_vector_key=loaded.last_vector_key,
            on_damage=self.database.fail,
        )
        self._compactor = Compactor(self)
        self._closing = threading.Event()
        give_memory_back()
        self._keeper.start()
        self._scrub.start()
        self._compactor.start()

    @property
    def node_id(self) -> str:
        return self.directory.node_id

    def look(self, connection: apsw.Connection, changes: Changes) -> None:
        graph_cache.look(connection, changes)
        changes.has_free_pages = compaction.free_pages(connection) > 0

    def publish(self, changes: Changes) -> None:
        self.resident.publish(changes)
        if changes.has_removals or changes.has_free_pages:
            self._compactor.nudge()

    def compact(self, progress: Progress) -> Compacted:
        """Let go of everything that was removed: see `Compactor.compact`. Blocking."""
        return self._compactor.compact(progress)

    def stop_compacting(self) -> None:
        """Before `close`, so that nobody waits for a compaction."""
        self._compactor.stop()

    def verify(self, *, full: bool, progress: verification.Progress) -> dict[str, Any]:
        """Whether everything is whole and of one piece: see `verification.verify`. Blocking, beside everything else.

        NotReady when the node stops meanwhile.
        """
        place = verification.Place(self.path, self.read, self.still, self._rest, self._in_memory)
        return verification.verify(place, full=full, progress=progress)

    def back_up(self, target: Path, progress: verification.Progress) -> dict[str, Any]:
        """Put a backup into a directory: see `backup.take`. Blocking, beside everything else but compaction.

        NotReady when the node stops meanwhile.
        """
        source = backup.Source(self.node_id, self.path, self.read, self.segments.is_full, self._refuse_when_closing)
        with self._compactor.paused():
            taken = backup.take(source, target, progress)
        if taken["damage"]:
            _log.error("%s is set aside, its database is damaged: %s", taken["backup"], taken["damage"][0])
        return taken

    def stop_verifying(self) -> None:
        """Before `close`, so that nobody waits for a verification or a backup."""
        self._closing.set()

    def _rest(self, seconds: float) -> None:
        if self._closing.wait(min(seconds, LONGEST_REST_SECONDS)):
            raise NotReady("The node is stopping; the verification ended early.")

    def _refuse_when_closing(self) -> None:
        if self._closing.is_set():
            raise NotReady("The node is stopping; the backup ended early and nothing is left of it.")

    def _in_memory(self) -> Iterable[tuple[str, int, int]]:
        """What memory and database have of the same, while nothing is written."""

        def count(connection: apsw.Connection) -> list[tuple[str, int, int]]:
            with self.resident.lock:
                documents = self.resident.document_count
                stats = [table.table.stats() for table in self.resident.tables.values()]
            return [
                ("documents", documents, sql.value(connection, "SELECT count(*) FROM documents")),
                (
                    "vectors",
                    sum(each.rows - each.dead_rows for each in stats),
                    sql.value(connection, "SELECT count(*) FROM vectors"),
                ),
            ]

        # A store that has stopped writing can still be verified.
        return [] if self.database.failure else self.database.maintain(count).result()

    def cache_stats(self) -> CacheStats:
        """How the cache of codes stands now."""
        return self._cache.stats()

    def release_removed(self) -> None:
        with self.resident.lock:
            tables = [resident.table for resident in self.resident.tables.values()]
        for table in tables:
            table.compact()
        self._keeper.renew()

    def clear(self, before: Callable[[apsw.Connection], T]) -> T:
        """Empty everything but the node's id; answers what `before` saw. Blocking."""

        def work(connection: apsw.Connection, changes: Changes) -> T:
            seen = before(connection)
            # What triggers count goes as a whole, too.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            try:
                for table in _TABLES:
                    connection.execute(f"DELETE FROM {table}")
            finally:
                connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
            changes.cleared = True
            return seen

        with self.appending() as segments:
            seen = self.write(work).result()
            segments.clear()
        self._keeper.drop()
        return seen

    def close(self) -> None:
        self.stop_verifying()
        self._compactor.stop()
        self.resident.close()  # before the compactor, which may wait for a table that is being trained
        self._compactor.close()
        self._scrub.close()
        self._keeper.close()
        if self.database.failure is None:
            self._keeper.renew()
            with contextlib.suppress(StoreFailed), self.appending() as segments:
                segments.trim()
        super().close()
