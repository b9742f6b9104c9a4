"""What a document's texts say about the graph when nobody described it: keywords at once, later what a model found."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from thread_service.models.extraction.interface import Found
from thread_service.store import resolution
from thread_service.store.graph import Contribution, Edge, Entity
from thread_service.text.keywords import KEYWORDS_MAX, keywords
from thread_service.text.policy import Policy


def found_in(texts: Iterable[str], policy: Policy) -> list[str]:
    """Names of what the texts are about, the most evident first, no more than the policy allows."""
    return keywords(texts, min(KEYWORDS_MAX, policy.max_entities))


def contribution_of(connection: apsw.Connection, owner_key: int, found: Found) -> Contribution:
    """What a model found, by the names under which the owner knows it. Inside the caller's transaction."""
    known = resolution.known_names(connection, owner_key, [(entity.name, entity.kind) for entity in found.entities])
    return Contribution(
        tuple(Entity(name, entity.kind, "extracted") for name, entity in zip(known, found.entities, strict=True)),
        tuple(Edge(edge.subject, edge.predicate, edge.object, "extracted") for edge in found.relationships),
    )
