"""Ranking: one distance from vector, words and graph, as pure functions.

    similarity with words   cos′ = min(0.995, cos + 0.2 × bm25 / best bm25 of the query)
    distance with words     distance × √((1 − cos′) / (1 − cos))
    distance with evidence  distance × 0.85^(3 × evidence)
    with identifiers        distance × max(0.6, 0.85^weight)

The distance itself is the sum, over equal blocks, of the Euclidean distance inside the block.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

WORDS_WEIGHT = 0.2
COSINE_MAX = 0.995
EVIDENCE_BASE = 0.85
EVIDENCE_EXPONENT = 3.0
IDENTIFIERS_FACTOR_MIN = 0.6
PARTITIONS_A_DOCUMENT = 3

Floats = NDArray[np.float64]


def similarity(cosines: Floats, words: Floats) -> Floats:
    """By vector and words, [n]."""
    return np.maximum(cosines, np.minimum(COSINE_MAX, cosines + WORDS_WEIGHT * words))


def with_words(distances: Floats, cosines: Floats, words: Floats) -> Floats:
    """`words` [n]: BM25 over the query's best BM25, 0 to 1. A row that is nearer than `COSINE_MAX` stays as it is."""
    shrink = np.sqrt((1.0 - similarity(cosines, words)) / np.maximum(1.0 - cosines, 1e-12))
    return np.where(cosines < COSINE_MAX, distances * shrink, distances)


def with_evidence(distances: Floats, evidence: Floats) -> Floats:
    """`evidence` [n], 0 or more: beyond 1 only where several clues agree."""
    return distances * EVIDENCE_BASE ** (EVIDENCE_EXPONENT * evidence)


def with_identifiers(distances: Floats, weights: Floats) -> Floats:
    """`weights` [n], 0 or more: how well the identifiers of each row's document agree with the query."""
    return distances * np.maximum(IDENTIFIERS_FACTOR_MIN, EVIDENCE_BASE**weights)


def order(distances: Floats, keys: NDArray[np.int64], preferred: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Positions, best first: preferred rows before all others, then by distance, ties by key."""
    return np.lexsort((keys, distances) if preferred is None else (keys, distances, ~preferred))


def diversify(positions: NDArray[np.int64], contents: NDArray[np.int64], top_k: int) -> Iterator[int]:
    """Positions in the order they are to be shown: at most three of a document while other documents fill `top_k`.

    Those held back follow, best first, when the others are used up.
    """
    taken: dict[int, int] = {}
    held: list[int] = []
    for position in positions.tolist():
        content = int(contents[position])
        if taken.get(content, 0) < PARTITIONS_A_DOCUMENT:
            taken[content] = taken.get(content, 0) + 1
            yield position
        elif len(held) < top_k:
            held.append(position)
    yield from held
