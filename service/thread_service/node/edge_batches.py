"""Relationships and predicates get their vectors, a batch at a time: started, and finished in one transaction."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.batching.embed import EmbeddingQueue
from thread_service.batching.serving import ServingModel
from thread_service.errors import ThreadError
from thread_service.models.embedder import EmbeddingFailed
from thread_service.node.document_batches import ensure_stamp
from thread_service.store import pending, sql, vectors
from thread_service.store.changes import Changes, NewVectors
from thread_service.store.pending import Unembedded
from thread_service.store.segments import Location
from thread_service.store.store import Store

log = logging.getLogger(__name__)

EDGES_A_BATCH = 256
PATIENT_EDGES_A_BATCH = 16

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class EdgeBatch:
    edges: list[Unembedded]
    model: EmbeddingQueue
    embedding: Future[Vectors]


class EdgeBatches:
    """On one thread; raises as `document_batches.DocumentBatches`."""

    def __init__(self, store: Store, embedding: ServingModel) -> None:
        self._store = store
        self._embedding = embedding
        self._started: list[EdgeBatch] = []

    def start(self, *, is_busy: bool) -> EdgeBatch | None:
        """The next edges; None when there are none now. `is_busy`: documents come first, and of the edges that nobody
        waits for there are few at a time."""
        in_hand = [edge.sequence for batch in self._started for edge in batch.edges]
        with self._store.read() as connection:
            edges = pending.unembedded(connection, EDGES_A_BATCH, but=in_hand)
        if is_busy:
            awaited = sum(not edge.patient for edge in edges)
            edges = edges[: max(awaited, PATIENT_EDGES_A_BATCH)]
        if not edges:
            return None
        batch = self._begin(edges)
        self._started.append(batch)
        return batch

    def finish(self, batch: EdgeBatch) -> None:
        """Let its edges be found by what they mean; blocks until it is embedded."""
        try:
            self._commit(batch)
        except Exception as error:
            if isinstance(error, ThreadError) and not isinstance(error, EmbeddingFailed):
                raise
            log.warning("a batch of %d relationships has failed; trying them alone", len(batch.edges))
            for edge in batch.edges:
                self._finish_alone(edge)
        finally:
            self._started.remove(batch)

    def _finish_alone(self, edge: Unembedded) -> None:
        try:
            self._commit(self._begin([edge]))
        except Exception as error:
            if isinstance(error, ThreadError) and not isinstance(error, EmbeddingFailed):
                raise
            # It is still found by the names of its ends.
            trace = None if isinstance(error, EmbeddingFailed) else error
            log.warning("a relationship stays without a vector: %s", error, exc_info=trace)
            self._store.write(lambda connection, _: pending.embedded(connection, edge.sequence)).result()

    def _begin(self, edges: list[Unembedded]) -> EdgeBatch:
        model = self._embedding.current
        return EdgeBatch(edges, model, model.submit([edge.text for edge in edges], "document"))

    def _commit(self, batch: EdgeBatch) -> None:
        rows = batch.embedding.result()
        with self._store.appending() as segments:
            locations = segments.append(rows)
            segments.sync()
            self._store.write(
                lambda connection, changes: self._record(connection, batch, rows, locations, changes)
            ).result()

    def _record(
        self,
        connection: apsw.Connection,
        batch: EdgeBatch,
        rows: Vectors,
        locations: list[Location],
        changes: Changes,
    ) -> None:
        ensure_stamp(connection, self._embedding, batch.model)
        edges = batch.edges
        kept = [index for index, edge in enumerate(edges) if pending.embedded(connection, edge.sequence)]
        for purpose, readers in (("relationship", changes.relationships), ("predicate", changes.predicates)):
            indices = [index for index in kept if edges[index].purpose == purpose]
            if not indices:
                continue
            keys = [edges[index].subject_key for index in indices]
            where = [locations[index] for index in indices]
            vectors.record(connection, edges[indices[0]].purpose, rows.shape[1], keys, where)
            changes.vectors.append(NewVectors(edges[indices[0]].purpose, keys, rows[np.array(indices)], where))
            readers.update(
                sql.rows(
                    connection,
                    f"SELECT {purpose}_key, readers FROM {purpose}s"
                    f" WHERE {purpose}_key IN (SELECT value FROM json_each(?))",
                    (sql.array(keys),),
                )
            )
