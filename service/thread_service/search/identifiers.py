"""Identifiers in a code search: which entities count, and what they are worth to documents, as pure functions.

    hub cap           = max(degree cap of the policy, documents / 20)
    weight(document)  = Σ over its entities of how well each agrees with the query: 1, 0.8 or 0.6
    distance          × max(0.6, 0.85^weight)                                           (`ranking.with_identifiers`)

Entities that agree with the whole of what was asked for always count. Of the others those in too many documents say
nothing, and the best few are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from thread_service.search.evidence import NOTHING, Evidence
from thread_service.text.identifiers import WHOLE

MATCHES_MAX = 32
DOCUMENTS_A_HUB = 20
"""An entity in more than one of so many documents is a hub, where the policy's cap does not allow it more."""


class Match(NamedTuple):
    """An entity whose identifier agrees with the query. `documents`: how many readable ones list it."""

    entity_key: int
    score: float
    documents: int
    name: str


def hub_cap(degree_cap: int, document_count: int) -> int:
    """How many documents may list an entity that agrees in part."""
    return max(degree_cap, document_count // DOCUMENTS_A_HUB)


def best(matches: Iterable[Match], cap: int) -> list[Match]:
    """Best score first, then the rarer, then by name. At most 32, but none that agrees as a whole is left out."""
    ordered = sorted(matches, key=lambda match: (-match.score, match.documents, match.name, match.entity_key))
    whole = [match for match in ordered if match.score == WHOLE]
    partial = [match for match in ordered if match.score < WHOLE and match.documents <= cap]
    return whole + partial[: max(0, MATCHES_MAX - len(whole))]


def weigh(scores: Mapping[int, float], documents_of: Mapping[int, BitMap], eligible: BitMap) -> Evidence:
    """Weights of the eligible documents that list any of the entities, as evidence: 0.6 upwards, the most first."""
    listing = [
        (np.array((documents_of[key] & eligible).to_array(), dtype=np.int64), score) for key, score in scores.items()
    ]
    if not listing:
        return NOTHING
    documents, place = np.unique(np.concatenate([keys for keys, _ in listing]), return_inverse=True)
    each = np.concatenate([np.full(len(keys), score) for keys, score in listing])
    weights: NDArray[np.float64] = np.bincount(place, each, len(documents)).astype(np.float64)
    order = np.argsort(-weights, kind="stable")
    return Evidence(documents[order], weights[order], dict(scores))
