"""The journal: one SQLite database, one writer thread, and one fsync for everything that waited for it.

A write is a function of the writing connection. All functions that wait are run in one transaction, each in a savepoint
of its own; after the COMMIT has returned their results are published to the in-memory state, in order, and only then do
their futures resolve. So whatever a future has answered is on the disk, and is visible to readers.

What can go wrong:
- a function raises: it alone is rolled back and its future gets the exception;
- the disk is full: everything in that commit gets `StorageFull`; the next write simply tries again;
- an I/O error, a damaged page (one that a read meets, too) or a failed publication: the outcome on disk or in memory is
  unknown, so the store stops writing for good. A failed fsync is never retried: the kernel may have dropped the pages
  and would report success.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import apsw

from thread_service.errors import Busy, StoreFailed
from thread_service.store.connections import connect_reader, connect_writer, is_fatal, is_full, translate
from thread_service.store.migrations import OLDEST, migrate, schema_version, steps
from thread_service.store.readers import Readers

T = TypeVar("T")

WORKS_PER_COMMIT = 256
QUEUE_LIMIT = 4_096
CHECKPOINT_PAGES = 1_000
"""Pages in the write-ahead log from which they are copied into the database, without waiting for readers."""
TRUNCATE_PAGES = 16_000
"""Pages from which the writer waits for readers, so that the log starts afresh."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """`error`: what the function itself raised. `is_large`: first in its transaction. `alone`: not in a transaction,
    and not with others."""

    work: Callable[[apsw.Connection], Any]
    publish: Callable[[Any], None] | None = None
    is_large: bool = False
    alone: bool = False
    future: Future[Any] = field(default_factory=Future)
    result: Any = None
    error: BaseException | None = None

    def resolve(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Database:
    """The database at `path`, created when missing and brought to the newest schema.

    `on_failure` is called once, on the thread that met it, when the store stops writing for good; it may
    not wait for the store.
    `StoreFailed`: the file cannot be opened, is damaged, of another program or of a newer version.
    """

    def __init__(
        self,
        path: Path,
        *,
        schema: str,
        vfs: str | None = None,
        on_failure: Callable[[StoreFailed], None] | None = None,
    ) -> None:
        self._path = path
        self._on_failure = on_failure
        try:
            self._writer = connect_writer(path, vfs)
            try:
                migrate(self._writer, steps(schema, schema_version(self._writer)), OLDEST)
            except BaseException:
                self._writer.close()
                raise
        except apsw.Error as error:
            raise translate(error, path) from error
        self._readers = Readers(lambda: connect_reader(path, vfs), self.fail)
        self._log_pages = 0
        self._truncate_at = TRUNCATE_PAGES
        self._writer.set_wal_hook(self._note_log)
        self._queue: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._closed = False
        self._failure: StoreFailed | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store has stopped writing for good; None while it writes."""
        return self._failure

    def write(
        self,
        work: Callable[[apsw.Connection], T],
        publish: Callable[[T], None] | None = None,
        *,
        is_large: bool = False,
    ) -> Future[T]:
        """Run `work` in a transaction; `publish(result)` on the writer thread once it is durable; then resolve.

        `work` may only use the connection it is given, must read its cursors to the end and must not begin or end
        transactions. Neither may wait for another write. A future cancelled before its turn is not run. `is_large`: it
        may take thousands of statements, so a transaction begins with it.
        `Busy`: the queue is full, nothing was taken. `StoreFailed`: the store has stopped writing, or is closed.
        """
        return self._enqueue(_Job(work, publish, is_large))

    def maintain(self, work: Callable[[apsw.Connection], T]) -> Future[T]:
        """Run `work` alone on the writer thread, outside any transaction: a truncating checkpoint, VACUUM.

        (VACUUM wants `temp_store` set to file first, or it copies the database into memory.)
        """
        return self._enqueue(_Job(work, alone=True))

    def read(self) -> AbstractContextManager[apsw.Connection]:
        """One read transaction on a connection of this thread; nested, the outer one. Not across an `await`."""
        return self._readers.read()

    def fail(self, error: StoreFailed) -> None:
        """Stop writing for good, because something the database relies on has failed (a segment's fsync)."""
        with self._changed:
            first = self._failure is None
            if first:
                self._failure = error
        if not first:
            return
        _log.critical("the store has stopped writing: %s", error)
        if self._on_failure is not None:
            try:
                self._on_failure(error)
            except Exception:
                _log.exception("the failure handler failed")

    def close(self) -> None:
        """Run what is queued, then close every connection. May be called again, also when it was interrupted."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._closed:
            return
        self._readers.close()
        # Last of all, so that it leaves one clean file without a log. After a failure the log stays as it is.
        if self._failure is not None:
            self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        try:
            self._writer.close()
        except apsw.Error as error:
            # Everything is committed: the next start finds it in the log.
            _log.warning("%s: the log could not be taken into the database: %s", self._path, error)
        self._closed = True

    def _enqueue(self, job: _Job) -> Future[Any]:
        with self._changed:
            if self._failure is not None:
                raise _stopped(self._failure)
            if self._closing:
                raise StoreFailed("the store is closed")
            if len(self._queue) >= QUEUE_LIMIT:
                raise Busy("too many writes are waiting; nothing was taken", retry_after_seconds=1)
            self._queue.append(job)
            self._changed.notify_all()
        return job.future

    def _run(self) -> None:
        while jobs := self._next():
            running = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if not running:
                continue
            if self._failure is not None:
                for job in running:
                    job.error = _stopped(self._failure)
            elif running[0].alone:
                self._alone(running[0])
            else:
                self._commit(running)
            for job in running:
                job.resolve()
            if self._failure is None:
                self._checkpoint()

    def _next(self) -> list[_Job]:
        """What goes into the next transaction; empty when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            jobs: list[_Job] = []
            while self._queue and len(jobs) < WORKS_PER_COMMIT:
                if jobs and (self._queue[0].alone or self._queue[0].is_large):
                    break
                jobs.append(self._queue.popleft())
                if jobs[-1].alone:
                    break
            return jobs

    def _commit(self, jobs: list[_Job]) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for number, job in enumerate(jobs):
                self._attempt(job, is_first=number == 0)
            self._writer.execute("COMMIT")
        except BaseException as error:
            self._abandon(jobs, error)
            return
        for job in jobs:
            if job.error is not None:
                continue
            if self._failure is not None:
                job.error = _stopped(self._failure)
            elif job.publish is not None:
                try:
                    job.publish(job.result)
                except BaseException as error:
                    _log.exception("publishing a committed write failed")
                    job.error = StoreFailed("a write was stored but could not be published; restart the node")
                    job.error.__cause__ = error
                    self.fail(job.error)

    def _attempt(self, job: _Job, *, is_first: bool) -> None:
        """One function, which can be undone. Raises when the whole transaction is lost, not only this function's part.

        The first needs no savepoint. Inside one, every statement that could fail half-way costs time in proportion to
        what the savepoint has seen (SQLite's statement journal in memory is a list): 10,000 of them took 20 seconds.
        """
        writer = self._writer
        if not is_first:
            writer.execute("SAVEPOINT work")
        try:
            job.result = job.work(writer)
            # A deferred foreign key would otherwise fail the COMMIT of everybody.
            if writer.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
                raise apsw.ConstraintError("FOREIGN KEY constraint failed")
        except BaseException as error:
            if is_full(error) or is_fatal(error) or not writer.in_transaction:
                raise
            job.error = error
            writer.execute("ROLLBACK" if is_first else "ROLLBACK TO work")
            if is_first:
                writer.execute("BEGIN IMMEDIATE")
        if not writer.in_transaction:
            failure = StoreFailed("a write ended the transaction it ran in; restart the node")
            self.fail(failure)
            raise failure
        if not is_first:
            writer.execute("RELEASE work")

    def _abandon(self, jobs: list[_Job], error: BaseException) -> None:
        """Nothing of this transaction stays; SQLite may have rolled it back already."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except apsw.Error as second:
            error = second if is_fatal(second) else error
        for job in jobs:
            job.error = job.error or translate(error, self._path)
        if is_fatal(error):
            self.fail(StoreFailed(f"{self._path}: {error}"))

    def _alone(self, job: _Job) -> None:
        try:
            job.result = job.work(self._writer)
            if self._writer.in_transaction:
                raise RuntimeError("maintenance left a transaction open")
        except BaseException as error:
            self._abandon([job], error)

    def _note_log(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Copy the log into the database when it has grown; a full disk puts it off, for the log holds everything."""
        if self._log_pages < CHECKPOINT_PAGES:
            return
        wait = self._log_pages >= self._truncate_at
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if wait else apsw.SQLITE_CHECKPOINT_PASSIVE
        try:
            pages, copied = self._writer.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            self._truncate_at = 2 * self._log_pages
        except apsw.Error as error:
            if is_full(error):
                _log.warning("no room to move the write-ahead log into the database; it grows until there is")
                return
            self.fail(StoreFailed(f"{self._path}: {error}"))
        else:
            if pages == copied:
                self._log_pages = 0
                self._truncate_at = TRUNCATE_PAGES


def _stopped(failure: StoreFailed) -> StoreFailed:
    """A new exception each time: one object raised on many threads would collect all their tracebacks."""
    return StoreFailed(f"the store has stopped writing: {failure}")
