"""Indexing: what was accepted becomes searchable, in order of filing, on one background thread.

It starts batches of documents (`document_batches`) and of relationships (`edge_batches`) and finishes them in their
order, always one ahead, so that the model embeds the next while the last one is committed. After each, links by name
are found; earlier documents that hold new names are linked on another thread (`back_linking`). A document with long
texts goes beside the others. All of it is driven by rows in the store, so it goes on where it was after any crash.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

import apsw

from thread_service.batching.serving import ServingModel
from thread_service.errors import Busy, IndexMismatch, NotReady, StorageFull, StoreFailed, ThreadError
from thread_service.node.back_linking import BackLinking
from thread_service.node.document_batches import DocumentBatch, DocumentBatches
from thread_service.node.edge_batches import EdgeBatch, EdgeBatches
from thread_service.node.extracting import Extracting
from thread_service.node.linked import Linked
from thread_service.node.waiting import Waiting
from thread_service.node.work import Work
from thread_service.store import back_links, links, pending, stamp
from thread_service.store.changes import Changes
from thread_service.store.loading import give_memory_back
from thread_service.store.store import Store

log = logging.getLogger(__name__)

AHEAD = 2
"""Batches that are started: the next one is embedded while the first is committed."""
LINKS_A_ROUND = 64
HOLES_SECONDS = 30.0
"""How long the C library may keep what batches leave free in its heap: some 50 MB every thousand documents."""
RETRY_SECONDS = 0.5
"""How soon a round that could not go on (model not ready, disk full) is tried again."""


class Indexer:
    def __init__(
        self, store: Store, embedding: ServingModel, work: Work, extracting: Extracting, *, mention_linking: bool
    ) -> None:
        self._store = store
        self._embedding = embedding
        self._mention_linking = mention_linking
        self._condition = threading.Condition()
        self._waiting = Waiting()
        self._is_closing = False
        self._is_nudged = True
        self._last_complaint = ""
        self._holes_until = time.monotonic() + HOLES_SECONDS
        self._documents = DocumentBatches(store, embedding, extracting)
        self._edges = EdgeBatches(store, embedding)
        self._started: deque[DocumentBatch | EdgeBatch] = deque()
        self._long: DocumentBatch | None = None
        self._thread = threading.Thread(target=self._run, name="indexing", daemon=True)
        self._is_indexing = False
        """Whether documents or edges are started, or finished and not linked yet."""
        self._linked = Linked()
        self._back_linking = BackLinking(
            store,
            work,
            self._linked,
            by_text=mention_linking,
            is_indexing=lambda: self._is_indexing,
            is_awaited=lambda: self._waiting.is_for_names,
            progressed=self._go_on,
        )

    def start(self) -> None:
        self._thread.start()
        self._back_linking.start()

    def nudge(self) -> None:
        """There is work: something was committed."""
        self._back_linking.nudge()
        self._go_on()

    def _go_on(self) -> None:
        with self._condition:
            self._is_nudged = True
            self._condition.notify()

    async def settled(self, sequences: Iterable[int]) -> None:
        """Return when these documents are searchable (or failed) and all their links and edges are in place."""
        settled = self._waiting.add(sequences)
        self.nudge()
        await asyncio.wrap_future(settled)

    def stop(self) -> None:
        """Begin no further round and answer whoever waits; what is left is taken up at the next start."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        self._waiting.refuse(_stopping())
        self._back_linking.stop()

    def join(self) -> None:
        """Wait for the round in hand, which ends early when the embedding queue is closed. After `stop`."""
        self._thread.join()
        self._back_linking.join()

    # ------------------------------------------------------------------------------------------ the loop

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._is_nudged or self._is_closing):
                    self._condition.wait()
                if self._is_closing:
                    return
                self._is_nudged = False
            try:
                if self._round():
                    self.nudge()
            except (NotReady, Busy, StorageFull, IndexMismatch) as error:
                self._pause(error)
            except StoreFailed:
                log.exception("indexing stopped: the store has failed")
                return
            except Exception:
                log.exception("an indexing round failed; it is tried again")
                self._pause(None)

    def _pause(self, error: ThreadError | None) -> None:
        self._is_indexing = False  # what is started waits: earlier documents need not wait with it
        self._back_linking.nudge()
        if error is not None and not self._is_closing:
            if str(error) != self._last_complaint:
                log.warning("indexing waits: %s", error)
                self._last_complaint = str(error)
            if isinstance(error, IndexMismatch) or self._embedding.embedder.status.phase == "failed":
                self._waiting.fail(error)
        with self._condition:
            if not self._is_closing:
                self._condition.wait(RETRY_SECONDS)
            self._is_nudged = True

    def _round(self) -> bool:
        """One bounded piece of each kind of work; whether there may be more."""
        has_model = self._has_model()
        self._start(has_model=has_model)
        self._is_indexing = bool(self._started) or self._long is not None
        more = self._finish_one()
        more |= self._link_documents()
        self._waiting.answer(self._store)
        self._is_indexing = bool(self._started) or self._long is not None
        if not self._is_indexing or self._waiting.is_for_names:
            self._back_linking.nudge()
        if more and time.monotonic() > self._holes_until:
            give_memory_back()
            self._holes_until = time.monotonic() + HOLES_SECONDS
        return more or (not has_model and self._is_model_needed())

    def _start(self, *, has_model: bool) -> None:
        """Start documents and edges in turn until the model has enough to do; and a document with long texts."""
        while len(self._started) < AHEAD:
            documents_are_next = not (self._started and isinstance(self._started[-1], DocumentBatch))
            batch = (
                self._start_documents(has_model) or self._start_edges(has_model)
                if documents_are_next
                else self._start_edges(has_model) or self._start_documents(has_model)
            )
            if batch is None:
                break
            self._started.append(batch)
        if has_model and self._long is None:
            self._long = self._documents.start_long(self._go_on)

    def _start_documents(self, has_model: bool) -> DocumentBatch | None:
        return self._documents.start(without_model=not has_model)

    def _start_edges(self, has_model: bool) -> EdgeBatch | None:
        return self._edges.start(is_busy=self._documents.is_busy) if has_model else None

    def _finish_one(self) -> bool:
        """Finish the long text that is embedded, else what was started first; whether there was any."""
        if self._long is not None and self._long.is_embedded:
            long, self._long = self._long, None
            self._documents.finish(long)
            return True
        if not self._started:
            return False
        batch = self._started.popleft()
        if isinstance(batch, DocumentBatch):
            self._documents.finish(batch)
        else:
            self._edges.finish(batch)
        return True

    def _has_model(self) -> bool:
        """Whether there is a model to embed with. Another than the one that wrote the index is none."""
        running = self._embedding.embedder.stamp
        if running is None or not self._embedding.is_ready:
            return False
        with self._store.read() as connection:
            return stamp.state(connection, running) == "matches"

    def _is_model_needed(self) -> bool:
        """Whether work is left that waits for the model. NotReady or IndexMismatch says why it has to wait."""
        with self._store.read() as connection:
            if not pending.count(connection, limit=1) and not pending.newest_unembedded(connection):
                return False
            self._embedding.check_ready()
            if self._embedding.embedder.stamp is not None:
                stamp.check(connection, self._embedding.embedder.stamp)
        return True

    # ------------------------------------------------------------------------------------------ links

    def _link_documents(self) -> bool:
        with self._store.read() as connection:
            keys = links.waiting(connection, LINKS_A_ROUND)
        if not keys:
            return False
        try:
            self._link(keys)
        except ThreadError:
            raise
        except Exception:
            log.warning("the names in %d documents could not be found; trying them alone", len(keys))
            for key in keys:
                self._link_alone(key)
        self._back_linking.nudge()
        return True

    def _link(self, keys: Sequence[int]) -> None:
        with self._store.read() as connection:
            newest = back_links.newest(connection)
            searched = ((key, links.names_in(connection, key, by_text=self._mention_linking)) for key in keys)
            found = {key: names for key, names in searched if names is not None}

        def work(connection: apsw.Connection, changes: Changes) -> None:
            links.link(connection, found, changes)
            links.unmark(connection, keys)

        self._store.write(work).result()
        self._linked.note(keys, newest)

    def _link_alone(self, key: int) -> None:
        try:
            self._link([key])
        except ThreadError:
            raise
        except Exception:
            log.exception("document %d stays without links by name", key)
            self._store.write(lambda connection, _: links.unmark(connection, [key])).result()


def _stopping() -> NotReady:
    return NotReady("The node is stopping; the deposit is kept and is indexed at the next start.")
