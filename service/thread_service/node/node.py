"""The node: its operations as one object, what every front end is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric

from thread_service.batching.embed import EmbeddingQueue
from thread_service.batching.scan import ScanQueue
from thread_service.batching.serving import ServingModel
from thread_service.errors import ThreadError
from thread_service.models.embedder import Stamp, name_for_callers
from thread_service.models.extraction.interface import Extractor
from thread_service.node import metrics
from thread_service.node.contents import Contents
from thread_service.node.extracting import Extracting
from thread_service.node.filing import Filing
from thread_service.node.graph_admin import GraphAdmin
from thread_service.node.graph_query import GraphQueries
from thread_service.node.indexing import Indexer
from thread_service.node.library import Library
from thread_service.node.operations import (
    Cleared,
    DocumentsAnswer,
    DocumentsRequest,
    EmbedderHealth,
    EngineHealth,
    ExportAnswer,
    ExportRequest,
    Filed,
    FileRequest,
    GraphAnswer,
    GraphMode,
    GraphRequest,
    LibraryAnswer,
    LibraryRequest,
    RemoveRequest,
    SearchAnswer,
    SearchRequest,
    Stats,
    Updated,
    UpdateDocumentRequest,
    UpdateGroupRequest,
)
from thread_service.node.reembedding import Reembedding
from thread_service.node.search import Searching
from thread_service.node.updates import Updates
from thread_service.node.work import DEVICE_THREADS, Work
from thread_service.store import stamp, verification
from thread_service.store.compaction import Compacted, Progress
from thread_service.store.store import Store


class Node:
    """Owns the store, the embedding queue and the extractor it is given, and closes them. `extractor` None: documents
    that nobody described keep their keywords. `another_model`: see `Reembedding`."""

    def __init__(
        self,
        store: Store,
        embedding: EmbeddingQueue,
        *,
        graph_mode: GraphMode = "boost",
        lexical: bool = True,
        mention_linking: bool = True,
        pending_documents_max: int = 10_000,
        extractor: Extractor | None = None,
        another_model: Callable[[Mapping[str, Any], Stamp | None], EmbeddingQueue | None] = lambda *_: None,
    ) -> None:
        self._store = store
        self._embedding = ServingModel(embedding)
        self._scans = ScanQueue()
        self._work = Work(threads=DEVICE_THREADS if store.resident.engine.name == "cuda" else None)
        self._extracting = Extracting(store, extractor, committed=lambda: self._indexer.nudge())
        self._indexer = Indexer(store, self._embedding, self._work, self._extracting, mention_linking=mention_linking)
        self._filing = Filing(
            store, self._embedding, self._indexer, self._work, pending_documents_max=pending_documents_max
        )
        self._searching = Searching(
            store, self._embedding, self._scans, self._work, graph_mode=graph_mode, lexical=lexical
        )
        self._graph = GraphQueries(store, self._embedding, self._scans, self._work)
        self._library = Library(store, self._work)
        self._contents = Contents(store, self._work)
        self._updates = Updates(store, self._work)
        self.graph_admin = GraphAdmin(store, self._indexer, self._extracting, self._work)
        self._reembedding = Reembedding(store, self._embedding, self._work, another_model, switched=self._indexer.nudge)
        self.ready = False

    def start(self) -> None:
        """Begin to load the model and to index what is pending. The store is open and recovered already."""
        self._embedding.start(self._compare_with_index)
        self._indexer.start()
        self._extracting.start()
        self.ready = True

    @property
    def node_id(self) -> str:
        return self._store.node_id

    @property
    def directory(self) -> Path:
        """Where it keeps everything."""
        return self._store.path

    async def file(self, request: FileRequest) -> Filed:
        return await self._filing.file(request)

    async def search(self, request: SearchRequest) -> SearchAnswer:
        return await self._searching.search(request)

    async def graph(self, request: GraphRequest) -> GraphAnswer:
        return await self._graph.graph(request)

    async def library(self, request: LibraryRequest) -> LibraryAnswer:
        return await self._library.library(request)

    async def documents(self, request: DocumentsRequest) -> DocumentsAnswer:
        return await self._contents.documents(request)

    async def export(self, request: ExportRequest) -> ExportAnswer:
        return await self._contents.export(request)

    async def remove(self, request: RemoveRequest) -> int:
        removed = await self._library.remove(request)
        self._indexer.nudge()
        return removed

    async def update_group(self, request: UpdateGroupRequest) -> Updated:
        return await self._updates.update_group(request)

    async def update_document(self, request: UpdateDocumentRequest) -> Updated:
        return await self._updates.update_document(request)

    async def stats(self) -> Stats:
        return await self._library.stats()

    async def queue_is_full(self) -> bool:
        """Whether one more document would be refused with Busy."""
        return await self._filing.queue_is_full()

    async def clear(self) -> Cleared:
        return await self._library.clear()

    async def compact(self, progress: Progress) -> Compacted:
        """Let go of everything that was removed; `progress` is called from another thread."""
        return await self._work.run(lambda: self._store.compact(progress))

    async def verify(self, *, full: bool, progress: verification.Progress) -> dict[str, Any]:
        """Whether everything it keeps is whole; `progress` is called from another thread."""
        return await self._work.run(lambda: self._store.verify(full=full, progress=progress))

    async def back_up(self, target: Path, progress: verification.Progress) -> dict[str, Any]:
        """Put a backup of everything it keeps into a directory; `progress` is called from another thread."""
        return await self._work.run(lambda: self._store.back_up(target, progress))

    async def extract(self, progress: verification.Progress) -> dict[str, Any]:
        """Let the instruct model read what was put off, see `Extracting.catch_up`."""
        return await self._extracting.catch_up(self._work, progress)

    async def reembed(self, wanted: Mapping[str, Any], progress: verification.Progress) -> dict[str, Any]:
        """Embed everything with another model and let it take over, see `Reembedding.run`; the index serves
        meanwhile."""
        return await self._reembedding.run(wanted, progress)

    async def metrics(self) -> Sequence[Metric]:
        """What its tables and queues show now, as declared in `observe`."""
        return await self._work.run(
            lambda: metrics.read(self._store, self._embedding, self._scans, self._extracting), refusable=False
        )

    def _compare_with_index(self) -> None:
        """The model is ready: the operator is told when it is not the one that wrote the index."""
        running = self._embedding.embedder.stamp
        with contextlib.suppress(ThreadError), self._store.read() as connection:
            if running is not None:
                stamp.log_difference(connection, running)
            stamp.log_unfinished(connection)

    def engine_health(self) -> EngineHealth:
        engine = self._store.resident.engine
        return EngineHealth("cuda" if engine.name == "cuda" else "cpu", engine.fault)

    def embedder_health(self) -> EmbedderHealth:
        embedder = self._embedding.embedder
        running, status = embedder.stamp, embedder.status
        index = indexed_with = None
        if running is not None:
            with self._store.read() as connection:
                index = stamp.state(connection, running)
                indexed_with = stamp.stored_space(connection) if index == "mismatch" else None
        return EmbedderHealth(
            model=name_for_callers(embedder.model if running is None else running.model),
            vector_space="" if running is None else running.space,
            phase=status.phase,
            revision=None if running is None else running.revision,
            fraction=status.fraction,
            error=status.told or status.error,
            index=index,
            indexed_with=indexed_with,
        )

    def stop(self) -> None:
        """Before the front ends stop: index, compact and verify no more, and answer whoever waits for that. Deposits
        are still taken."""
        self._indexer.stop()
        self._extracting.stop()
        self._reembedding.stop()
        self._store.stop_compacting()
        self._store.stop_verifying()

    def close(self) -> None:
        """Finish every write, then give everything up; indexing goes on at the next start. Blocking."""
        self.ready = False
        self.stop()
        # Before the join: a long text in the round in hand may need minutes of the model yet.
        self._embedding.close()
        self._extracting.close()
        self._indexer.join()
        self._scans.close()
        self._work.close()
        self._store.close()
