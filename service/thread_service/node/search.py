"""One search, top to bottom.

scope        who may be read, as reader tokens                            ┐ beside the embedding
words        the best partitions by BM25, and the names the query holds   ┘ of the query
scan         the nearest rows by squared L2, filtered                     survivors
evidence     names, near edges and near documents activate entities; entities give evidence to documents
candidates   survivors ∪ best by words ∪ partitions of the most evident documents
rescore      exact distances of the candidates, then words and evidence
show         best first, at most three passages of a document while others fill the list, access checked again
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import apsw
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from thread_service.batching.embed import EmbeddingQueue
from thread_service.batching.scan import Caller, Scan, ScanQueue
from thread_service.errors import InvalidRequest
from thread_service.node.near_edges import EdgeScan, NearEdge, edge_scans, near_edges
from thread_service.node.operations import (
    COMPONENT_MAX,
    TOP_K_DEFAULT,
    TOP_K_MAX,
    GraphMode,
    MediaType,
    RelationshipRef,
    SearchAnswer,
    SearchRequest,
    Trace,
    is_usable,
)
from thread_service.node.query_names import QUERY_CHARACTERS_MAX, named_entities
from thread_service.node.showing import Row, Showing, reference
from thread_service.node.work import Work
from thread_service.search import evidence as graph_evidence
from thread_service.search import ranking
from thread_service.store import audience, lookup, registry, scope, stamp
from thread_service.store.graph_cache import Links, listed
from thread_service.store.resident import ResidentTable
from thread_service.store.store import Store
from thread_service.store.words import WordIndex

log = logging.getLogger(__name__)

LEXICAL_ROWS = 200
EVIDENT_DOCUMENTS = 256
EVIDENT_ROWS = 1_024

Keys = NDArray[np.int64]
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What needs no query vector. `named`: entity → how surely the query names it. `words`: partition → BM25."""

    owner_key: int | None
    candidates: tuple[str, ...]
    words: dict[int, float]
    named: dict[int, float]
    wanted: frozenset[int]


@dataclass(slots=True)
class _Rows:
    """Candidate rows: partition and content keys, block distance and cosine, all [n]."""

    partitions: Keys = field(default_factory=lambda: np.empty(0, np.int64))
    contents: Keys = field(default_factory=lambda: np.empty(0, np.int64))
    distances: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    cosines: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, slots=True)
class _Found:
    """What the graph said: evidence, and for the trace the matched entities and the edges that matched."""

    evidence: graph_evidence.Evidence
    matched: tuple[int, ...]
    edges: tuple[lookup.EdgeEnds, ...]

    def entity_keys(self) -> set[int]:
        """What the trace names."""
        return {*self.matched, *(key for edge in self.edges for key in (edge.subject_key, edge.object_key))}


