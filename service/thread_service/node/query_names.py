"""The entities whose names a query holds."""

from __future__ import annotations

import apsw

from thread_service.store import browsing, lookup, scope
from thread_service.store.graph_cache import Links
from thread_service.store.resident import Resident
from thread_service.text.mentions import MAX_QUERY_NAME_WORDS, query_names
from thread_service.text.tokens import tokens

QUERY_CHARACTERS_MAX = 8_192
"""Words and names are looked for in this much of a query; all of it is embedded."""
ENTITIES_MAX = 64
"""Entities that a query may name, those of its longest names first."""


def named_entities(
    connection: apsw.Connection, resident: Resident, links: Links, owner_key: int | None, query: str
) -> dict[int, float]:
    """Readable entities by key, with how surely the query means each: 0.2 to 1."""
    beginning = query[:QUERY_CHARACTERS_MAX]
    found = lookup.entities_named_in(connection, tokens(beginning), MAX_QUERY_NAME_WORDS, ENTITIES_MAX)
    documents_of = links.documents_of(entity_key for _, entity_key in found)
    readable_documents = resident.documents(scope.readable(owner_key))
    # A readable document may mention, by its text, what only others assert. The sets rule most out at once.
    inside = [entity_key for entity_key, documents in documents_of.items() if documents.intersect(readable_documents)]
    readable = browsing.readable_among(connection, inside, owner_key)
    seen: dict[str, list[int]] = {}
    for name, entity_key in found:
        if entity_key in readable:
            seen.setdefault(name, []).append(entity_key)
    return {key: named.weight for named in query_names(beginning, seen) for key in seen[named.name]}
