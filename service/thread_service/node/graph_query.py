"""The graph, asked directly: by name, in words, or browsing. Everything through documents the caller may read."""

from __future__ import annotations

from collections.abc import Iterable

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.batching.scan import Caller, Scan, ScanQueue
from thread_service.batching.serving import ServingModel
from thread_service.node.operations import (
    GraphAnswer,
    GraphDocument,
    GraphEntity,
    GraphRelationship,
    GraphRequest,
)
from thread_service.node.query_names import named_entities
from thread_service.node.work import Work
from thread_service.store import browsing, lookup, neighbourhood, registry, scope, sql, stamp
from thread_service.store.graph_cache import Links
from thread_service.store.store import Store
from thread_service.text.ids import normalise_kind

HOPS_MAX = 3
LIMIT_DEFAULT = 20
LIMIT_MAX = 1_000
NAME_SCORE = 1.0

Vector = NDArray[np.float32]


class GraphQueries:
    def __init__(self, store: Store, embedding: ServingModel, scans: ScanQueue, work: Work) -> None:
        self._store = store
        self._embedding = embedding
        self._scans = scans
        self._work = work

    async def graph(self, request: GraphRequest) -> GraphAnswer:
        """Errors: NotReady (a free-text query while the model is loading), Busy."""
        return await self._embedding.with_one(lambda: self._graph(request))

    async def _graph(self, request: GraphRequest) -> GraphAnswer:
        vector = await self._embedding.query_vector(request.query) if request.query.strip() else None
        with Caller() as caller:
            return await self._work.run(lambda: self._answer(request, vector, caller))

    def _answer(self, request: GraphRequest, vector: Vector | None, caller: Caller) -> GraphAnswer:
        limit = min(request.limit if request.limit > 0 else LIMIT_DEFAULT, LIMIT_MAX)
        hops = min(max(request.hops, 0), HOPS_MAX)
        kinds = None if request.kinds is None else frozenset(normalise_kind(kind) for kind in request.kinds)
        version = self._store.resident.graph.version()
        with self._store.read() as connection:
            links = self._store.resident.graph.at(connection, version)
            owner_key = registry.owner_key(connection, request.owner_id)
            if not request.entity.strip() and vector is None:
                entities = browsing.most_mentioned(connection, owner_key, kinds, limit)
                edges = neighbourhood.edges_among(connection, entities, owner_key)
                scores: dict[int, float] = {}
            else:
                entities, edges, scores = self._around(
                    connection, links, request, vector, owner_key, kinds, hops, limit, caller
                )
            return _compose(connection, request, owner_key, entities, edges, scores)

    def _around(
        self,
        connection: apsw.Connection,
        links: Links,
        request: GraphRequest,
        vector: Vector | None,
        owner_key: int | None,
        kinds: frozenset[str] | None,
        hops: int,
        limit: int,
        caller: Caller,
    ) -> tuple[list[int], set[int], dict[int, float]]:
        """Seeds by name, by the names and the meaning of the question, and what lies up to `hops` edges from them."""
        named = neighbourhood.named_like(connection, request.entity, owner_key, kinds, limit)
        scores = dict.fromkeys(named, NAME_SCORE)
        asked = named_entities(connection, self._store.resident, links, owner_key, request.query)
        if kinds is not None:
            asked = {key: asked[key] for key in neighbourhood.of_kinds(connection, asked, kinds)}
        for key, weight in sorted(asked.items(), key=lambda item: (-item[1], item[0]))[:limit]:
            scores[key] = max(scores.get(key, 0.0), weight)
        matched = self._matched_edges(connection, vector, owner_key, limit, caller)
        ends = lookup.edges(connection, matched)
        for key, score in matched.items():
            for end in (ends[key].subject_key, ends[key].object_key):
                scores[end] = max(scores.get(end, 0.0), score)
        reached, crossed = neighbourhood.reach(connection, scores, owner_key, hops)
        place = {key: position for position, key in enumerate(named)}
        ordered = sorted(reached, key=lambda key: (-scores.get(key, 0.0), place.get(key, len(place)), key))
        return ordered, crossed | set(matched), scores

    def _matched_edges(
        self, connection: apsw.Connection, vector: Vector | None, owner_key: int | None, limit: int, caller: Caller
    ) -> dict[int, float]:
        """The readable relationships nearest to the query: key → cosine."""
        running = self._embedding.embedder.stamp
        if vector is None or running is None or stamp.state(connection, running) != "matches":
            return {}
        resident = self._store.resident.table("relationship", len(vector))
        if resident is None:
            return {}
        with self._store.resident.lock:
            chosen = resident.filter(scope.readable(owner_key))
        _, [hits] = self._scans.run(searches=[Scan(resident.table, vector, limit, chosen)], caller=caller)
        cosines = resident.table.rescore(vector, hits.rows).cosines
        found = dict(zip(resident.subjects_of(hits.rows).tolist(), cosines.tolist(), strict=True))
        known = lookup.edges(connection, found)
        return {key: cosine for key, cosine in found.items() if key in known and cosine > 0}


def _compose(
    connection: apsw.Connection,
    request: GraphRequest,
    owner_key: int | None,
    entity_keys: list[int],
    edge_keys: Iterable[int],
    scores: dict[int, float],
) -> GraphAnswer:
    names = lookup.entity_names(connection, entity_keys, owner_key)
    shown = [key for key in entity_keys if key in names]
    listing = neighbourhood.documents_of_entities(connection, shown, owner_key)
    weights = lookup.edge_weights(connection, edge_keys, owner_key)
    ends = lookup.edges(connection, weights)
    edge_documents = neighbourhood.documents_of_edges(connection, ends, owner_key)
    mentions = browsing.mention_counts(connection, shown, owner_key)
    documents = (
        sorted({document for found in listing.values() for document in found}) if request.include_documents else []
    )
    entity_ids = dict(
        sql.rows(
            connection,
            "SELECT entity_key, entity_id FROM entities WHERE entity_key IN (SELECT value FROM json_each(?))",
            (sql.array([end for edge in ends.values() for end in (edge.subject_key, edge.object_key)]),),
        )
    )
    entity_count, relationship_count = browsing.readable_counts(connection, owner_key)
    return GraphAnswer(
        entities=tuple(
            GraphEntity(
                names[key].entity_id,
                names[key].spelling,
                names[key].kind,
                scores.get(key, 0.0),
                mentions.get(key, 0),
                tuple(sorted({document.document_id for document in listing.get(key, ())})),
            )
            for key in shown
        ),
        relationships=tuple(
            GraphRelationship(
                edge.relationship_id,
                entity_ids[edge.subject_key],
                edge.predicate,
                entity_ids[edge.object_key],
                weights[key],
                tuple(sorted({document.document_id for document in edge_documents.get(key, ())})),
            )
            for key, edge in sorted(ends.items(), key=lambda item: (-weights[item[0]], item[0]))
        ),
        documents=tuple(
            GraphDocument(document.document_id, document.name, document.owner_id) for document in documents
        ),
        entity_count=entity_count,
        relationship_count=relationship_count,
    )
