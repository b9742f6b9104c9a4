"""The relationships near a query: what its meaning says about the graph, beside what its words say.

`edge_scans` says what to ask the tables of edges, `near_edges` what the answers mean; whoever asks can ask for more in
the same batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_kernels import Hits
from thread_service.batching.scan import Scan
from thread_service.batching.serving import ServingModel
from thread_service.search.evidence import NEAREST_EDGES, PREDICATE_WEIGHT
from thread_service.store import lookup, stamp
from thread_service.store.pending import EdgePurpose
from thread_service.store.resident import ResidentTable
from thread_service.store.store import Store

Vector = NDArray[np.float32]

_PURPOSES: tuple[EdgePurpose, ...] = ("relationship", "predicate")


class NearEdge(NamedTuple):
    ends: lookup.EdgeEnds
    cosine: float


class EdgeScan(NamedTuple):
    """What to search for in one table of edges."""

    purpose: EdgePurpose
    resident: ResidentTable
    scan: Scan


def edge_scans(
    store: Store,
    embedding: ServingModel,
    connection: apsw.Connection,
    readers: Iterable[str],
    vector: Vector,
    count: int = NEAREST_EDGES,
) -> list[EdgeScan]:
    """The searches for the edges nearest to a query that have any of the reader tokens.

    Empty when the vector (float32 [width]) is not of the running model, or another model wrote the index.
    """
    running = embedding.embedder.stamp
    if running is None or len(vector) != running.width or stamp.state(connection, running) != "matches":
        return []
    norm = float(np.linalg.norm(vector))
    if norm == 0.0:
        return []
    # The model's vectors have unit length; with a query of unit length the distance of a hit gives its cosine.
    vector = vector / np.float32(norm)
    scans: list[EdgeScan] = []
    for purpose in _PURPOSES:
        resident = store.resident.table(purpose, len(vector))
        if resident is not None:
            with store.resident.lock:
                chosen = resident.filter(readers)
            scans.append(EdgeScan(purpose, resident, Scan(resident.table, vector, count, chosen)))
    return scans


def near_edges(
    connection: apsw.Connection, owner_key: int | None, asked: Sequence[EdgeScan], answers: Sequence[Hits]
) -> list[NearEdge]:
    """The nearest readable relationships, nearest first; a predicate's cosine counts 0.8 for its relationships."""
    found = {edge.purpose: cosines(edge.resident, hits) for edge, hits in zip(asked, answers, strict=True)}
    best = dict(found.get("relationship", ()))
    floor = min(best.values(), default=0.0) if len(best) >= NEAREST_EDGES else 0.0
    for predicate_key, cosine in found.get("predicate", ()):
        value = PREDICATE_WEIGHT * cosine
        if value > floor:
            for key in lookup.edges_of_predicate(connection, predicate_key, owner_key, NEAREST_EDGES):
                best[key] = max(best.get(key, 0.0), value)
    ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:NEAREST_EDGES]
    ends = lookup.edges(connection, [key for key, _ in ranked])
    return [NearEdge(ends[key], cosine) for key, cosine in ranked if key in ends and cosine > 0]


def cosines(resident: ResidentTable, hits: Hits) -> list[tuple[int, float]]:
    """(key, cosine) of what was found for a query of unit length, nearest first."""
    found = 1.0 - hits.distances.astype(np.float64) / 2.0
    return list(zip(resident.subjects_of(hits.rows).tolist(), found.tolist(), strict=True))
