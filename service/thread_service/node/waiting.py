"""Callers who wait until what they deposited can be searched."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from thread_service.errors import ThreadError
from thread_service.store import links, pending
from thread_service.store.store import Store


@dataclass(slots=True, eq=False)
class _Waiter:
    """First for documents (their places in the queue), then for all links, then for edges filed up to `edges`."""

    sequences: set[int]
    future: Future[None]
    edges: int | None = None


class Waiting:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self._refusal: ThreadError | None = None

    def add(self, sequences: Iterable[int]) -> Future[None]:
        """Done when these documents are searchable (or failed) and all their links and edges are in place.

        It fails with what `fail` and `refuse` are given.
        """
        waiter = _Waiter(set(sequences), Future())
        with self._lock:
            if self._refusal is None:
                self._waiters.append(waiter)
            else:
                waiter.future.set_exception(self._refusal)
        return waiter.future

    def fail(self, error: ThreadError) -> None:
        """Answer everybody who waits with an error."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.future.set_running_or_notify_cancel():
                waiter.future.set_exception(error)

    def refuse(self, error: ThreadError) -> None:
        """Answer everybody who waits, and who will, with an error."""
        with self._lock:
            self._refusal = error
        self.fail(error)

    def answer(self, store: Store) -> None:
        """Answer those whose documents, links and edges are done. On the thread that does them."""
        with self._lock:
            waiters = list(self._waiters)
        if not waiters:
            return
        with store.read() as connection:
            unfinished = pending.unfinished(connection, {key for waiter in waiters for key in waiter.sequences})
            linked = not links.waiting(connection, 1)
            newest_edge = pending.last_unembedded(connection)
            oldest = next(iter(pending.unembedded(connection, 1)), None)
        for waiter in waiters:
            waiter.sequences &= unfinished
            if not waiter.sequences and waiter.edges is None:
                waiter.edges = newest_edge
            if waiter.edges is not None and linked and (oldest is None or oldest.sequence > waiter.edges):
                self._finish(waiter)

    def _finish(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter not in self._waiters:
                return  # it has been answered with an error meanwhile
            self._waiters.remove(waiter)
        if waiter.future.set_running_or_notify_cancel():
            waiter.future.set_result(None)
