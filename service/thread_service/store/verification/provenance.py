"""The graph against its provenance: what no document asserts is not there, and what follows from assertions is right.

Counts that are kept have a check of their own (`counts`); all others are sums over assertions.
"""

from __future__ import annotations

from collections import defaultdict

import apsw
import msgspec

from thread_service.store import audience, sql
from thread_service.store.verification.look import (
    ROWS_AT_ONCE,
    Look,
    Range,
    documents_of_subject,
    documents_that_assert,
)
from thread_service.text import ids
from thread_service.text.mentions import head, name_key


def check_entities(look: Look) -> None:
    """Entities that nobody asserts or mentions, or that have another id or name than what is asserted."""

    def work(connection: apsw.Connection, within: Range) -> int:
        among = "entity_key > ? AND entity_key <= ?"
        said: defaultdict[int, set[str]] = defaultdict(set)
        stored: dict[int, tuple[str, str, str]] = {}
        for key, entity_id, kind, name, spelling in sql.rows(
            connection,
            "SELECT DISTINCT entity_key, entity_id, kind, name_key, spelling"
            f" FROM entities LEFT JOIN assertions USING (entity_key) WHERE {among}",
            within,
        ):
            stored[key] = entity_id, kind, name
            if spelling is not None:
                said[key].add(ids.normalise_name(spelling))
        # What nobody asserts any more stays until the last document that mentions it is linked again.
        mentioned = {*sql.column(connection, f"SELECT DISTINCT entity_key FROM mentions WHERE {among}", within)}
        for key, (entity_id, kind, name) in stored.items():
            complaints = []
            if not said[key] and key not in mentioned:
                complaints.append("is asserted by no document")
            if any(ids.entity_id(kind, each) != entity_id for each in said[key]):
                complaints.append("is asserted under a name or kind that is not the one of its id")
            elif any(name_key(each) != name for each in said[key]):
                complaints.append(f"has the name {name!a}, under which no document asserts it")
            hit = documents_that_assert(connection, key) if complaints else []
            for complaint in complaints:
                look.damage(complaint, hit, table="entities", key=key)
        return len(stored)

    look.slices("entities", "entity_key", work)


def check_words(look: Look) -> None:
    """Every word of an entity's name leads to the entity, and no other does."""

    def missing(connection: apsw.Connection, within: Range) -> int:
        statement = "SELECT entity_key, name_key FROM entities WHERE entity_key > ? AND entity_key <= ?"
        found = sql.rows(connection, statement, within)
        wanted = [(word, key) for key, name in found for word in {*name.split()}]
        lost = sql.rows(
            connection,
            "SELECT value ->> 0, value ->> 1 FROM json_each(?) WHERE NOT EXISTS"
            " (SELECT 1 FROM entity_words WHERE word = value ->> 0 AND entity_key = value ->> 1)",
            (msgspec.json.encode(wanted).decode(),),
        )
        for word, key in lost:
            hit = documents_that_assert(connection, key)
            look.damage("is missing: it is a word of the entity's name", hit, table="entity_words", key=(word, key))
        return len(wanted)

    def strange(connection: apsw.Connection, after: tuple[str, int]) -> tuple[str, int] | None:
        found = sql.rows(
            connection,
            "SELECT word, entity_key, name_key FROM entity_words LEFT JOIN entities USING (entity_key)"
            " WHERE (word, entity_key) > (?, ?) ORDER BY word, entity_key LIMIT ?",
            (*after, ROWS_AT_ONCE),
        )
        for word, key, name in found:
            if word not in (name or "").split():
                look.damage("is no word of the entity's name", table="entity_words", key=(word, key))
        return (found[-1][0], found[-1][1]) if found else None

    look.slices("entities", "entity_key", missing)
    look.pages("entity_words", strange, ("", 0))


