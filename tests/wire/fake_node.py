"""A node that remembers what it was asked and answers what a test put there."""

from __future__ import annotations

from typing import Any

from prometheus_client.metrics_core import Metric

from thread_service.node import operations

NODE_ID = "1B4E28BA-2FA1-11D2-883F-0016D3CCA427"


class FakeNode:
    def __init__(self) -> None:
        self.node_id = NODE_ID
        self.ready = True
        self.health = operations.EmbedderHealth("org/model", "model@384", "ready", index="matches")
        self.engine = operations.EngineHealth("cpu", None)
        self.asked: list[Any] = []
        self.filed: operations.Filed | None = None
        self.found = operations.SearchAnswer((), operations.Trace())
        self.graph_found = operations.GraphAnswer()
        self.groups = operations.LibraryAnswer(())
        self.contents = operations.DocumentsAnswer(())
        self.exported = operations.ExportAnswer(())
        self.counted = operations.Stats(0, 0, 0, 0)
        self.measured: list[Metric] = []
        self.applies = True
        self.fails_with: BaseException | None = None

    def embedder_health(self) -> operations.EmbedderHealth:
        return self.health

    def engine_health(self) -> operations.EngineHealth:
        return self.engine

    async def file(self, request: operations.FileRequest) -> operations.Filed:
        ids = tuple(document.document_id or f"content-{k}" for k, document in enumerate(request.documents))
        return self._answer(request, self.filed or operations.Filed(ids, ("new",) * len(ids), 7))

    async def search(self, request: operations.SearchRequest) -> operations.SearchAnswer:
        return self._answer(request, self.found)

    async def graph(self, request: operations.GraphRequest) -> operations.GraphAnswer:
        return self._answer(request, self.graph_found)

    async def library(self, request: operations.LibraryRequest) -> operations.LibraryAnswer:
        return self._answer(request, self.groups)

    async def documents(self, request: operations.DocumentsRequest) -> operations.DocumentsAnswer:
        return self._answer(request, self.contents)

    async def remove(self, request: operations.RemoveRequest) -> int:
        return self._answer(request, len(request.document_ids))

    async def update_group(self, request: operations.UpdateGroupRequest) -> operations.Updated:
        return self._answer(request, operations.Updated(self.applies, None if self.applies else "why"))

    async def update_document(self, request: operations.UpdateDocumentRequest) -> operations.Updated:
        return self._answer(request, operations.Updated(self.applies, None if self.applies else "why"))

    async def stats(self) -> operations.Stats:
        return self._answer("stats", self.counted)

    async def export(self, request: operations.ExportRequest) -> operations.ExportAnswer:
        return self._answer(request, self.exported)

    async def clear(self) -> operations.Cleared:
        return self._answer("clear", operations.Cleared(documents=3, entities=5))

    async def metrics(self) -> list[Metric]:
        return self._answer("metrics", self.measured)

    def _answer(self, request: Any, answer: Any) -> Any:
        self.asked.append(request)
        if self.fails_with is not None:
            raise self.fails_with
        return answer