class Searching:
    def __init__(
        self,
        store: Store,
        embedding: EmbeddingQueue,
        scans: ScanQueue,
        work: Work,
        *,
        graph_mode: GraphMode,
        lexical: bool,
    ) -> None:
        self._store = store
        self._embedding = embedding
        self._scans = scans
        self._work = work
        self._graph_mode = graph_mode
        self._lexical = lexical
        self._words = WordIndex()

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Errors: InvalidRequest (no query, or a vector that is no vector), NotReady (the model is needed), Busy."""
        started = time.perf_counter()
        if request.query_embedding is None and not request.query.strip():
            raise InvalidRequest.field("query", "is blank; say what to search for.")
        if request.query_embedding is not None and not is_usable(request.query_embedding):
            raise InvalidRequest.field("query_embedding", f"holds NaN, infinity or a number beyond {COMPONENT_MAX:g}.")
        preparing = self._work.start(lambda: self._prepare(request))
        try:
            vector = request.query_embedding
            if vector is None:
                vector = await self._embedding.query_vector(request.query)
        finally:
            # Also when there is no vector: a failure of the preparation must be awaited by someone.
            prepared = await preparing
        embedded = time.perf_counter()
        with Caller() as caller:
            answer = await self._work.run(lambda: self._rank(request, prepared, vector, caller))
        log.debug(
            "search: total %.1f ms, vector and words %.1f ms, %d passages",
            (time.perf_counter() - started) * 1e3,
            (embedded - started) * 1e3,
            len(answer.passages),
        )
        return answer

    # ------------------------------------------------------------------------------------------ before the vector

    def _prepare(self, request: SearchRequest) -> _Prepared:
        query = request.query[:QUERY_CHARACTERS_MAX]
        version, words_version = self._store.resident.graph.version(), self._store.resident.words_version
        with self._store.read() as connection:
            owner_key = registry.owner_key(connection, request.owner_id)
            candidates = _candidates(connection, owner_key, request)
            words: dict[int, float] = {}
            if self._uses_words(request):
                media_type = _media_token(request.media_type)
                share = self._store.resident.readable_share(candidates)
                words = self._words.best(connection, query, candidates, media_type, LEXICAL_ROWS, share, words_version)
            named: dict[int, float] = {}
            if self._uses_graph(request):
                links = self._store.resident.graph.at(connection, version)
                named = named_entities(connection, self._store.resident, links, owner_key, request.query)
            wanted = lookup.entities_called(connection, request.entities)
        return _Prepared(owner_key, candidates, words, named, frozenset(wanted))

    def _uses_words(self, request: SearchRequest) -> bool:
        wanted = self._lexical if request.lexical is None else request.lexical
        return wanted and bool(request.query)

    def _uses_graph(self, request: SearchRequest) -> bool:
        return (request.graph_mode or self._graph_mode) == "boost"

    # ------------------------------------------------------------------------------------------ with the vector

    def _rank(self, request: SearchRequest, prepared: _Prepared, vector: Vector, caller: Caller) -> SearchAnswer:
        top_k = min(request.top_k if request.top_k > 0 else TOP_K_DEFAULT, TOP_K_MAX)
        resident = self._store.resident
        version = resident.graph.version()
        with self._store.read() as connection:
            links = resident.graph.at(connection, version)
            eligible = resident.documents(prepared.candidates)
            tables = self._tables(connection, len(vector))
            edges: list[EdgeScan] = []
            if self._uses_graph(request):
                edges = edge_scans(self._store, self._embedding, connection, prepared.owner_key, vector)
            scans = self._survivor_scans(tables, vector, prepared.candidates, request.media_type, top_k)
            survivors, hits = self._scans.run(candidates=scans, searches=[edge.scan for edge in edges], caller=caller)
            rows = self._rescore(tables, vector, _subjects(tables, survivors))
            found = _Found(graph_evidence.gather({}, {}, eligible, 0), (), ())
            if self._uses_graph(request):
                near = near_edges(connection, prepared.owner_key, edges, hits)
                found = self._evidence(connection, links, request, prepared, near, rows, eligible)
            wanted = [key for key in lookup.documents_linked(connection, prepared.wanted) if key in eligible]
            joining = self._joining(tables, request, prepared, found, wanted)
            rows = _join(rows, self._rescore(tables, vector, _but(joining, rows.partitions)))
            words = _word_shares(rows.partitions, prepared.words)
            plain = ranking.with_words(rows.distances, rows.cosines, words)
            shares = graph_evidence.by_content(
                found.evidence, resident.contents_of_documents(found.evidence.documents), rows.contents
            )
            distances = ranking.with_evidence(plain, shares)
            preferred = np.isin(rows.contents, resident.contents_of_documents(wanted)) if wanted else None
            positions = ranking.order(distances, rows.partitions, preferred)
            showing = Showing(connection, links, prepared.owner_key, eligible, found.evidence.strengths)
            shown = showing.show(_in_order(rows, distances, positions, top_k), top_k)
            direct = set(rows.contents[np.argsort(plain, kind="stable")[:top_k]].tolist())
            expanded = {row.content_key for row in shown.rows} - direct
            keys = shown.entity_keys() | found.entity_keys()
            names = links.names(keys, prepared.owner_key)
            trace = _trace(connection, prepared.owner_key, found, names, len(expanded))
        return SearchAnswer(shown.named(names), trace)

    def _tables(self, connection: apsw.Connection, width: int) -> list[ResidentTable]:
        """The model's table and callers' vectors of this width; without the model's when another model wrote it."""
        running = self._embedding.embedder.stamp
        matches = running is None or stamp.state(connection, running) == "matches"
        return self._store.resident.partition_tables(width, ("model", "caller") if matches else ("caller",))

    def _survivor_scans(
        self,
        tables: Sequence[ResidentTable],
        vector: Vector,
        any_of: Iterable[str],
        media_type: MediaType | None,
        top_k: int,
    ) -> list[Scan]:
        with self._store.resident.lock:
            filters = [resident.filter(any_of, _media_token(media_type)) for resident in tables]
        return [Scan(resident.table, vector, top_k, chosen) for resident, chosen in zip(tables, filters, strict=True)]

    def _rescore(self, tables: Sequence[ResidentTable], vector: Vector, partitions: Keys) -> _Rows:
        """Exact distances of partitions, those that have a row of the query's width."""
        scored = [_Rows()]
        for resident in tables:
            rows = resident.rows_of(partitions)
            result = resident.table.rescore(vector, rows)
            subjects = resident.subjects_of(rows)
            scored.append(
                _Rows(
                    subjects,
                    self._store.resident.contents_of_partitions(subjects),
                    result.distances.astype(np.float64),
                    result.cosines.astype(np.float64),
                )
            )
        return _join(*scored)

    def _evidence(
        self,
        connection: apsw.Connection,
        links: Links,
        request: SearchRequest,
        prepared: _Prepared,
        near: Sequence[NearEdge],
        survivors: _Rows,
        eligible: BitMap,
    ) -> _Found:
        activations: dict[int, float] = {}
        for key, weight in prepared.named.items():
            graph_evidence.activate(activations, (key,), weight)
        for edge in near:
            graph_evidence.activate(activations, (edge.ends.subject_key, edge.ends.object_key), edge.cosine)
        matched = tuple(activations)
        if request.expand:
            for cosine, document_keys in _nearest_documents(connection, survivors, eligible):
                for document_links in links.entities_of(document_keys).values():
                    graph_evidence.activate(activations, listed(document_links), cosine)
        documents_of = links.documents_of(activations)
        evidence = graph_evidence.gather(activations, documents_of, eligible, self._store.resident.document_count)
        # The trace speaks of what was searched: an entity of documents outside it is none of its business.
        inside = {key for key in matched if documents_of[key].intersect(eligible)}
        edges = tuple(edge.ends for edge in near if {edge.ends.subject_key, edge.ends.object_key} & inside)
        return _Found(evidence, tuple(key for key in matched if key in inside), edges)

    def _joining(
        self,
        tables: Sequence[ResidentTable],
        request: SearchRequest,
        prepared: _Prepared,
        found: _Found,
        wanted: Sequence[int],
    ) -> Keys:
        """Partitions that join the survivors: best by words, and those of the wanted and the most evident documents."""
        resident = self._store.resident
        evident = found.evidence.documents[:EVIDENT_DOCUMENTS].tolist() if request.expand else []
        content_keys = resident.contents_of_documents([*wanted[:EVIDENT_DOCUMENTS], *evident]).tolist()
        partitions: list[int] = []
        for content_key in dict.fromkeys(content_keys):
            if len(partitions) >= EVIDENT_ROWS:
                break
            partitions += resident.partitions_of_content(content_key)
        joined = np.array(partitions[:EVIDENT_ROWS], dtype=np.int64)
        if request.media_type is not None:
            joined = np.concatenate(
                [np.empty(0, np.int64), *(_of_media(table, joined, request.media_type) for table in tables)]
            )
        return np.concatenate([joined, np.array(list(prepared.words), dtype=np.int64)])


