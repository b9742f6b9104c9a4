"""Linking earlier documents again when names came or went: on a thread of its own, round by round, behind everything
else.

While callers ask for something it takes no more than a share of one processor: it rests in proportion after each text
that it has searched while somebody asks, and after each slice of time anyway. What it writes at once was found in one
such slice, so deposits wait for nothing longer. It does not rest when nobody asks for anything, nor while somebody
waits for the first round of a new name. While documents are indexed it begins with the names of several batches at
once, so a text that holds some of each is searched once.

It is driven by rows in the store (`changed_names`), so it goes on where it was after any crash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import apsw

from thread_service.errors import Busy, StorageFull, StoreFailed, ThreadError
from thread_service.node.linked import Linked
from thread_service.node.work import Work
from thread_service.store import back_links, links
from thread_service.store.changes import Changes
from thread_service.store.store import Store

log = logging.getLogger(__name__)

SHARE = 0.25
"""Of one processor, at most, while callers ask for something."""
SLICE_SECONDS = 0.01
"""Of processor time: how long it looks for names before it writes what it found, while callers ask for something."""
LONG_SLICE_SECONDS = 0.05
"""The same while nobody does."""
GATHER_SECONDS = 10.0
"""How long it lets names come together while documents are indexed and nobody waits for a round."""
RETRY_SECONDS = 0.5
"""How soon a round that could not go on (disk full) is tried again."""


class BackLinking:
    """`by_text` False: only documents' own names link. `is_indexing`: whether documents are on their way to be indexed.
    `is_awaited`: whether somebody waits for a round; `progressed` is called after each."""

    def __init__(
        self,
        store: Store,
        work: Work,
        linked: Linked,
        *,
        by_text: bool,
        is_indexing: Callable[[], bool],
        is_awaited: Callable[[], bool],
        progressed: Callable[[], None],
        share: float = SHARE,
    ) -> None:
        self._store = store
        self._linked = linked
        self._by_text = by_text
        self._is_indexing = is_indexing
        self._is_awaited = is_awaited
        self._progressed = progressed
        self._closing = threading.Event()
        self._pace = _Pace(work, is_awaited, share, self._closing)
        self._nudged = threading.Event()
        self._nudged.set()
        self._thread = threading.Thread(target=self._run, name="back-linking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        """A name may have changed, somebody may wait for it, or nothing is indexed any more."""
        self._nudged.set()

    def stop(self) -> None:
        """End the round in hand early and begin no further one; what is left is taken up at the next start."""
        self._closing.set()
        self._nudged.set()

    def join(self) -> None:
        """After `stop`."""
        self._thread.join()

    def _run(self) -> None:
        is_retry = False
        while not self._closing.is_set():
            self._nudged.wait()
            self._nudged.clear()
            if not is_retry:
                self._gather()
            is_retry = False
            try:
                while not self._closing.is_set() and self._round():
                    self._progressed()
            except (Busy, StorageFull) as error:
                log.warning("linking earlier documents waits: %s", error)
                is_retry = self._try_again()
            except StoreFailed:
                if not self._closing.is_set():
                    log.exception("linking earlier documents stopped: the store has failed")
                return
            except Exception:
                log.exception("linking earlier documents failed; it is tried again")
                is_retry = self._try_again()

    def _gather(self) -> None:
        over = time.monotonic() + GATHER_SECONDS
        while self._is_indexing() and not self._is_awaited() and not self._closing.is_set():
            if not self._nudged.wait(max(0.0, over - time.monotonic())):
                return
            self._nudged.clear()

    def _try_again(self) -> bool:
        self._closing.wait(RETRY_SECONDS)
        self._nudged.set()
        return True

    def _round(self) -> bool:
        """Whether there was one."""
        self._pace.begin_slice()
        with self._store.read() as connection:
            found = back_links.next_round(connection, in_texts=self._by_text, linked=self._linked.newest)
        if found is None:
            self._linked.forget()
            return False
        self._pace.rest(0.0)
        left = deque(found.document_keys)
        while left and not self._closing.is_set():
            self._link_some(left)
        if not self._closing.is_set():
            self._pace.rest(self._store.write(lambda connection, _: _timed_done(connection, found)).result())
        return True

    def _link_some(self, left: deque[int]) -> None:
        """Link the first of the documents again, as many as a slice of time is enough for."""
        found: dict[int, links.Found] = {}
        self._pace.begin_slice()
        with self._store.read() as connection:
            newest = back_links.newest(connection)
            while left and not self._closing.is_set() and not self._pace.is_slice_over:
                key = left.popleft()
                try:
                    names = links.names_in(connection, key, by_text=self._by_text, between_texts=self._pace.breathe)
                except (apsw.Error, ThreadError):
                    raise
                except Exception:
                    log.exception("the names in document %d could not be found; its links stay as they are", key)
                    continue
                if names is not None:
                    found[key] = names
        if not self._closing.is_set():
            self._write(found, newest)

    def _write(self, found: Mapping[int, links.Found], newest: int) -> None:
        def work(connection: apsw.Connection, changes: Changes) -> float:
            started = time.thread_time()
            links.link(connection, found, changes)
            return time.thread_time() - started

        try:
            self._pace.rest(self._store.write(work).result())
            self._linked.note(found, newest)
        except ThreadError:
            raise
        except Exception:
            if len(found) > 1:
                for key, names in found.items():
                    self._write({key: names}, newest)
            else:
                log.exception("document %s keeps the links it has", *found)


def _timed_done(connection: apsw.Connection, round_: back_links.Round) -> float:
    """Seconds of processor time."""
    started = time.thread_time()
    back_links.done(connection, round_.progress)
    return time.thread_time() - started


class _Pace:
    """Rests after each piece of work for as long as keeps it within its share, if callers asked for something."""

    def __init__(self, work: Work, is_awaited: Callable[[], bool], share: float, closing: threading.Event) -> None:
        self._work = work
        self._is_awaited = is_awaited
        self._rest_a_second = 1.0 / share - 1.0
        self._closing = closing
        self._piece_began = self._worked = 0.0
        self._asked = 0

    def begin_slice(self) -> None:
        """On the thread that works."""
        self._worked = 0.0
        self._begin_piece()

    def _begin_piece(self) -> None:
        self._piece_began = time.thread_time()
        self._asked = self._work.begun

    @property
    def is_slice_over(self) -> bool:
        limit = SLICE_SECONDS if self._is_asked else LONG_SLICE_SECONDS
        return self._worked + time.thread_time() - self._piece_began > limit

    @property
    def _is_asked(self) -> bool:
        return self._work.is_busy or self._work.begun != self._asked

    def breathe(self) -> None:
        """After a text: let those who ask go first, and others at the end of a slice, however long a document is."""
        if self._work.is_busy or time.thread_time() - self._piece_began > SLICE_SECONDS:
            self.rest(0.0)

    def rest(self, elsewhere: float) -> None:
        """`elsewhere`: seconds of processor time that other threads worked for this one."""
        worked = time.thread_time() - self._piece_began + elsewhere
        self._worked += worked
        if self._is_asked and not self._is_awaited():
            self._closing.wait(worked * self._rest_a_second)
        self._begin_piece()
