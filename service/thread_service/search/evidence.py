"""Evidence: what the graph says about documents, as pure functions.

clue                = one thing that speaks for entities by itself: a name in the query, an edge near the query, or a
                      document near the query; an entity's activation is what the clue gives it
idf(entity)         = ln(1 + documents / documents of the entity)
from one clue       = max over the document's entities of activation × idf / max idf,   max idf = ln(1 + documents)
evidence(document)  = (Σ over clues of what each gives³)^(1/3)

One clue counts once however many of a document's entities it activates; several clues that agree say more than the best
of them alone. The exponent lies between adding up (1), where many weak clues outweigh a strong one, and the maximum.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

NEAREST_EDGES = 5
NEAREST_DOCUMENTS = 3
PREDICATE_WEIGHT = 0.8
AGREEMENT = 3.0
CONTRIBUTION_MIN = 0.02
"""Entities that could give a document less than this are skipped: it would move a distance by one per cent."""
DOCUMENTS_MAX = 4_096
"""Documents that entities bring in, the strongest first. One that would make them more brings none, as each of its
documents might have been any other; to those that are there it gives what it has."""
ENTITIES_MAX = 512
"""Entities that are looked at, the strongest first."""

Clue = Mapping[int, float]
"""Entity → activation, 0 to 1."""
Strengths = Mapping[int, float]


def clue(entity_keys: Iterable[int], activation: float) -> Clue:
    """One that activates all entities alike."""
    return dict.fromkeys(entity_keys, activation)


@dataclass(frozen=True, slots=True)
class Evidence:
    """`documents` int64 [n] and `values` float64 [n], most evident first.

    `strengths`: entity → what all clues say of it, activation × idf / max idf of each, put together as for a document.
    """

    documents: NDArray[np.int64]
    values: NDArray[np.float64]
    strengths: Strengths


NOTHING = Evidence(np.empty(0, np.int64), np.empty(0, np.float64), {})


def gather(
    clues: Sequence[Clue],
    documents_of: Mapping[int, BitMap],
    eligible: BitMap,
    document_count: int,
    found: Callable[[], BitMap] = BitMap,
) -> Evidence:
    """Evidence of the eligible documents: of those `found` by other means (asked for only where it matters) and those
    that entities bring in, so that the work does not grow with the documents of the commonest entities.

    Document frequency is over all documents that list an entity.
    """
    idf_max = math.log1p(max(document_count, 1))
    shares = {
        key: math.log1p(document_count / len(documents_of[key])) / idf_max
        for key in {key for each in clues for key in each}
        if documents_of[key]
    }
    given = [{key: value * shares[key] for key, value in each.items() if key in shares} for each in clues]
    cubes: dict[int, float] = {}
    for each in given:
        for key, strength in each.items():
            cubes[key] = cubes.get(key, 0.0) + strength**AGREEMENT
    strengths = {key: cube ** (1 / AGREEMENT) for key, cube in cubes.items()}
    strongest = sorted(strengths, key=lambda key: (-strengths[key], key))[:ENTITIES_MAX]
    telling = [key for key in strongest if strengths[key] >= CONTRIBUTION_MIN]
    inside = {key: documents_of[key] & eligible for key in telling}
    looked_at, brings_none = BitMap(), False
    for listing in inside.values():
        if len(looked_at) + len(listing) <= DOCUMENTS_MAX:
            looked_at |= listing
        else:
            brings_none = True
    if brings_none:
        looked_at |= found() & eligible
        inside = {key: listing & looked_at for key, listing in inside.items()}
    keys, values = _cubes_by_document(given, inside)
    documents, place = np.unique(keys, return_inverse=True)
    values = np.bincount(place, values, len(documents)).astype(np.float64, copy=False) ** (1 / AGREEMENT)
    order = np.lexsort((documents, -values))
    return Evidence(documents[order], values[order], strengths)


def _cubes_by_document(
    given: Iterable[Strengths], inside: Mapping[int, BitMap]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The cube of what each clue gives to each document of its entities: document keys and cubes, both [n]."""
    keys, cubes, counts = array("I"), [], []
    for each in given:
        seen = BitMap()
        for key in sorted(each.keys() & inside.keys(), key=lambda key: (-each[key], key)):
            # Strongest entity first, so what a document is given first is the most that the clue gives it.
            new = inside[key] - seen
            seen |= new
            keys.extend(new.to_array())
            cubes.append(each[key] ** AGREEMENT)
            counts.append(len(new))
    return np.array(keys, dtype=np.int64), np.repeat(np.array(cubes, dtype=np.float64), counts)


def by_content(evidence: Evidence, contents: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Evidence of the `wanted` contents: the most of their documents, 0 without any.

    `contents` int64 [n] is the content of each document of `evidence`.
    """
    if not len(contents):
        return np.zeros(len(wanted))
    known, first = np.unique(contents, return_index=True)  # the first is the most evident
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, evidence.values[first[place]], 0.0)
