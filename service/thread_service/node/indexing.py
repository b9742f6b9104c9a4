"""Indexing: what was accepted becomes searchable, in order of filing, on one background thread.

A round takes pending documents: embed their new texts → append the vectors to the open segment and sync it → one
transaction makes content and words searchable, replaces the graph contribution and marks the documents for linking.
Then links by name are found, and the edges' words are embedded. All of it is driven by rows in the store, so it goes on
where it was after any crash.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.batching.embed import EmbeddingQueue
from thread_service.errors import Busy, IndexMismatch, NotReady, StorageFull, StoreFailed, ThreadError
from thread_service.models.embedder import EmbeddingFailed
from thread_service.node.waiting import Waiting
from thread_service.store import contents, graph, links, pending, sql, stamp, vectors
from thread_service.store.changes import Changes, NewVectors, Purpose
from thread_service.store.pending import PendingDocument
from thread_service.store.segments import Location, Segments
from thread_service.store.store import Store
from thread_service.text.keywords import keywords

log = logging.getLogger(__name__)

DOCUMENTS_A_ROUND = 64
PARTITIONS_A_ROUND = 256
EDGES_A_ROUND = 256
LINKS_A_ROUND = 256
RETRY_SECONDS = 0.5
"""How soon a round that could not go on (model not ready, disk full) is tried again."""

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Partition:
    partition_key: int
    text: str
    brought: Vectors | None


@dataclass(slots=True)
class _Content:
    """Content on its way to `ready`: its partitions, and after embedding one vector (or None) for each."""

    content_key: int
    partitions: list[_Partition]
    vectors: list[Vectors | None]
    failure: str | None = None


class Indexer:
    def __init__(self, store: Store, embedding: EmbeddingQueue, *, mention_linking: bool) -> None:
        self._store = store
        self._embedding = embedding
        self._mention_linking = mention_linking
        self._condition = threading.Condition()
        self._waiting = Waiting()
        self._is_closing = False
        self._is_nudged = True
        self._last_complaint = ""
        self._thread = threading.Thread(target=self._run, name="indexing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        """There is work: something was committed."""
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

    def join(self) -> None:
        """Wait for the round in hand, which ends early when the embedding queue is closed. After `stop`."""
        self._thread.join()

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
        more = self._index_documents(without_model=not has_model)
        more |= self._link_documents()
        if has_model:
            more |= self._embed_edges()
        self._waiting.answer(self._store)
        return more or (not has_model and self._is_model_needed())

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
            if not pending.count(connection, limit=1) and not pending.last_unembedded(connection):
                return False
            self._embedding.check_ready()
            if self._embedding.embedder.stamp is not None:
                stamp.check(connection, self._embedding.embedder.stamp)
        return True

    # ------------------------------------------------------------------------------------------ documents

    def _index_documents(self, *, without_model: bool) -> bool:
        with self._store.read() as connection:
            taken = pending.take(connection, DOCUMENTS_A_ROUND, without_model=without_model)
            batch = self._bounded(connection, taken)
            found = self._load_contents(connection, batch)
        if not batch:
            return False
        self._embed(found)
        said = {document.document_key: self._contribution(document) for document in batch}
        with self._store.appending() as segments:
            located = [_append(segments, content) for content in found]
            if any(located):
                segments.sync()
            self._store.write(
                lambda connection, changes: self._commit_documents(
                    connection, batch, list(zip(found, located, strict=True)), said, changes
                )
            ).result()
        return True

    def _bounded(self, connection: apsw.Connection, batch: list[PendingDocument]) -> list[PendingDocument]:
        """As many of the documents, in order, as keep the round's partitions within bounds; at least one."""
        partitions = 0
        for index, document in enumerate(batch):
            if document.state == "pending":
                partitions += contents.partition_range(connection, document.content_key)[1]
            if partitions > PARTITIONS_A_ROUND and index:
                return batch[:index]
        return batch

    def _load_contents(self, connection: apsw.Connection, batch: list[PendingDocument]) -> list[_Content]:
        keys = dict.fromkeys(document.content_key for document in batch if document.state == "pending")
        found: list[_Content] = []
        for content_key in keys:
            partitions = [
                _Partition(key, text, None if brought is None else np.frombuffer(brought, "<f4").astype(np.float32))
                for key, text, brought in sql.rows(
                    connection,
                    "SELECT partition_key, text, vector FROM partitions WHERE content_key = ? ORDER BY ordinal",
                    (content_key,),
                )
            ]
            found.append(_Content(content_key, partitions, [partition.brought for partition in partitions]))
        return found

    def _embed(self, found: list[_Content]) -> None:
        """Fill in the missing vectors: all texts in one request, and one by one when that fails."""
        wanted = [
            (content, index)
            for content in found
            for index, partition in enumerate(content.partitions)
            if content.vectors[index] is None and partition.text.strip()
        ]
        texts = [content.partitions[index].text for content, index in wanted]
        if texts:
            try:
                embedded = self._embedding.submit(texts, "document").result()
                for (content, index), vector in zip(wanted, embedded, strict=True):
                    content.vectors[index] = vector
            except EmbeddingFailed:
                log.warning("a batch of %d texts could not be embedded; trying its documents alone", len(texts))
                for content in {id(content): content for content, _ in wanted}.values():
                    self._embed_alone(content)
        for content in found:
            if content.failure is None and all(vector is None for vector in content.vectors):
                content.failure = "all texts are blank"

    def _embed_alone(self, content: _Content) -> None:
        missing = [
            index
            for index, partition in enumerate(content.partitions)
            if content.vectors[index] is None and partition.text.strip()
        ]
        try:
            embedded = self._embedding.submit([content.partitions[i].text for i in missing], "document").result()
        except EmbeddingFailed as error:
            content.failure = f"the embedding model refused it: {error}"
            return
        for index, vector in zip(missing, embedded, strict=True):
            content.vectors[index] = vector

    def _contribution(self, document: PendingDocument) -> graph.Contribution:
        said = document.said
        if said.entities is not None:
            return graph.contribution(said.entities, said.relationships)
        with self._store.read() as connection:
            texts = [
                *sql.column(
                    connection,
                    "SELECT text FROM partitions WHERE content_key = ? ORDER BY ordinal",
                    (document.content_key,),
                )
            ]
        return graph.contribution([], said.relationships, keywords(texts))

    def _commit_documents(
        self,
        connection: apsw.Connection,
        batch: list[PendingDocument],
        embedded: list[tuple[_Content, dict[int, Location]]],
        said: dict[int, graph.Contribution],
        changes: Changes,
    ) -> None:
        """The transaction of a round."""
        for content, located in embedded:
            if content.failure is not None:
                contents.mark_failed(connection, content.content_key, content.failure)
                log.warning("content %d cannot be searched: %s", content.content_key, content.failure)
            elif contents.mark_ready(connection, content.content_key):
                self._record(connection, content, located, changes)
        for document in batch:
            state = sql.value(connection, "SELECT state FROM contents WHERE content_key = ?", (document.content_key,))
            if state == "pending":
                # It had failed when the round began and is to be tried again since: the document keeps its place.
                continue
            if not pending.finish(connection, document.sequence):
                continue
            graph.retract(connection, document.document_key, changes)
            if state == "ready":
                graph.contribute(connection, document.document_key, said[document.document_key], changes)
                links.mark(connection, document.document_key)
            else:
                pending.set_aside(connection, document)
            contents.refresh_readers(connection, document.content_key, changes)

    def _record(
        self, connection: apsw.Connection, content: _Content, located: dict[int, Location], changes: Changes
    ) -> None:
        by_table: dict[tuple[Purpose, int], list[int]] = {}
        for index in located:
            purpose: Purpose = "model" if content.partitions[index].brought is None else "caller"
            by_table.setdefault((purpose, len(_row(content.vectors[index]))), []).append(index)
        for (purpose, width), indices in by_table.items():
            if purpose == "model":
                self._ensure_stamp(connection)
            keys = [content.partitions[index].partition_key for index in indices]
            locations = [located[index] for index in indices]
            vectors.record(connection, purpose, width, keys, locations)
            rows = np.stack([_row(content.vectors[index]) for index in indices])
            changes.vectors.append(NewVectors(purpose, keys, rows, locations))

    def _ensure_stamp(self, connection: apsw.Connection) -> None:
        running = self._embedding.embedder.stamp
        if running is None:
            raise NotReady("The embedding model is not loaded.")
        stamp.ensure(connection, running)

    # ------------------------------------------------------------------------------------------ links and edges

    def _link_documents(self) -> bool:
        with self._store.read() as connection:
            keys = links.waiting(connection, LINKS_A_ROUND)
        if not keys:
            return False

        def work(connection: apsw.Connection, changes: Changes) -> None:
            for key in keys:
                exists = sql.value(connection, "SELECT 1 FROM documents WHERE document_key = ?", (key,))
                if exists is not None:
                    links.link(connection, key, changes, by_text=self._mention_linking)

        self._store.write(work).result()
        return True

    def _embed_edges(self) -> bool:
        with self._store.read() as connection:
            batch = pending.unembedded(connection, EDGES_A_ROUND)
        if not batch:
            return False
        try:
            self._embed_edge_batch(batch)
        except EmbeddingFailed:
            log.warning("a batch of %d relationships could not be embedded; trying them alone", len(batch))
            for edge in batch:
                self._embed_edge_alone(edge)
        return True

    def _embed_edge_alone(self, edge: pending.Unembedded) -> None:
        try:
            self._embed_edge_batch([edge])
        except EmbeddingFailed as error:
            # It is still found by the names of its ends.
            log.warning("a relationship stays without a vector: %s", error)
            self._store.write(lambda connection, _: pending.embedded(connection, edge.sequence)).result()

    def _embed_edge_batch(self, batch: list[pending.Unembedded]) -> None:
        rows = self._embedding.submit([edge.text for edge in batch], "document").result()
        with self._store.appending() as segments:
            locations = segments.append(rows)
            segments.sync()
            self._store.write(
                lambda connection, changes: self._commit_edges(connection, batch, rows, locations, changes)
            ).result()

    def _commit_edges(
        self,
        connection: apsw.Connection,
        batch: list[pending.Unembedded],
        rows: Vectors,
        locations: list[Location],
        changes: Changes,
    ) -> None:
        self._ensure_stamp(connection)
        kept = [index for index, edge in enumerate(batch) if pending.embedded(connection, edge.sequence)]
        for purpose, readers in (("relationship", changes.relationships), ("predicate", changes.predicates)):
            indices = [index for index in kept if batch[index].purpose == purpose]
            if not indices:
                continue
            keys = [batch[index].subject_key for index in indices]
            where = [locations[index] for index in indices]
            vectors.record(connection, batch[indices[0]].purpose, rows.shape[1], keys, where)
            changes.vectors.append(NewVectors(batch[indices[0]].purpose, keys, rows[indices], where))
            readers.update(
                sql.rows(
                    connection,
                    f"SELECT {purpose}_key, readers FROM {purpose}s"
                    f" WHERE {purpose}_key IN (SELECT value FROM json_each(?))",
                    (sql.array(keys),),
                )
            )


def _stopping() -> NotReady:
    return NotReady("The node is stopping; the deposit is kept and is indexed at the next start.")


def _row(vector: Vectors | None) -> Vectors:
    assert vector is not None
    return vector


def _append(segments: Segments, content: _Content) -> dict[int, Location]:
    """Write the vectors of one content behind the open segments; partition index → location."""
    if content.failure is not None:
        return {}
    located: dict[int, Location] = {}
    by_width: dict[int, list[int]] = {}
    for index, vector in enumerate(content.vectors):
        if vector is not None:
            by_width.setdefault(len(vector), []).append(index)
    for indices in by_width.values():
        rows = np.stack([_row(content.vectors[index]) for index in indices])
        located.update(zip(indices, segments.append(rows), strict=True))
    return located