def check_assertions(look: Look) -> None:
    """What each document says: for its own owner, no keyword to be linked, and every count at least one."""

    def work(connection: apsw.Connection, within: Range) -> int:
        among = "document_key > ? AND document_key <= ?"
        found = sql.rows(
            connection,
            "SELECT document_key, document_id, entity_key, a.owner_key, d.owner_key, source, linkable, mentions"
            f" FROM assertions a JOIN documents d USING (document_key) WHERE {among}",
            within,
        )
        light = sql.rows(
            connection,
            "SELECT document_key, document_id, relationship_key, source, weight FROM relationship_assertions"
            f" JOIN documents USING (document_key) WHERE weight < 1 AND {among}",
            within,
        )
        for document, document_id, entity, owner, true_owner, source, linkable, mentions in found:
            complaints = []
            if owner != true_owner:
                complaints.append(f"is asserted for owner {owner} by a document of owner {true_owner}")
            if mentions < 1:
                complaints.append(f"is mentioned {mentions} times")
            if linkable and source == "keyword":
                complaints.append("is a keyword that is marked as linkable")
            for complaint in complaints:
                look.damage(complaint, [document_id], table="assertions", key=(document, entity, source))
        for document, document_id, edge, source, weight in light:
            where = {"table": "relationship_assertions", "key": (document, edge, source)}
            look.damage(f"has weight {weight}", [document_id], **where)
        return len(found)

    look.slices("assertions", "document_key", work)


def check_relationships(look: Look) -> None:
    """Edges that nobody asserts, that have another id than their ends and predicate give, or other readers than the
    documents that assert them."""

    def work(connection: apsw.Connection, within: Range) -> int:
        among = "relationship_key > ? AND relationship_key <= ?"
        found = sql.rows(
            connection,
            "SELECT relationship_key, relationship_id, s.entity_id, predicate, o.entity_id, r.readers"
            " FROM relationships r JOIN entities s ON s.entity_key = subject_key"
            " JOIN entities o ON o.entity_key = object_key"
            f" JOIN predicates USING (predicate_key) WHERE {among}",
            within,
        )
        tokens: defaultdict[int, set[str]] = defaultdict(set)
        for key, owner_key, access in sql.rows(
            connection,
            "SELECT DISTINCT relationship_key, owner_key, access FROM relationship_assertions"
            f" JOIN documents USING (document_key) WHERE {among}",
            within,
        ):
            tokens[key] |= audience.of_document(owner_key, access, ())
        for key, edge_id, subject, predicate, object_, readers in found:
            complaints = []
            if ids.relationship_id(subject, predicate, object_) != edge_id:
                complaints.append("has another id than its ends and predicate give")
            if not tokens[key]:
                complaints.append("is asserted by no document")
            elif readers != (expected := audience.join(tokens[key])):
                complaints.append(f"is open to the readers {readers!r}, and its documents say {expected!r}")
            hit = documents_of_subject(connection, "relationship", key) if complaints else []
            for complaint in complaints:
                look.damage(complaint, hit, table="relationships", key=key)
        return len(found)

    look.slices("relationships", "relationship_key", work)


def check_predicates(look: Look) -> None:
    """Predicates without an edge, with another id than their word gives, or whose readers are counted wrongly."""
    counted = (
        "SELECT predicate_key, reader, sum(edges) FROM ("
        " SELECT predicate_key, '{own}' || owner_key AS reader, count(*) AS edges FROM {joined} GROUP BY 1, 2"
        " UNION ALL SELECT predicate_key, '{all}', count(*) FROM {joined} WHERE access = 'available' GROUP BY 1)"
        " GROUP BY 1, 2"
    ).format(
        own=audience.own(0)[:-1],
        all=audience.AVAILABLE,
        joined="(SELECT DISTINCT predicate_key, document_key, relationship_key, owner_key, access"
        " FROM relationship_assertions JOIN relationships USING (relationship_key) JOIN documents USING (document_key)"
        " WHERE predicate_key > ?1 AND predicate_key <= ?2)",
    )

    def work(connection: apsw.Connection, within: Range) -> int:
        among = "predicate_key > ? AND predicate_key <= ?"
        statement = f"SELECT predicate_key, predicate_id, predicate, readers FROM predicates WHERE {among}"
        found = sql.rows(connection, statement, within)
        expected: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for key, reader, edges in sql.rows(connection, counted, within):
            expected[key][reader] = edges
        stored: defaultdict[int, dict[str, int]] = defaultdict(dict)
        statement = f"SELECT predicate_key, reader, edges FROM predicate_readers WHERE {among}"
        for key, reader, edges in sql.rows(connection, statement, within):
            stored[key][reader] = edges
        for key, predicate_id, predicate, readers in found:
            complaints = []
            if ids.predicate_id(predicate) != predicate_id:
                complaints.append("has another id than its word gives")
            if not expected[key]:
                complaints.append("is in no relationship that a document asserts")
            if stored[key] != expected[key]:
                complaints.append(f"counts its readers as {stored[key]}, and its documents as {expected[key]}")
            elif readers != audience.join(expected[key]):
                complaints.append(f"is open to the readers {readers!r}, and its documents say {sorted(expected[key])}")
            hit = documents_of_subject(connection, "predicate", key) if complaints else []
            for complaint in complaints:
                look.damage(complaint, hit, table="predicates", key=key)
        return len(found)

    look.slices("predicates", "predicate_key", work)


