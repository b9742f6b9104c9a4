"""Callers who wait until what they deposited can be searched."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from thread_service.errors import ThreadError
from thread_service.store import back_links, links, pending
from thread_service.store.store import Store


@dataclass(slots=True, eq=False)
class _Waiter:
    """First for documents (their places in the queue), then for their links; from then on for edges filed up to
    `edges`, and for the first round of names that changed up to `names`."""

    sequences: set[int]
    future: Future[None]
    edges: int | None = None
    names: int | None = None


class Waiting:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self._refusal: ThreadError | None = None

    def add(self, sequences: Iterable[int]) -> Future[None]:
        """Done when these documents are searchable (or failed) and their links and edges are in place, those of the
        first earlier documents that hold their names too: of all of them, unless they are very many.

        It fails with what `fail` and `refuse` are given.
        """
        waiter = _Waiter(set(sequences), Future())
        with self._lock:
            if self._refusal is None:
                self._waiters.append(waiter)
            else:
                waiter.future.set_exception(self._refusal)
        return waiter.future

    @property
    def is_for_names(self) -> bool:
        """Whether somebody waits for nothing but earlier documents that hold new names."""
        with self._lock:
            return any(waiter.names is not None for waiter in self._waiters)

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
            newest_edge, newest_name = pending.newest_unembedded(connection), back_links.newest(connection)
            for waiter in waiters:
                waiter.sequences &= unfinished
                if waiter.sequences:
                    continue
                if waiter.edges is None:
                    waiter.edges = newest_edge
                if waiter.names is None and linked:
                    waiter.names = newest_name
                embedded = not pending.is_unembedded(connection, waiter.edges)
                if embedded and waiter.names is not None and not back_links.is_waiting(connection, waiter.names):
                    self._finish(waiter)

    def _finish(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter not in self._waiters:
                return  # it has been answered with an error meanwhile
            self._waiters.remove(waiter)
        if waiter.future.set_running_or_notify_cancel():
            waiter.future.set_result(None)