def _trace(
    connection: apsw.Connection,
    owner_key: int | None,
    found: _Found,
    names: Mapping[int, lookup.EntityName],
    expanded: int,
) -> Trace:
    weights = lookup.edge_weights(connection, [edge.relationship_key for edge in found.edges], owner_key)
    return Trace(
        entities=tuple(reference(names[key]) for key in found.matched if key in names),
        relationships=tuple(
            RelationshipRef(
                edge.relationship_id,
                names[edge.subject_key].spelling,
                edge.predicate,
                names[edge.object_key].spelling,
                weights[edge.relationship_key],
            )
            for edge in found.edges
            if edge.relationship_key in weights and edge.subject_key in names and edge.object_key in names
        ),
        expanded_documents=expanded,
    )


def _in_order(rows: _Rows, distances: NDArray[np.float64], positions: NDArray[np.int64], top_k: int) -> Iterator[Row]:
    """The rows as they are to be shown."""
    for position in ranking.diversify(positions, rows.contents, top_k):
        yield Row(int(rows.partitions[position]), int(rows.contents[position]), float(distances[position]))


def _subjects(tables: Sequence[ResidentTable], found: Sequence[NDArray[np.int64]]) -> Keys:
    """Partitions of the rows that survived the scan of each table."""
    return np.concatenate(
        [np.empty(0, np.int64), *(table.subjects_of(rows) for table, rows in zip(tables, found, strict=True))]
    )


def _candidates(connection: apsw.Connection, owner_key: int | None, request: SearchRequest) -> tuple[str, ...]:
    if request.scope == "global":
        return scope.readable(owner_key)
    if request.group_ids and not request.aggregate:
        return scope.in_groups(connection, owner_key, request.group_ids)
    return scope.own(owner_key)


def _media_token(media_type: MediaType | None) -> str | None:
    return None if media_type is None else audience.media(media_type)


def _nearest_documents(connection: apsw.Connection, rows: _Rows, eligible: BitMap) -> list[tuple[float, list[int]]]:
    """The nearest documents: the cosine of their nearest row, and the eligible documents of that content."""
    nearest: dict[int, float] = {}
    for position in np.argsort(-rows.cosines, kind="stable").tolist():
        nearest.setdefault(int(rows.contents[position]), float(rows.cosines[position]))
        if len(nearest) == graph_evidence.NEAREST_DOCUMENTS:
            break
    return [
        (cosine, [key for key in lookup.documents_of_content(connection, content) if key in eligible])
        for content, cosine in nearest.items()
    ]


def _of_media(resident: ResidentTable, partitions: Keys, media_type: MediaType) -> Keys:
    return resident.subjects_of(resident.having(resident.rows_of(partitions), audience.media(media_type)))


def _but(partitions: Keys, known: Keys) -> Keys:
    """Each partition once, those that are known left out. (A set of a few hundred is faster than sorting arrays.)"""
    return np.array(list(set(partitions.tolist()).difference(known.tolist())), dtype=np.int64)


def _word_shares(partitions: Keys, words: dict[int, float]) -> NDArray[np.float64]:
    best = max(words.values(), default=1.0)
    return np.array([words.get(key, 0.0) / best for key in partitions.tolist()])


def _join(*parts: _Rows) -> _Rows:
    return _Rows(
        np.concatenate([part.partitions for part in parts]),
        np.concatenate([part.contents for part in parts]),
        np.concatenate([part.distances for part in parts]),
        np.concatenate([part.cosines for part in parts]),
    )
