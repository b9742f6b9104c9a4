"""One search, top to bottom.

words        the best partitions by BM25                                  ┐ beside the embedding
names        the entities that the query names                            ┘ of the query
scan         the nearest rows by squared L2, filtered, and the nearest edges
rescore      exact distances of the rows found by vector or by words
evidence     names, near edges and near documents activate entities; entities give evidence to documents
join         partitions of the most evident documents, rescored; all distances with words and evidence
show         best first, at most three passages of a document while others fill the list, access checked again

In a search of code identifiers take the place of names, edges and near documents (`code_search`). Where the graph
narrows, it says before the scan which documents are searched (`narrow`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import apsw
import numpy as np

from thread_service import observe
from thread_service.batching.scan import Caller, ScanQueue
from thread_service.batching.serving import ServingModel
from thread_service.errors import InvalidRequest
from thread_service.logs import Stopwatch, event
from thread_service.node import code_search, narrow
from thread_service.node.near_edges import EdgeScan, NearEdge, edge_scans, near_edges
from thread_service.node.operations import (
    COMPONENT_MAX,
    TOP_K_DEFAULT,
    TOP_K_MAX,
    GraphMode,
    RelationshipRef,
    SearchAnswer,
    SearchRequest,
    Trace,
    is_usable,
)
from thread_service.node.query_names import QUERY_CHARACTERS_MAX, named_entities
from thread_service.node.query_vectors import query_vectors
from thread_service.node.showing import Row, Showing, reference
from thread_service.node.view import JOINING_DOCUMENTS, Ranked, Rows, Vector, View, media_token, word_shares
from thread_service.node.work import Work
from thread_service.search import evidence as graph_evidence
from thread_service.search import ranking
from thread_service.store import lookup, registry, scope, stamp
from thread_service.store.graph_cache import listed
from thread_service.store.resident import ResidentTable
from thread_service.store.store import Store
from thread_service.store.words import WordIndex

log = logging.getLogger(__name__)

LEXICAL_ROWS = 200
NO_VECTOR: Vector = np.empty(0, np.float32)

Flow = Literal[GraphMode, "code"]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What needs no query vector. `words`: partition → BM25. `named`: entity → how surely the query names it, in the
    order in which the trace shows it. `wanted`: entities whose documents come first."""

    words: dict[int, float]
    named: dict[int, float]
    wanted: set[int]


@dataclass(frozen=True, slots=True)
class _Found:
    """What the graph said: evidence, and for the trace the matched entities and the edges that matched."""

    evidence: graph_evidence.Evidence
    matched: tuple[int, ...] = ()
    edges: tuple[lookup.EdgeEnds, ...] = ()


