"""The entities whose names a query holds."""

from __future__ import annotations

import apsw

from thread_service.store import lookup, neighbourhood, scope
from thread_service.store.graph_cache import Links
from thread_service.store.resident import Resident
from thread_service.text.mentions import candidate_names, query_names

QUERY_CHARACTERS_MAX = 8_192
"""Words and names are looked for in this much of a query; all of it is embedded."""


def named_entities(
    connection: apsw.Connection, resident: Resident, links: Links, owner_key: int | None, query: str
) -> dict[int, float]:
    """Readable entities by key, with how surely the query means each: 0.2 to 1."""
    beginning = query[:QUERY_CHARACTERS_MAX]
    by_name: dict[str, list[int]] = {}
    for name, entity_key in lookup.entities_by_name(connection, candidate_names(beginning)):
        by_name.setdefault(name, []).append(entity_key)
    documents_of = links.documents_of(key for keys in by_name.values() for key in keys)
    readable = resident.documents(scope.readable(owner_key))
    seen = {
        name: keys
        for name, entity_keys in by_name.items()
        # A readable document may mention, by its text, what only others assert. The sets rule most out at once.
        if (
            keys := [
                key
                for key in entity_keys
                if documents_of[key].intersect(readable) and neighbourhood.is_readable(connection, key, owner_key)
            ]
        )
    }
    return {key: found.weight for found in query_names(beginning, seen) for key in seen[found.name]}
