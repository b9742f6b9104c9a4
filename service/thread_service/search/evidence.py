"""Evidence: what the graph says about documents, as pure functions.

activation(entity)  = the best of its name in the query, the edges near the query that touch it, and the documents
                      near the query that list it
idf(entity)         = ln(1 + documents / documents of the entity)
evidence(document)  = max over its entities of activation × idf / max idf,   max idf = ln(1 + documents)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

NEAREST_EDGES = 5
NEAREST_DOCUMENTS = 3
PREDICATE_WEIGHT = 0.8
CONTRIBUTION_MIN = 0.02
"""Entities that could give a document less than this are skipped: it would move a distance by one per cent."""
DOCUMENTS_MAX = 20_000
"""Documents given evidence by one query; the least evident, those of the commonest entities, go first."""

Strengths = Mapping[int, float]


def activate(activations: dict[int, float], entity_keys: Iterable[int], value: float) -> None:
    """An entity keeps the best activation it was given."""
    for key in entity_keys:
        if value > activations.get(key, 0.0):
            activations[key] = value


@dataclass(frozen=True, slots=True)
class Evidence:
    """`documents` int64 [n] and `values` float64 [n], most evident first.

    `strengths`: entity → activation × idf / max idf.
    """

    documents: NDArray[np.int64]
    values: NDArray[np.float64]
    strengths: Strengths


def gather(
    activations: Mapping[int, float], documents_of: Mapping[int, BitMap], eligible: BitMap, document_count: int
) -> Evidence:
    """Evidence of the eligible documents. Document frequency is over all documents that list an entity."""
    idf_max = math.log1p(max(document_count, 1))
    strengths = {
        key: activation * math.log1p(document_count / len(documents_of[key])) / idf_max
        for key, activation in activations.items()
        if documents_of[key]
    }
    seen = BitMap()
    documents: list[NDArray[np.int64]] = []
    values: list[NDArray[np.float64]] = []
    for key in sorted(strengths, key=lambda key: (-strengths[key], key)):
        if strengths[key] < CONTRIBUTION_MIN or len(seen) >= DOCUMENTS_MAX:
            break
        # Strongest entity first, so the first value a document is given is its maximum.
        new = (documents_of[key] & eligible) - seen
        seen |= new
        documents.append(np.array(new, dtype=np.int64))
        values.append(np.full(len(new), strengths[key]))
    if not documents:
        return Evidence(np.empty(0, np.int64), np.empty(0, np.float64), strengths)
    return Evidence(np.concatenate(documents), np.concatenate(values), strengths)


def by_content(evidence: Evidence, contents: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Evidence of the `wanted` contents: the most of their documents, 0 without any.

    `contents` int64 [n] is the content of each document of `evidence`.
    """
    if not len(contents):
        return np.zeros(len(wanted))
    known, first = np.unique(contents, return_index=True)  # the first is the most evident
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, evidence.values[first[place]], 0.0)
