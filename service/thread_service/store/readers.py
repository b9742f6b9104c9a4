"""Connections that only read: a snapshot each, as many as there are threads reading, never waiting for the writer.

A connection belongs to a thread for the length of one `read()` and then goes back to the pool, so threads that come
and go leave nothing open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from thread_service.errors import StoreFailed

KEPT = 32
"""Idle connections kept open."""
CLOSE_SECONDS = 5.0
"""How long `close` waits for interrupted reads to end."""


class Readers:
    """`connect` opens a read-only connection. `on_damage` gets the StoreFailed of a read that met a damaged page."""

    def __init__(
        self, connect: Callable[[], apsw.Connection], on_damage: Callable[[StoreFailed], None] = lambda failure: None
    ) -> None:
        self._connect = connect
        self._on_damage = on_damage
        self._idle: list[apsw.Connection] = []
        self._active: set[apsw.Connection] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._local = threading.local()

    @contextmanager
    def read(self) -> Iterator[apsw.Connection]:
        """One read transaction; its snapshot is taken by the first statement. Inside another `read()` of the same
        thread: that one.

        `StoreFailed`: the store is closed, or SQLite met a damaged page or an I/O error.
        """
        outer: apsw.Connection | None = getattr(self._local, "connection", None)
        if outer is not None:
            yield outer
            return
        try:
            connection = self._take()
            self._local.connection = connection
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                self._local.connection = None
                self._give_back(connection)
        except (apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.CantOpenError) as error:
            failure = StoreFailed(f"the database cannot be read: {error}; run `thread verify`")
            if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
                self._on_damage(failure)
            raise failure from error
        except apsw.InterruptError as error:
            raise StoreFailed("the store is closing") from error

    def close(self) -> None:
        """Refuse new reads, interrupt the running ones and close every connection that comes back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._active:
                connection.interrupt()
            self._changed.wait_for(lambda: not self._active, CLOSE_SECONDS)
        for connection in idle:
            connection.close()

    def _take(self) -> apsw.Connection:
        with self._changed:
            self._refuse_if_closed()
            if self._idle:
                connection = self._idle.pop()
                self._active.add(connection)
                return connection
        connection = self._connect()
        try:
            with self._changed:
                self._refuse_if_closed()
                self._active.add(connection)
        except StoreFailed:
            connection.close()
            raise
        return connection

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")

    def _give_back(self, connection: apsw.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            # A statement somebody left unfinished still holds its snapshot; the next reader would see the past.
            reusable = connection.txn_state("main") == apsw.SQLITE_TXN_NONE
        except apsw.Error:
            reusable = False
        with self._changed:
            if reusable and not self._closed and len(self._idle) < KEPT:
                self._idle.append(connection)
                self._active.discard(connection)
                return
        connection.close(force=True)
        with self._changed:
            self._active.discard(connection)
            self._changed.notify_all()
