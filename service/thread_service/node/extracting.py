"""Reading documents with an instruct model, behind everything else: nothing that is filed waits for it.

    indexed with keywords, marked → (its turn) → read by the model → one transaction: what was found takes the place of
    the keywords; what the document was given stays

It is driven by rows in the store (`extractions`), so it goes on where it was after any crash. As many documents are
read at a time as the model takes. While it cannot be asked, they wait; a document that it gives no usable answer about
keeps its keywords and is put off for a later pass.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import apsw

from thread_service import observe
from thread_service.errors import Busy, InvalidRequest, NotReady, StorageFull, StoreFailed, ThreadError
from thread_service.logs import Stopwatch, event
from thread_service.models.extraction.interface import ExtractionFailed, ExtractionStats, Extractor, Found
from thread_service.node.extraction import contribution_of
from thread_service.node.work import Work
from thread_service.store import co_mention, extractions, graph, pending, policies, sql
from thread_service.store.changes import Changes
from thread_service.store.extractions import Counts, Unextracted
from thread_service.store.store import Store
from thread_service.store.verification import Progress

log = logging.getLogger(__name__)

NO_MODEL = "there was no instruct model"
RETRY_SECONDS = 0.5
"""How soon what could not go on (model away, disk full) is tried again."""
LOOK_SECONDS = 1.0
"""How often a model that cannot be asked is looked at."""
PROGRESS_SECONDS = 0.2
LEAVE_SECONDS = 2.0
"""How long a stop waits for a document in hand; it is read again at the next start."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """`asked`: somebody waits for the number of entities found."""

    document: Unextracted
    asked: Future[int] | None = None


class Extracting:
    """`extractor` None: there is no model, documents are only marked. `committed` is called when something was found.

    Owns the extractor.
    """

    def __init__(self, store: Store, extractor: Extractor | None, *, committed: Callable[[], None]) -> None:
        self._store = store
        self._extractor = extractor
        self._committed = committed
        self._condition = threading.Condition()
        self._is_nudged = True
        self._is_closing = False
        self._asked: deque[_Job] = deque()
        self._in_hand: dict[int, threading.Thread] = {}
        self._not_before = 0.0
        self._complaint = ""
        self._done = 0
        self._thread = threading.Thread(target=self._run, name="extraction", daemon=True)

    @property
    def has_model(self) -> bool:
        return self._extractor is not None

    @property
    def stats(self) -> ExtractionStats:
        return ExtractionStats() if self._extractor is None else self._extractor.stats

    @property
    def is_ready(self) -> bool | None:
        """Whether the model can be asked; None without one."""
        return None if self._extractor is None else not self._extractor.complaint()

    def counts(self) -> Counts:
        with self._store.read() as connection:
            return extractions.counts(connection)

    def start(self) -> None:
        if self._extractor is None:
            return
        if left := self.counts().put_off:
            log.info("documents put off for a later pass of extraction: %d (thread extract --pending)", left)
        self._extractor.start()
        self._thread.start()

    def nudge(self) -> None:
        """A document may have been marked: something was committed."""
        with self._condition:
            self._is_nudged = True
            self._condition.notify()

    def mark(self, connection: apsw.Connection, document_key: int) -> None:
        """The document has been indexed with keywords. Inside the caller's transaction."""
        extractions.mark(connection, document_key, put_off=None if self.has_model else NO_MODEL)

    async def read(self, document: Unextracted) -> int:
        """Read a document out of turn; how many entities were found. 0, and nothing changed, when there was no usable
        answer. NotReady: the model cannot be asked; the document is marked and read when it can."""
        job = _Job(document, Future())
        assert job.asked is not None
        with self._condition:
            if self._is_closing:
                raise _stopping()
            self._asked.append(job)
        self.nudge()
        return await asyncio.wrap_future(job.asked)

    async def catch_up(self, work: Work, progress: Progress) -> dict[str, Any]:
        """Take up what was put off, and return when nothing waits any more, or the model cannot be asked.

        `taken_up`, `extracted`: how many documents; `waiting`, `put_off`: how many there are now; `why` some wait.
        """
        if self._extractor is None:
            raise InvalidRequest("this node extracts keywords: start it with another --graph-backend")
        taken_up = await work.commit(self._store, lambda connection, _: extractions.take_up(connection))
        self.nudge()
        done_before = self._done
        at_first = now = await work.run(self.counts)
        why = ""
        while now.waiting and not (why := self._extractor.complaint()):
            progress(f"reading documents: {now.waiting} wait", max(0.0, 1 - now.waiting / at_first.waiting))
            await asyncio.sleep(PROGRESS_SECONDS)
            now = await work.run(self.counts)
        return {"taken_up": taken_up, "extracted": self._done - done_before, **now._asdict(), "why": why}

    def stop(self) -> None:
        """Begin with no further document, and answer who waits for one."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
            asked, self._asked = self._asked, deque()
        for job in asked:
            _answer(job, error=_stopping())

    def close(self) -> None:
        """After `stop`: give the model up. A document in hand does not keep the node from ending."""
        if self._extractor is None:
            return
        self._extractor.close()
        if self._thread.ident is not None:
            self._thread.join()
        deadline = time.monotonic() + LEAVE_SECONDS
        with self._condition:
            threads = [*self._in_hand.values()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # ------------------------------------------------------------------------------------------ turns

    def _run(self) -> None:
        rest: float | None = None
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_nudged or self._is_closing, rest)
                if self._is_closing:
                    return
                self._is_nudged = False
            try:
                rest = self._hand_out()
            except Exception:
                if self._is_closing:
                    return
                log.exception("documents could not be handed out to be read; it is tried again")
                rest = RETRY_SECONDS

    def _hand_out(self) -> float | None:
        """Begin with as many documents as there is room for. How soon to look again; None: when something happens."""
        assert self._extractor is not None
        with self._condition:
            free = self._extractor.slots - len(self._in_hand)
            asked = [self._asked.popleft() for _ in range(min(free, len(self._asked)))]
            in_hand = {*self._in_hand, *(job.document.document_key for job in asked)}
        for job in asked:
            self._begin(job)
        if free <= len(asked):
            return None
        with self._store.read() as connection:
            found = extractions.take(connection, free - len(asked), without=in_hand)
        if not found:
            return None
        if max(self._extractor.pause(), self._not_before - time.monotonic()) > 0:
            return min(LOOK_SECONDS, max(self._extractor.pause(), self._not_before - time.monotonic(), 0.01))
        for document in found:
            self._begin(_Job(document))
        return None

    def _begin(self, job: _Job) -> None:
        """On a thread of its own, which the end of the process does not wait for."""
        thread = threading.Thread(target=self._do, args=(job,), name="extraction", daemon=True)
        with self._condition:
            self._in_hand[job.document.document_key] = thread
        thread.start()

    def _do(self, job: _Job) -> None:
        try:
            found = self._read_one(job)
        except BaseException as error:
            self._not_before = time.monotonic() + RETRY_SECONDS
            _answer(job, error=error)
        else:
            _answer(job, found)
        finally:
            with self._condition:
                self._in_hand.pop(job.document.document_key, None)
            self.nudge()

    def _read_one(self, job: _Job) -> int:
        """Raises what nobody but who asked needs to know; the rest is logged."""
        try:
            return self._read_and_commit(job)
        except ExtractionFailed as error:
            self._put_off(job, str(error))
            return 0
        except (NotReady, Busy, StorageFull) as error:
            self._complain(error)
            if job.asked is not None:
                self._store.write(lambda connection, _: _mark_again(connection, job.document)).result()
            raise
        except StoreFailed:
            raise
        except Exception:
            if not self._is_closing:
                log.exception("a document could not be read in a way nobody foresaw")
                self._put_off(job, "reading it failed; the log says why")
            raise

    def _read_and_commit(self, job: _Job) -> int:
        assert self._extractor is not None
        watch = Stopwatch()
        with self._store.read() as connection:
            texts = extractions.texts(connection, job.document.content_key)
            policy = policies.read(connection)
        found = self._extractor.extract(texts, policy)
        watch.lap("model")
        if self._is_closing:
            raise _stopping()
        is_used = self._store.write(lambda connection, changes: _commit(connection, job, found, changes)).result()
        self._complaint = ""
        self._done += 1
        self._committed()
        entities, total = len(found.entities) if is_used else 0, watch.total
        observe.time_phases("extracted", total, watch.phases)
        event(
            log,
            "extracted",
            total_ms=total,
            **watch.milliseconds(),
            characters=sum(map(len, texts)),
            entities=entities,
            relationships=len(found.relationships) if is_used else 0,
        )
        return entities

    def _put_off(self, job: _Job, reason: str) -> None:
        log.warning("a document keeps its keywords and is put off for a later pass: %s", reason)
        self._store.write(lambda connection, _: extractions.put_off(connection, job.document, reason)).result()

    def _complain(self, error: ThreadError) -> None:
        if not self._is_closing and str(error) != self._complaint:
            log.warning("extraction waits: %s", error)
            self._complaint = str(error)


def _commit(connection: apsw.Connection, job: _Job, found: Found, changes: Changes) -> bool:
    """Whether the document was still to be read; what was found is asserted for it then."""
    key, content_key = job.document
    statement = (
        "SELECT content_key, owner_key, EXISTS (SELECT 1 FROM unextracted u WHERE u.document_key = d.document_key)"
        " FROM documents d WHERE document_key = ?"
    )
    row = sql.row(connection, statement, (key,))
    if row is None or row[0] != content_key or not (row[2] or job.asked):
        return False  # removed, replaced or described meanwhile
    extractions.unmark(connection, key)
    if not found.entities:
        return False
    newest = pending.newest_unembedded(connection)
    graph.retract_found(connection, key, changes)
    graph.contribute(connection, key, contribution_of(connection, row[1], found), changes)
    co_mention.add(connection, key, policies.read(connection), changes)
    pending.be_patient(connection, newest)
    return True


def _mark_again(connection: apsw.Connection, document: Unextracted) -> None:
    statement = "SELECT 1 FROM documents WHERE document_key = ? AND content_key = ?"
    if sql.value(connection, statement, tuple(document)) is not None:
        extractions.mark(connection, document.document_key)


def _answer(job: _Job, found: int = 0, *, error: BaseException | None = None) -> None:
    if job.asked is None or not job.asked.set_running_or_notify_cancel():
        return
    if error is None:
        job.asked.set_result(found)
    else:
        job.asked.set_exception(error)


def _stopping() -> NotReady:
    return NotReady("The node is stopping; the document is read after the next start.")
