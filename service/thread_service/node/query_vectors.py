"""The vectors of a query, asked for and not waited for."""

from __future__ import annotations

import logging
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from thread_service.batching.serving import ServingModel
from thread_service.errors import ThreadError
from thread_service.node.operations import SearchRequest

log = logging.getLogger(__name__)

Vectors = NDArray[np.float32]

_NONE: Vectors = np.empty((0, 0), np.float32)


def query_vectors(embedding: ServingModel, request: SearchRequest, predicates: str) -> list[Future[Vectors]]:
    """The query's, float32 [1, width], and after it that of the terms beside it read as `predicates`, if there are any.

    Raises and fails as `EmbeddingQueue.query`.
    """
    ready = request.query_embedding
    query = embedding.query(request.query) if ready is None else _ended(ready[None])
    return [query, _despite_failure(embedding, predicates)] if predicates else [query]


def _despite_failure(embedding: ServingModel, text: str) -> Future[Vectors]:
    """Ends with no vector when there is no model to ask: a search by vector needs none."""
    try:
        asked = embedding.query(text)
    except ThreadError as error:
        log.debug("search: without predicates: %s", error)
        return _ended(_NONE)
    answered: Future[Vectors] = Future()

    def end(asked: Future[Vectors]) -> None:
        if not answered.set_running_or_notify_cancel():
            return
        error = asked.exception()
        if error is not None:
            log.debug("search: without predicates: %s", error)
        answered.set_result(_NONE if error is not None else asked.result())

    asked.add_done_callback(end)
    answered.add_done_callback(lambda answered: asked.cancel())
    return answered


def _ended(vectors: Vectors) -> Future[Vectors]:
    ended: Future[Vectors] = Future()
    ended.set_result(vectors)
    return ended
