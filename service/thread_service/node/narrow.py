"""Search narrowed by the graph, as the original node does it: a gate, an expansion, and a penalty for what it brings.

entities    the 8 best by name: those that share a word with the query or with the terms beside it
edges       the 12 nearest relationships from a score of 0.15, and 12 more for the terms read as predicates
gate        documents of the edges; without an edge, of the entities; without either there is no gate
direct      the best 3 passages of each document that passes
expansion   documents one edge away that were not searched: the best 6 by the weight of the edges that lead there, each
            with its best passage, at 1.1 times its distance

Everything is matched through documents that may be found, before the best are taken, and ties go by name or id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import apsw
import numpy as np
from pyroaring import BitMap

from thread_kernels import Hits
from thread_service.batching.scan import Caller, ScanQueue
from thread_service.batching.serving import ServingModel
from thread_service.node.near_edges import EdgeScan, cosines, edge_scans
from thread_service.node.view import JOINING_DOCUMENTS, Keys, Ranked, Rows, Vector, View, word_shares
from thread_service.search import ranking
from thread_service.search.evidence import PREDICATE_WEIGHT
from thread_service.store import lookup, neighbourhood, scope
from thread_service.store.graph_cache import Links, listed
from thread_service.store.store import Store

ENTITIES = 8
EDGES = 12
SCORE_MIN = 0.15
PASSAGES_A_DOCUMENT = ranking.PARTITIONS_A_DOCUMENT
EXPANDED_DOCUMENTS = 6
EXPANDED_FACTOR = 1.1

EDGES_SEEN = 96
"""Looked at for the best 12: some may be of documents that are not searched."""
SEED_DOCUMENTS = 64
"""Found documents whose entities the expansion starts from, nearest first."""
SEEDS = 1_000
EDGES_SHOWN = 64
"""Of the edges that led to a document, those in the trace."""


class Expansion(NamedTuple):
    """Documents, best first, and the edges that led to them, heaviest first."""

    documents: Sequence[int]
    edges: Sequence[int]


def matched_entities(
    connection: apsw.Connection,
    links: Links,
    owner_key: int | None,
    eligible: BitMap,
    query: str,
    terms: Iterable[str],
) -> list[int]:
    """The entities of eligible documents whose names share most words with the query and the terms."""
    text = " ".join((*terms, query))
    named = neighbourhood.all_named_like(connection, text, owner_key) if text.strip() else ()
    return [*islice(_listed_by(links, named, eligible), ENTITIES)]


def predicates_text(terms: Iterable[str]) -> str:
    """What is embedded of the terms beside a query, "" without any."""
    known = sorted({term.strip() for term in terms} - {""})
    return f"Relationship predicates: {', '.join(known)}" if known else ""


class Narrowing:
    """One search. `entities`: those matched by name; `words`: partition → BM25."""

    def __init__(
        self,
        view: View,
        store: Store,
        embedding: ServingModel,
        scans: ScanQueue,
        caller: Caller,
        entities: Sequence[int],
        words: Mapping[int, float],
    ) -> None:
        self._view = view
        self._store = store
        self._embedding = embedding
        self._scans = scans
        self._caller = caller
        self._entities = entities
        self._words = words

    def rank(self, vectors: Sequence[Vector], top_k: int, *, expand: bool, contained: bool) -> Ranked:
        """`vectors`: of the query, and of the terms read as predicates if there are any. `contained`: the expansion
        does not leave what may be found."""
        view = self._view
        edges = self._matched_edges(vectors)
        ends = [end for edge in edges for end in (edge.subject_key, edge.object_key)]
        gate = self._gate(edges)
        searched = view.eligible if gate is None else gate
        direct = self._direct(gate, top_k)
        expansion = Expansion((), ())
        if expand:
            listing = self._entities_of(direct.contents, searched)
            seeds = [*dict.fromkeys((*self._entities, *ends, *listing))][:SEEDS]
            inside = view.eligible if contained else view.resident.documents(scope.readable(view.owner_key))
            expansion = self._expansion(seeds, inside - searched)
        brought = self._best_passages(expansion.documents, direct)
        rows = Rows.join(direct, brought)
        penalty = np.repeat((1.0, EXPANDED_FACTOR), (len(direct.contents), len(brought.contents)))
        distances = self._with_words(rows) * penalty
        crossed = lookup.edges(view.connection, expansion.edges)
        led = {edge.relationship_key: edge for edge in (*edges, *(crossed[key] for key in expansion.edges))}
        return Ranked(
            rows,
            distances,
            ranking.order(distances, rows.partitions, None),
            searched | BitMap(expansion.documents),
            frozenset(direct.contents.tolist()),
            tuple(dict.fromkeys((*self._entities, *ends))),
            list(led.values()),
            dict.fromkeys((*self._entities, *ends), 1.0),
        )

    # ------------------------------------------------------------------------------------------ edges and gate

    def _matched_edges(self, vectors: Sequence[Vector]) -> list[lookup.EdgeEnds]:
        """The best edges for each vector, each edge once."""
        view = self._view
        readable = scope.readable(view.owner_key)
        # Edges know their owners, not their groups.
        readers = view.readers if set(view.readers) <= set(readable) else readable
        asked = [
            edge_scans(self._store, self._embedding, view.connection, readers, vector, EDGES_SEEN) for vector in vectors
        ]
        _, hits = self._scans.run(searches=[edge.scan for part in asked for edge in part], caller=self._caller)
        answers = iter(hits)
        matched: dict[int, lookup.EdgeEnds] = {}
        for number, part in enumerate(asked):
            scores = self._scores(part, [*islice(answers, len(part))])
            if number == 0 and len(scores) < EDGES:
                for key in neighbourhood.edges_touching(view.connection, self._entities, view.owner_key, EDGES_SEEN):
                    scores.setdefault(key, SCORE_MIN)
            for edge in islice(self._best_edges(scores), EDGES):
                matched[edge.relationship_key] = edge
        return list(matched.values())

    def _scores(self, asked: Sequence[EdgeScan], answers: Sequence[Hits]) -> dict[int, float]:
        """Readable edges by their own cosine or 0.8 of their predicate's, those that score enough."""
        view = self._view
        found = {edge.purpose: cosines(edge.resident, hits) for edge, hits in zip(asked, answers, strict=True)}
        scores = dict(found.get("relationship", ()))
        for predicate_key, cosine in found.get("predicate", ())[:EDGES]:
            value = PREDICATE_WEIGHT * cosine
            if value >= SCORE_MIN:
                for key in lookup.edges_of_predicate(view.connection, predicate_key, view.owner_key, EDGES_SEEN):
                    scores[key] = max(scores.get(key, 0.0), value)
        return {key: score for key, score in scores.items() if score >= SCORE_MIN}

    def _best_edges(self, scores: Mapping[int, float]) -> Iterator[lookup.EdgeEnds]:
        """Edges that an eligible document asserts: best score first, then the heavier, then by id."""
        view = self._view
        weights = lookup.edge_weights(view.connection, scores, view.owner_key)
        known = lookup.edges(view.connection, weights)
        order = sorted(known, key=lambda key: (-scores[key], -weights[key], known[key].relationship_id))
        return (known[key] for key in order if self._documents_of((key,)))

    def _documents_of(self, relationship_keys: Iterable[int]) -> BitMap:
        asserted = neighbourhood.assertions_of_edges(self._view.connection, relationship_keys)
        return BitMap(document for _, document in asserted) & self._view.eligible

    def _gate(self, edges: Sequence[lookup.EdgeEnds]) -> BitMap | None:
        if edges:
            return self._documents_of(edge.relationship_key for edge in edges)
        if self._entities:
            return BitMap.union(*self._view.links.documents_of(self._entities).values()) & self._view.eligible
        return None

    # ------------------------------------------------------------------------------------------ passages

    def _direct(self, gate: BitMap | None, top_k: int) -> Rows:
        view, words = self._view, list(self._words)
        found, _ = self._scans.run(candidates=view.scans(top_k, gate), caller=self._caller)
        if gate is None:
            rows = view.measure_found(found, words)
        else:
            contents = view.resident.contents_of_partitions(words)
            inside = np.isin(contents, view.contents_of(gate))
            rows = view.measure_found(found, np.array(words, dtype=np.int64)[inside].tolist())
            # Of a document in very many passages the nearest rows may leave no room for another's.
            rows = Rows.join(rows, view.measure(view.joining(rows, [*islice(gate, JOINING_DOCUMENTS)])))
        order = ranking.order(self._with_words(rows), rows.partitions, None)
        return rows.at(_first_of_each(order, rows.contents, PASSAGES_A_DOCUMENT))

    def _best_passages(self, documents: Sequence[int], direct: Rows) -> Rows:
        """The best passage of each document, unless its content was found already."""
        view = self._view
        scans = [scan for document in documents for scan in view.scans(1, BitMap((document,)))]
        found, _ = self._scans.run(candidates=scans, caller=self._caller)
        rows = [
            view.measure_found(found[at : at + len(view.tables)]) for at in range(0, len(found), len(view.tables) or 1)
        ]
        joined = Rows.join(Rows(), *rows)
        joined = joined.at(np.flatnonzero(~np.isin(joined.contents, direct.contents)))
        order = ranking.order(self._with_words(joined), joined.partitions, None)
        return joined.at(_first_of_each(order, joined.contents, 1))

    def _with_words(self, rows: Rows) -> ranking.Floats:
        return ranking.with_words(rows.distances, rows.cosines, word_shares(rows.partitions, self._words))

    # ------------------------------------------------------------------------------------------ expansion

    def _entities_of(self, contents: Keys, searched: BitMap) -> list[int]:
        """What the first documents found list."""
        view = self._view
        documents = [
            document
            for content in [*dict.fromkeys(contents.tolist())][:SEED_DOCUMENTS]
            for document in view.resident.documents_of_content(content) & searched
        ]
        entities = view.links.entities_of(documents)
        return [key for document in documents for key in listed(entities[document])]

    def _expansion(self, seeds: Iterable[int], allowed: BitMap) -> Expansion:
        """From the seeds over one edge, to documents that may be read and were not searched."""
        view = self._view
        reached, crossed = neighbourhood.reach(view.connection, seeds, view.owner_key, 1)
        listing = BitMap.union(BitMap(), *view.links.documents_of(reached).values()) & allowed
        if not listing:
            return Expansion((), ())
        weights = lookup.edge_weights(view.connection, crossed, view.owner_key)
        led: dict[int, list[int]] = defaultdict(list)
        for edge, document in neighbourhood.assertions_of_edges(view.connection, crossed):
            if document in listing and edge in weights:
                led[document].append(edge)
        # Sorting is stable: documents of one weight stay in the order of their ids.
        ordered = neighbourhood.in_order_of_ids(view.connection, listing if len(led) < EXPANDED_DOCUMENTS else led)
        ordered.sort(key=lambda document: -sum(weights[edge] for edge in led.get(document, ())))
        documents = ordered[:EXPANDED_DOCUMENTS]
        used = {edge for document in documents for edge in led.get(document, ())}
        return Expansion(documents, sorted(used, key=lambda edge: (-weights[edge], edge))[:EDGES_SHOWN])


def _listed_by(links: Links, entity_keys: Iterable[int], eligible: BitMap) -> Iterator[int]:
    return (key for key in entity_keys if links.documents_of((key,))[key].intersect(eligible))


def _first_of_each(positions: Keys, contents: Keys, count: int) -> Keys:
    """The first `count` positions of each content, in their order."""
    taken: dict[int, int] = defaultdict(int)
    kept: list[int] = []
    for position in positions.tolist():
        taken[content := int(contents[position])] += 1
        if taken[content] <= count:
            kept.append(position)
    return np.array(kept, dtype=np.int64)
