"""Pending documents become searchable, a batch at a time: started with what has to be embedded, finished in one
transaction.

    start     documents in order of filing; their new texts in one request to the embedding queue
    finish    vectors behind the open segment, synced → one transaction: where each row lies, words, the documents' own
              graph in place of the old one, a mark for links

Between the two others can be started, so the model has work while one is committed. Documents with long texts are
started one at a time, beside the others: the queue takes turns, and nobody waits for the minutes that a book takes. A
document at fault is tried alone, so that it holds up nobody, and is given up in the end.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service import observe
from thread_service.batching.embed import EmbeddingQueue
from thread_service.batching.serving import ServingModel
from thread_service.errors import NotReady, ThreadError
from thread_service.logs import Stopwatch, event
from thread_service.models.embedder import EmbeddingFailed
from thread_service.node.extracting import Extracting
from thread_service.node.extraction import found_in
from thread_service.node.pending_contents import Content, append, fill_in, load, row
from thread_service.store import co_mention, contents, extractions, graph, links, pending, policies, sql, stamp, vectors
from thread_service.store.changes import Changes, NewVectors, Purpose
from thread_service.store.pending import PendingDocument
from thread_service.store.segments import Location
from thread_service.store.store import Store

log = logging.getLogger(__name__)

DOCUMENTS_A_BATCH = 64
PARTITIONS_A_BATCH = 256
BYTES_A_BATCH = 256 << 10
"""Of texts to embed; some fifteen seconds of a small model on two cores."""
LONG_BYTES = 128 << 10
"""A document with more to embed goes beside the others."""
ATTEMPTS = 3
"""How often a document is tried that fails for no reason the node knows."""

Vectors = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class DocumentBatch:
    """`model`: what embeds it. `embedding`: the vectors of all that is missing in `contents`, in order, unless that is
    nothing."""

    documents: list[PendingDocument]
    contents: list[Content]
    model: EmbeddingQueue
    embedding: Future[Vectors] | None = None
    texts: int = 0
    is_long: bool = False
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def is_embedded(self) -> bool:
        return self.embedding is None or self.embedding.done()

    def apart(self) -> Iterator[DocumentBatch]:
        """A batch for each document, of what is embedded already."""
        for document in self.documents:
            theirs = [content for content in self.contents if content.content_key == document.content_key]
            yield DocumentBatch([document], theirs, self.model)


class DocumentBatches:
    """On one thread. `start` and `finish` raise NotReady, Busy, IndexMismatch and StorageFull: what was started is
    dropped then and taken up again later, as after a crash."""

    def __init__(self, store: Store, embedding: ServingModel, extracting: Extracting) -> None:
        self._store = store
        self._embedding = embedding
        self._extracting = extracting
        self._started: list[DocumentBatch] = []
        self._long: deque[int] = deque()
        """Places of documents with long texts that are not started."""
        self._failures: Counter[int] = Counter()

    @property
    def is_busy(self) -> bool:
        """Whether any are started, long ones left out."""
        return not all(batch.is_long for batch in self._started)

    def start(self, *, without_model: bool) -> DocumentBatch | None:
        """The next documents; None when there are none now. `without_model`: only those no text of which needs
        embedding."""
        while True:
            known = len(self._long)
            with self._store.read() as connection:
                chosen = self._next(connection, without_model=without_model)
            if not chosen and len(self._long) == known:
                return None
            loaded, found = self._load(chosen)
            if loaded:
                return self._begin(loaded, found, is_long=False)

    def start_long(self, embedded: Callable[[], None]) -> DocumentBatch | None:
        """The next document with long texts; `embedded` is called, on any thread, when its vectors are there."""
        while self._long:
            place = self._long[0]
            with self._store.read() as connection:
                document = pending.at(connection, place)
            loaded, found = self._load([] if document is None else [document])
            batch = self._begin(loaded, found, is_long=True) if loaded else None
            self._long.popleft()
            if batch is not None:
                if batch.embedding is not None:
                    batch.embedding.add_done_callback(lambda _: embedded())
                return batch
        return None

    def finish(self, batch: DocumentBatch) -> None:
        """Make it searchable; blocks until it is embedded."""
        try:
            self._embed(batch)
            self._commit_or_part(batch)
        finally:
            self._started.remove(batch)

    # ------------------------------------------------------------------------------------------ start

    def _next(self, connection: apsw.Connection, *, without_model: bool) -> list[PendingDocument]:
        """As many documents, in order, as keep the batch within its bounds, at least one; notes those that are long.

        What waits for a content that is being embedded already is left for later.
        """
        in_hand = [document for batch in self._started for document in batch.documents]
        embedding = {content.content_key for batch in self._started for content in batch.contents}
        taken = pending.take(
            connection,
            DOCUMENTS_A_BATCH,
            without_model=without_model,
            but=[*self._long, *(document.sequence for document in in_hand)],
        )
        chosen: list[PendingDocument] = []
        partitions = size = 0
        for document in taken:
            more = (0, 0)
            if document.state == "pending":
                if document.content_key in embedding:
                    continue
                more = contents.to_embed(connection, document.content_key)
                if more[1] > LONG_BYTES:
                    self._long.append(document.sequence)
                    continue
            partitions, size = partitions + more[0], size + more[1]
            if chosen and (partitions > PARTITIONS_A_BATCH or size > BYTES_A_BATCH):
                break
            chosen.append(document)
        return chosen

    def _load(self, documents: list[PendingDocument]) -> tuple[list[PendingDocument], list[Content]]:
        """The documents and their contents, without those that cannot be read; raises while there is no other."""
        try:
            with self._store.read() as connection:
                return documents, load(connection, documents)
        except ThreadError:
            raise
        except Exception as error:
            if len(documents) == 1:
                self._has_failed(documents[0], error, ATTEMPTS)
                return [], []
        log.warning("a batch of %d documents could not be read; trying them alone", len(documents))
        loaded: list[PendingDocument] = []
        trouble: Exception | None = None
        for document in documents:
            try:
                loaded += self._load([document])[0]
            except ThreadError:
                raise
            except Exception as theirs:
                trouble = theirs
        if trouble is not None and not loaded:
            raise trouble
        with self._store.read() as connection:
            return loaded, load(connection, loaded)

    def _begin(self, documents: list[PendingDocument], found: list[Content], *, is_long: bool) -> DocumentBatch:
        batch = DocumentBatch(documents, found, self._embedding.current, is_long=is_long)
        texts = [content.partitions[index].text for content in found for index in content.missing()]
        if texts:
            batch.texts = len(texts)
            batch.embedding = batch.model.submit(texts, "document", is_long=is_long)
        self._started.append(batch)
        return batch

    # ------------------------------------------------------------------------------------------ finish

    def _embed(self, batch: DocumentBatch) -> None:
        """Fill in the missing vectors; of one document after the other when they failed together."""
        if batch.embedding is not None:
            try:
                fill_in(batch.contents, batch.embedding.result())
            except EmbeddingFailed as error:
                if len(batch.contents) == 1:
                    batch.contents[0].failure = _refused(error)
                else:
                    log.warning("a batch of %d texts could not be embedded; trying its documents alone", batch.texts)
                    for content in batch.contents:
                        self._embed_alone(batch.model, content)
        for content in batch.contents:
            if content.failure is None and all(vector is None for vector in content.vectors):
                content.failure = "all texts are blank"
        batch.watch.lap("embed")

    def _embed_alone(self, model: EmbeddingQueue, content: Content) -> None:
        texts = [content.partitions[index].text for index in content.missing()]
        try:
            fill_in([content], model.submit(texts, "document").result())
        except EmbeddingFailed as error:
            content.failure = _refused(error)

    def _commit_or_part(self, batch: DocumentBatch) -> None:
        """Commit it; when that fails for no reason the node knows, each of its documents alone."""
        try:
            self._commit(batch)
        except ThreadError:
            raise
        except Exception as error:
            if len(batch.documents) == 1:
                self._has_failed(batch.documents[0], error, 1 if batch.is_long else ATTEMPTS)
                return
            log.warning("a batch of %d documents could not be indexed; trying them alone", len(batch.documents))
            trouble: Exception | None = None
            for alone in batch.apart():
                try:
                    self._commit_or_part(alone)
                except ThreadError:
                    raise
                except Exception as theirs:
                    trouble = theirs
            if trouble is not None:
                raise trouble from None

    def _has_failed(self, document: PendingDocument, error: Exception, attempts: int) -> None:
        """Raises the error until the document is given up after so many: a long one at once, for it was embedded for
        minutes."""
        self._failures[document.sequence] += 1
        if self._failures[document.sequence] < attempts:
            raise error
        del self._failures[document.sequence]
        reason = f"it could not be indexed: {type(error).__name__}"
        log.error("document %d is set aside: %s", document.document_key, reason, exc_info=error)
        self._store.write(lambda connection, _: _give_up(connection, document, reason)).result()

    def _commit(self, batch: DocumentBatch) -> None:
        said = {document.document_key: self._contribution(document) for document in batch.documents}
        with self._store.appending() as segments:
            located = [(content, append(segments, content)) for content in batch.contents]
            if any(places for _, places in located):
                segments.sync()
            self._store.write(
                lambda connection, changes: self._make_searchable(connection, batch, located, said, changes),
                is_large=True,
            ).result()
        self._extracting.nudge()
        batch.watch.lap("index")
        unusable = {content.content_key for content in batch.contents if content.failure is not None}
        failed = sum(document.state == "failed" or document.content_key in unusable for document in batch.documents)
        total = batch.watch.total
        observe.time_phases("searchable", total, batch.watch.phases)
        event(
            log,
            "searchable",
            total_ms=total,
            **batch.watch.milliseconds(),
            documents=len(batch.documents) - failed,
            failed=failed,
            texts=batch.texts,
        )

    def _contribution(self, document: PendingDocument) -> graph.Contribution:
        said = document.said
        if said.kept is not None:
            return graph.kept_contribution(said.kept)
        with self._store.read() as connection:
            policy = policies.read(connection)
            relationships = [
                (subject, policy.canonical(predicate), object_) for subject, predicate, object_ in said.relationships
            ]
            if said.entities is not None:
                return graph.contribution(said.entities, relationships)
            texts = [
                *sql.column(
                    connection,
                    "SELECT text FROM partitions WHERE content_key = ? ORDER BY ordinal",
                    (document.content_key,),
                )
            ]
        return graph.contribution([], relationships, found_in(texts, policy))

    def _make_searchable(
        self,
        connection: apsw.Connection,
        batch: DocumentBatch,
        embedded: list[tuple[Content, dict[int, Location]]],
        said: dict[int, graph.Contribution],
        changes: Changes,
    ) -> None:
        """The transaction of a batch."""
        policy = policies.read(connection)
        for content, located in embedded:
            if content.failure is not None:
                contents.mark_failed(connection, content.content_key, content.failure)
                log.warning("content %d cannot be searched: %s", content.content_key, content.failure)
            elif contents.mark_ready(connection, content.content_key, changes):
                self._record(connection, batch.model, content, located, changes)
        for document in batch.documents:
            state = sql.value(connection, "SELECT state FROM contents WHERE content_key = ?", (document.content_key,))
            if state == "pending":
                # It had failed when the batch was started and is to be tried again since: the document keeps its place.
                continue
            if not pending.finish(connection, document.sequence):
                continue
            graph.retract(connection, document.document_key, changes)
            if state == "ready":
                graph.contribute(connection, document.document_key, said[document.document_key], changes)
                kept = document.said.kept
                if kept is None:
                    co_mention.add(connection, document.document_key, policy, changes)
                links.mark(connection, document.document_key)
                if kept is not None and kept.unread:
                    extractions.mark(connection, document.document_key, put_off=kept.unread)
                elif document.said.entities is None or (kept is not None and kept.unread is not None):
                    self._extracting.mark(connection, document.document_key)
                else:
                    extractions.unmark(connection, document.document_key)
            else:
                pending.set_aside(connection, document)
            contents.refresh_readers(connection, document.content_key, changes)

    def _record(
        self,
        connection: apsw.Connection,
        model: EmbeddingQueue,
        content: Content,
        located: dict[int, Location],
        changes: Changes,
    ) -> None:
        by_table: dict[tuple[Purpose, int], list[int]] = {}
        for index in located:
            purpose: Purpose = "model" if content.partitions[index].brought is None else "caller"
            by_table.setdefault((purpose, len(row(content.vectors[index]))), []).append(index)
        for (purpose, width), indices in by_table.items():
            if purpose == "model":
                ensure_stamp(connection, self._embedding, model)
            keys = [content.partitions[index].partition_key for index in indices]
            locations = [located[index] for index in indices]
            vectors.record(connection, purpose, width, keys, locations)
            rows = np.stack([row(content.vectors[index]) for index in indices])
            changes.vectors.append(NewVectors(purpose, keys, rows, locations))


def ensure_stamp(connection: apsw.Connection, serving: ServingModel, model: EmbeddingQueue) -> None:
    """The index is, or from now on will be, that of `model`. IndexMismatch: it is another's. NotReady: another model
    serves by now."""
    running = model.embedder.stamp
    if running is None or model is not serving.current:
        raise NotReady("The embedding model has changed.")
    stamp.ensure(connection, running)


def _refused(error: EmbeddingFailed) -> str:
    return f"the embedding model refused it: {error}"


def _give_up(connection: apsw.Connection, document: PendingDocument, reason: str) -> None:
    """It is not searched, unless its content was before; what was said about it is kept until it is filed again."""
    if pending.finish(connection, document.sequence):
        contents.mark_failed(connection, document.content_key, reason)
        pending.set_aside(connection, document)
