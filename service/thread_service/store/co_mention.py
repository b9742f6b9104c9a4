"""Edges between the entities that one document asserts, when the policy wants them. Runs inside the caller's
transaction.

Nobody said these edges, so they are derived: extracting again makes them anew.
"""

from __future__ import annotations

from itertools import combinations

import apsw

from thread_service.store import edges, sql
from thread_service.store.changes import Changes
from thread_service.store.edges import End
from thread_service.text.policy import Policy

ENTITIES_MAX = 64
"""Entities of one document that are paired: the edges grow with their square."""


def add(connection: apsw.Connection, document_key: int, policy: Policy, changes: Changes) -> None:
    """After the document's contribution. A pair has one edge, in the order of the two ids."""
    rule = policy.co_mention
    if rule is None or not rule.enabled:
        return
    ends = [
        end
        for end in _asserted(connection, document_key)
        if policy.hub_degree_cap is None or not _is_hub(connection, document_key, end.entity_key, policy.hub_degree_cap)
    ]
    linked = _linked(connection, document_key) if rule.skip_explicitly_linked else set()
    pairs = [pair for pair in combinations(ends, 2) if frozenset(end.entity_key for end in pair) not in linked]
    keys = edges.ensure(connection, [(subject, rule.edge_predicate, object_) for subject, object_ in pairs])
    edges.leave(connection, document_key)
    edges.add(connection, document_key, dict.fromkeys(keys, 1), "derived")
    edges.enter(connection, document_key, changes)


def _asserted(connection: apsw.Connection, document_key: int) -> list[End]:
    statement = (
        "SELECT entity_key, entity_id, kind, min(spelling) FROM assertions JOIN entities USING (entity_key)"
        " WHERE document_key = ? AND source <> 'name' GROUP BY entity_key ORDER BY entity_id LIMIT ?"
    )
    return [End(*row) for row in sql.rows(connection, statement, (document_key, ENTITIES_MAX))]


def _linked(connection: apsw.Connection, document_key: int) -> set[frozenset[int]]:
    """The pairs of entities that the document itself has an edge between."""
    statement = (
        "SELECT subject_key, object_key FROM relationship_assertions JOIN relationships USING (relationship_key)"
        " WHERE document_key = ? AND source <> 'derived'"
    )
    return {frozenset(pair) for pair in sql.rows(connection, statement, (document_key,))}


def _is_hub(connection: apsw.Connection, document_key: int, entity_key: int, cap: int) -> bool:
    """Whether the owner's other documents assert `cap` edges of the entity: what others file makes no hub."""
    statement = (
        "SELECT count(*) FROM (SELECT DISTINCT r.relationship_key FROM relationships r"
        " JOIN relationship_assertions a USING (relationship_key) JOIN documents d USING (document_key)"
        " WHERE (subject_key = ?1 OR object_key = ?1) AND document_key <> ?2"
        " AND d.owner_key = (SELECT owner_key FROM documents WHERE document_key = ?2) LIMIT ?3)"
    )
    return int(sql.value(connection, statement, (entity_key, document_key, cap))) >= cap