class Searching:
    def __init__(
        self,
        store: Store,
        embedding: ServingModel,
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
        if request.query_embedding is None and not request.query.strip():
            raise InvalidRequest.field("query", "is blank; say what to search for.")
        if request.query_embedding is not None and not is_usable(request.query_embedding):
            raise InvalidRequest.field("query_embedding", f"holds NaN, infinity or a number beyond {COMPONENT_MAX:g}.")
        return await self._embedding.with_one(lambda: self._search(request))

    async def _search(self, request: SearchRequest) -> SearchAnswer:
        watch, beside = Stopwatch(), Stopwatch()
        # The model first: it gives the interpreter away while it works, the preparation takes it.
        reads_predicates = request.entities_are_predicates and self._flow(request) == "narrow"
        text = narrow.predicates_text(request.entities) if reads_predicates else ""
        vectors = query_vectors(self._embedding, request, text)
        for each in vectors:
            each.add_done_callback(lambda _: watch.lap("embed"))
        begun: list[Future[Any]] = [*vectors]
        try:
            preparing = self._work.begin(lambda: self._prepare(request, beside))
            begun.append(preparing)
            with Caller() as caller:
                answer = await self._work.start_after(
                    begun,
                    lambda: self._answer(
                        request, [row for each in vectors for row in each.result()], preparing.result(), caller, watch
                    ),
                )
        finally:
            for each in begun:
                each.cancel()  # whoever was refused, or has left, does not need it
        total = watch.total
        observe.time_phases("search", total, watch.phases, beside.phases)
        event(
            log,
            "search",
            total_ms=total,
            **watch.milliseconds(),
            **beside.milliseconds(),
            mode=self._flow(request),
            query_chars=len(request.query),
            results=len(answer.passages),
        )
        return answer

    def _flow(self, request: SearchRequest) -> Flow:
        mode = request.graph_mode or self._graph_mode
        return "code" if mode != "off" and request.media_type == "code" else mode

    def _prepare(self, request: SearchRequest, watch: Stopwatch) -> _Prepared:
        watch.skip()
        prepared = _Prepared({}, {}, set())
        query = request.query[:QUERY_CHARACTERS_MAX]
        version = self._store.resident.words_version
        with self._view(request) as view:
            connection, resident, links, owner_key = view.connection, view.resident, view.links, view.owner_key
            if self._uses_words(request):
                media = media_token(view.media_type)
                prepared.words.update(
                    self._words.best(connection, resident, query, view.readers, media, LEXICAL_ROWS, version)
                )
            watch.lap("words")
            match self._flow(request):
                case "boost":
                    prepared.named.update(named_entities(connection, resident, links, owner_key, request.query))
                    prepared.wanted.update(lookup.entities_called(connection, request.entities))
                case "code":
                    prepared.named.update(
                        code_search.matched_entities(
                            connection, resident, links, owner_key, view.eligible, query, request.entities
                        )
                    )
                case "narrow":
                    keys = narrow.matched_entities(connection, links, owner_key, view.eligible, query, request.entities)
                    prepared.named.update(dict.fromkeys(keys, 1.0))
                case "off":
                    prepared.wanted.update(lookup.entities_called(connection, request.entities))
            watch.lap("names")
        return prepared

    @contextmanager
    def _view(self, request: SearchRequest, vector: Vector = NO_VECTOR) -> Iterator[View]:
        resident = self._store.resident
        version = resident.graph.version()
        with self._store.read() as connection:
            owner_key = registry.owner_key(connection, request.owner_id)
            readers = _readers(connection, owner_key, request)
            yield View(
                connection,
                resident,
                resident.graph.at(connection, version),
                owner_key,
                readers,
                resident.documents(readers),
                request.media_type,
                vector,
                self._tables(connection, len(vector)) if len(vector) else (),
            )

    def _uses_words(self, request: SearchRequest) -> bool:
        wanted = self._lexical if request.lexical is None else request.lexical
        return wanted and bool(request.query)

    # ------------------------------------------------------------------------------------------ with the vector

    def _answer(
        self, request: SearchRequest, vectors: Sequence[Vector], prepared: _Prepared, caller: Caller, watch: Stopwatch
    ) -> SearchAnswer:
        watch.skip()
        with self._view(request, vectors[0]) as view:
            if self._flow(request) == "narrow":
                narrowing = narrow.Narrowing(
                    view, self._store, self._embedding, self._scans, caller, list(prepared.named), prepared.words
                )
                ranked = narrowing.rank(
                    vectors, _top_k(request), expand=request.expand, contained=_is_in_groups(request)
                )
                watch.lap("narrow")
            else:
                ranked = self._rank(view, request, prepared, caller, watch)
            answer = _shown(view, ranked, _top_k(request))
            watch.lap("show")
        return answer

    def _tables(self, connection: apsw.Connection, width: int) -> list[ResidentTable]:
        """The model's table and callers' vectors of this width; without the model's when another model wrote it."""
        running = self._embedding.embedder.stamp
        matches = running is None or stamp.state(connection, running) == "matches"
        return self._store.resident.partition_tables(width, ("model", "caller") if matches else ("caller",))

    def _rank(
        self, view: View, request: SearchRequest, prepared: _Prepared, caller: Caller, watch: Stopwatch
    ) -> Ranked:
        flow, resident = self._flow(request), view.resident
        edges: list[EdgeScan] = []
        if flow == "boost":
            readers = scope.readable(view.owner_key)
            edges = edge_scans(self._store, self._embedding, view.connection, readers, view.vector)
        survivors, hits = self._scans.run(
            candidates=view.scans(_top_k(request)), searches=[edge.scan for edge in edges], caller=caller
        )
        watch.lap("scan")
        rows = view.measure_found(survivors, prepared.words)
        words = word_shares(rows.partitions, prepared.words)
        watch.lap("rescore")
        found = _Found(graph_evidence.NOTHING)
        if flow == "boost":
            near = near_edges(view.connection, view.owner_key, edges, hits)
            documents = _near_documents(view, rows, ranking.similarity(rows.cosines, words)) if request.expand else []
            found = _evidence(view, rows, prepared.named, near, documents)
        elif flow == "code":
            found = _Found(code_search.weights(view.links, prepared.named, view.eligible), tuple(prepared.named))
        linked = lookup.documents_linked(view.connection, prepared.wanted) if prepared.wanted else []
        wanted = [key for key in linked if key in view.eligible]
        # Identifiers are matched in every document: whether the scan came upon it is chance.
        evident = found.evidence.documents.tolist() if request.expand or flow == "code" else []
        watch.lap("evidence")
        joining = view.measure(view.joining(rows, [*wanted[:JOINING_DOCUMENTS], *evident[:JOINING_DOCUMENTS]]))
        rows, words = Rows.join(rows, joining), np.concatenate([words, np.zeros(len(joining.partitions))])
        plain = ranking.with_words(rows.distances, rows.cosines, words)
        shares = graph_evidence.by_content(
            found.evidence, resident.contents_of_documents(found.evidence.documents), rows.contents
        )
        watch.lap("join")
        if flow == "code":
            distances, direct = ranking.with_identifiers(plain, shares), rows.contents
        else:
            distances = ranking.with_evidence(plain, shares)
            direct = rows.contents[np.argsort(plain, kind="stable")[: _top_k(request)]]
        preferred = np.isin(rows.contents, resident.contents_of_documents(wanted)) if wanted else None
        return Ranked(
            rows,
            distances,
            ranking.order(distances, rows.partitions, preferred),
            view.eligible,
            frozenset(direct.tolist()),
            found.matched,
            found.edges,
            found.evidence.strengths,
        )


def _evidence(
    view: View,
    rows: Rows,
    named: Mapping[int, float],
    near: Sequence[NearEdge],
    documents: Sequence[graph_evidence.Clue],
) -> _Found:
    """`documents`: what those near the query list, as clues."""
    spoken = [
        *(graph_evidence.clue((key,), weight) for key, weight in named.items()),
        *(graph_evidence.clue((edge.ends.subject_key, edge.ends.object_key), edge.cosine) for edge in near),
    ]
    matched = dict.fromkeys(key for clue in spoken for key in clue)
    documents_of = view.links.documents_of({*matched, *(key for clue in documents for key in clue)})
    evidence = graph_evidence.gather(
        [*spoken, *documents],
        documents_of,
        view.eligible,
        view.resident.document_count,
        lambda: view.resident.documents_of_contents(rows.contents),
    )
    # The trace speaks of what was searched: an entity of documents outside it is none of its business.
    inside = {key for key in matched if documents_of[key].intersect(view.eligible)}
    edges = tuple(edge.ends for edge in near if {edge.ends.subject_key, edge.ends.object_key} & inside)
    return _Found(evidence, tuple(key for key in matched if key in inside), edges)


def _near_documents(view: View, rows: Rows, similarities: ranking.Floats) -> list[graph_evidence.Clue]:
    """What the documents nearest by vector and words list, by the similarity of their nearest row."""
    nearest: dict[int, float] = {}
    for position in np.argsort(-similarities, kind="stable").tolist():
        nearest.setdefault(int(rows.contents[position]), float(similarities[position]))
        if len(nearest) == graph_evidence.NEAREST_DOCUMENTS:
            break
    readable = {content: view.resident.documents_of_content(content) & view.eligible for content in nearest}
    links = view.links.entities_of(key for keys in readable.values() for key in keys)
    return [
        graph_evidence.clue((entity for key in readable[content] for entity in listed(links[key])), similarity)
        for content, similarity in nearest.items()
        if similarity > 0
    ]


def _shown(view: View, ranked: Ranked, top_k: int) -> SearchAnswer:
    showing = Showing(view.connection, view.links, view.owner_key, ranked.documents, ranked.strengths)
    shown = showing.show(_in_order(ranked, top_k), top_k)
    ends = (key for edge in ranked.edges for key in (edge.subject_key, edge.object_key))
    names = view.links.names({*shown.entity_keys(), *ranked.matched, *ends}, view.owner_key)
    expanded = shown.content_keys() - ranked.direct
    return SearchAnswer(shown.named(names), _trace(view, ranked, names, len(expanded)))


def _trace(view: View, ranked: Ranked, names: Mapping[int, lookup.EntityName], expanded: int) -> Trace:
    weights = lookup.edge_weights(view.connection, [edge.relationship_key for edge in ranked.edges], view.owner_key)
    return Trace(
        entities=tuple(reference(names[key]) for key in ranked.matched if key in names),
        relationships=tuple(
            RelationshipRef(
                edge.relationship_id,
                names[edge.subject_key].spelling,
                edge.predicate,
                names[edge.object_key].spelling,
                weights[edge.relationship_key],
            )
            for edge in ranked.edges
            if edge.relationship_key in weights and edge.subject_key in names and edge.object_key in names
        ),
        expanded_documents=expanded,
    )


def _in_order(ranked: Ranked, top_k: int) -> Iterator[Row]:
    """The rows as they are to be shown."""
    rows = ranked.rows
    for position in ranking.diversify(ranked.positions, rows.contents, top_k):
        yield Row(int(rows.partitions[position]), int(rows.contents[position]), float(ranked.distances[position]))


def _readers(connection: apsw.Connection, owner_key: int | None, request: SearchRequest) -> tuple[str, ...]:
    if request.scope == "global":
        return scope.readable(owner_key)
    if _is_in_groups(request):
        return scope.in_groups(connection, owner_key, request.group_ids)
    return scope.own(owner_key)


def _top_k(request: SearchRequest) -> int:
    return min(request.top_k if request.top_k > 0 else TOP_K_DEFAULT, TOP_K_MAX)


def _is_in_groups(request: SearchRequest) -> bool:
    return request.scope != "global" and not request.aggregate and bool(request.group_ids)