def check_names(look: Look) -> None:
    """An owner's linkable names are those under which the owner asserts something linkable."""

    def asserted(connection: apsw.Connection, within: Range) -> int:
        found = sql.rows(
            connection,
            "SELECT DISTINCT a.owner_key, name_key FROM entities e JOIN assertions a USING (entity_key)"
            " WHERE linkable AND name_key <> '' AND entity_key > ? AND entity_key <= ? AND NOT EXISTS"
            " (SELECT 1 FROM names n WHERE n.owner_key = a.owner_key AND n.name_key = e.name_key)",
            within,
        )
        for owner, name in found:
            look.damage(f"the name {name!a} is asserted and not there", table="names", key=(owner, name))
        return 0

    def stored(connection: apsw.Connection, after: tuple[int, str]) -> tuple[int, str] | None:
        found = sql.rows(
            connection,
            "SELECT owner_key, name_key, head, EXISTS (SELECT 1 FROM entities e JOIN assertions a USING (entity_key)"
            "  WHERE e.name_key = n.name_key AND a.owner_key = n.owner_key AND linkable)"
            " FROM names n WHERE (owner_key, name_key) > (?, ?) ORDER BY owner_key, name_key LIMIT ?",
            (*after, ROWS_AT_ONCE),
        )
        for owner, name, first, is_asserted in found:
            if not is_asserted:
                look.damage(f"the name {name!a} is asserted by no document", table="names", key=(owner, name))
            if first != head(name):
                look.damage(f"the name {name!a} cannot be found by its first words", table="names", key=(owner, name))
        look.examined(len(found))
        return (found[-1][0], found[-1][1]) if found else None

    look.slices("entities", "entity_key", asserted)
    look.pages("names", stored, (0, ""))


def check_mentions(look: Look) -> None:
    """A document mentions what its owner asserts, or is still to be linked again."""

    def work(connection: apsw.Connection, within: Range) -> int:
        among = "m.document_key > ? AND m.document_key <= ?"
        wrong = sql.rows(
            connection,
            "SELECT m.document_key, document_id, entity_key FROM mentions m JOIN documents d USING (document_key)"
            " JOIN entities e USING (entity_key) WHERE NOT EXISTS (SELECT 1 FROM assertions a"
            "  WHERE a.entity_key = m.entity_key AND a.owner_key = d.owner_key AND source <> 'keyword')"
            " AND NOT EXISTS (SELECT 1 FROM relink r WHERE r.document_key = m.document_key)"
            " AND NOT EXISTS (SELECT 1 FROM changed_names c"
            "  WHERE c.owner_key = d.owner_key AND (c.entity_key = m.entity_key OR c.name_key = e.name_key))"
            f" AND {among}",
            within,
        )
        for document, document_id, entity in wrong:
            what = f"mentions entity {entity}, which its owner does not assert"
            look.damage(what, [document_id], table="mentions", key=(document, entity))
        return int(sql.value(connection, f"SELECT count(*) FROM mentions m WHERE {among}", within))

    look.slices("mentions", "document_key", work)


def check_stamp(look: Look) -> None:
    """Vectors of a model have the width of the model that the index is stamped with, or is being embedded with."""

    def work(connection: apsw.Connection, within: Range) -> int:
        for stamped, purposes in (
            ("stamp", "purpose IN ('model', 'relationship', 'predicate')"),
            ("next_stamp", "purpose LIKE 'next%'"),
        ):
            width = sql.value(connection, f"SELECT width FROM {stamped}")
            for key, found in sql.rows(
                connection,
                "SELECT vector_key, width FROM vectors WHERE vector_key > ?1 AND vector_key <= ?2"
                f" AND {purposes} AND (?3 IS NULL OR width <> ?3)",
                (*within, width),
            ):
                of = "no model" if width is None else f"a model of width {width}"
                look.damage(f"has width {found}, and the index is of {of}", table="vectors", key=key)
        return 0

    look.slices("vectors", "vector_key", work)
