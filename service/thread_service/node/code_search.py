"""The graph's part in a search of code: identifiers that the query asks for, and the documents that list them.

Never a gate: what lists none of them is found as well, only farther away. No edges, no expansion.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw
from pyroaring import BitMap

from thread_service.search import identifiers as ranking
from thread_service.search.evidence import Evidence
from thread_service.store import lookup, policies, scope
from thread_service.store.graph_cache import Links
from thread_service.store.resident import Resident
from thread_service.text import identifiers
from thread_service.text.policy import HUB_DEGREE_CAP

TERMS_MAX = 512
WHOLE_A_TERM = 64
PARTIAL_A_TERM = 512
"""Entities looked at for one identifier of the query; one that so many more end in says nothing."""


def matched_entities(
    connection: apsw.Connection,
    resident: Resident,
    links: Links,
    owner_key: int | None,
    eligible: BitMap,
    query: str,
    named: Iterable[str],
) -> dict[int, float]:
    """Entities of the eligible documents whose identifiers agree with the query, best first, and how well: 0.6 to 1."""
    terms = identifiers.in_query(query, named)[:TERMS_MAX]
    found = _on_paths(connection, terms, owner_key)
    documents_of = links.documents_of(found)
    inside = [key for key in found if documents_of[key].intersect(eligible)]
    names = links.names(inside, owner_key)
    readable = resident.documents(scope.readable(owner_key))
    matches: list[ranking.Match] = []
    for key in inside:
        if key in names:
            name = names[key]
            identifier = identifiers.of_entity(name.spelling, name.kind)
            score = max(identifiers.agreement(term, identifier) for term in found[key])
            if score > 0:
                listing = documents_of[key].intersection_cardinality(readable)
                matches.append(ranking.Match(key, score, listing, name.spelling))
    degree_cap = policies.read(connection).hub_degree_cap or HUB_DEGREE_CAP
    kept = ranking.best(matches, ranking.hub_cap(degree_cap, len(readable)))
    return {match.entity_key: match.score for match in kept}


def weights(links: Links, scores: dict[int, float], eligible: BitMap) -> Evidence:
    """What the matched entities give to the eligible documents, the most first."""
    return ranking.weigh(scores, links.documents_of(scores), eligible)


def _on_paths(connection: apsw.Connection, terms: Iterable[str], owner_key: int | None) -> dict[int, list[str]]:
    """Readable entities and the terms on whose paths they lie."""
    found: dict[int, list[str]] = {}
    for term in terms:
        path = identifiers.path(term)
        for continued, limit in ((False, WHOLE_A_TERM), (True, PARTIAL_A_TERM)):
            for key in lookup.entities_by_identifier(connection, path, owner_key, limit, continued=continued):
                found.setdefault(key, []).append(term)
    return found
