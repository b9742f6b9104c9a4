"""What a store and its memory hold, by names and content addresses instead of keys, so that two can be compared."""

from __future__ import annotations

from typing import Any

import apsw
import numpy as np
from in_process import InProcess, table

from thread_service.store import audience
from thread_service.store.resident import Resident

Snapshot = dict[str, Any]


class _Names:
    """What the keys of one store stand for."""

    def __init__(self, db: apsw.Connection) -> None:
        self.owners = dict(table(db, "SELECT owner_key, owner_id FROM owners"))
        self.groups = {
            key: (self.owners[owner], group_id)
            for key, owner, group_id in table(db, "SELECT group_key, owner_key, group_id FROM groups")
        }
        self.documents = {
            key: (self.owners[owner], document_id)
            for key, owner, document_id in table(db, "SELECT document_key, owner_key, document_id FROM documents")
        }
        self.contents = {key: digest.hex()[:8] for key, digest in table(db, "SELECT content_key, digest FROM contents")}
        self.partitions = {
            key: (self.contents[content], ordinal)
            for key, content, ordinal in table(db, "SELECT partition_key, content_key, ordinal FROM partitions")
        }
        self.entities = {
            key: (kind, name) for key, kind, name in table(db, "SELECT entity_key, kind, name_key FROM entities")
        }
        self.predicates = dict(table(db, "SELECT predicate_key, predicate FROM predicates"))
        self.relationships = {
            key: (self.entities[subject], self.predicates[predicate], self.entities[object_])
            for key, subject, predicate, object_ in table(
                db, "SELECT relationship_key, subject_key, predicate_key, object_key FROM relationships"
            )
        }
        self.tokens = {
            audience.AVAILABLE: ("available",),
            **{audience.media(media): ("media", media) for media in ("text", "image", "code")},
            **{audience.own(key): ("own", owner) for key, owner in self.owners.items()},
            **{audience.in_group(key): ("group", group) for key, group in self.groups.items()},
            **{audience.public_in_group(key): ("public in group", group) for key, group in self.groups.items()},
        }

    def readers(self, stored: str) -> frozenset[tuple[Any, ...]]:
        return frozenset(self.tokens[token] for token in stored.split())

    def subject(self, purpose: str, key: int) -> Any:
        by_purpose = {"relationship": self.relationships, "predicate": self.predicates}
        return by_purpose.get(purpose, self.partitions)[key]


def stored(node: InProcess) -> Snapshot:
    """Everything but the registry of owners and groups (which outlive their documents) and times."""
    db = apsw.Connection(str(node.store.directory.database))
    try:
        return _stored(db, node, _Names(db))
    finally:
        db.close()


def _stored(db: apsw.Connection, node: InProcess, names: _Names) -> Snapshot:
    found: Snapshot = {}
    in_groups: dict[int, set[Any]] = {}
    for key, group in table(db, "SELECT document_key, group_key FROM document_groups"):
        in_groups.setdefault(key, set()).add(names.groups[group])
    found["documents"] = {
        names.documents[key]: (
            names.contents[content], name, name_key, bytes(metadata), urls, access, names.groups.get(primary),
            in_groups.pop(key, set()),
        )
        for key, content, name, name_key, metadata, urls, access, primary in table(
            db,
            "SELECT document_key, content_key, name, name_key, metadata, urls, access, primary_group FROM documents",
        )
    }  # fmt: skip
    found["groups of nothing"] = in_groups
    found["group tags"] = sorted(
        (names.groups[group], tag, names.documents[document])
        for group, tag, document in table(db, "SELECT group_key, tag, document_key FROM group_tags")
    )
    found["contents"] = {
        names.contents[key]: (media, state, failure, names.readers(readers))
        for key, media, state, failure, readers in table(
            db, "SELECT content_key, media_type, state, failure, readers FROM contents"
        )
    }
    found["partitions"] = {
        names.partitions[key]: (text, brought, vector)
        for key, text, brought, vector in table(
            db,
            "SELECT partition_key, text, brought, vector FROM partitions"
            " LEFT JOIN brought_vectors USING (partition_key)",
        )
    }
    found["entities"] = sorted(
        (entity_id, names.entities[key]) for key, entity_id in table(db, "SELECT entity_key, entity_id FROM entities")
    )
    found["entity words"] = sorted(
        (word, names.entities[key]) for word, key in table(db, "SELECT word, entity_key FROM entity_words")
    )
    readers = {0: "everybody", **names.owners}
    found["entity readers"] = sorted(
        (names.entities[key], readers[reader], *counts)
        for key, reader, *counts in table(db, "SELECT entity_key, reader, assertions, mentions FROM entity_readers")
    )
    found["entity counts"] = {
        readers[reader]: count for reader, count in table(db, "SELECT reader, entities FROM entity_counts") if count
    }
    found["relationship counts"] = {
        names.readers(stored): count
        for stored, count in table(db, "SELECT readers, relationships FROM relationship_counts")
    }
    found["assertions"] = sorted(
        (names.documents[document], names.entities[entity], names.owners[owner], *how)
        for document, entity, owner, *how in table(
            db, "SELECT document_key, entity_key, owner_key, source, spelling, linkable, mentions FROM assertions"
        )
    )
    found["mentions"] = sorted(
        (names.documents[document], names.entities[entity])
        for document, entity in table(db, "SELECT document_key, entity_key FROM mentions")
    )
    found["names"] = sorted(
        (names.owners[owner], *name) for owner, *name in table(db, "SELECT owner_key, name_key, head FROM names")
    )
    found["relationships"] = {
        relationship_id: (names.relationships[key], names.readers(readers))
        for key, relationship_id, readers in table(
            db, "SELECT relationship_key, relationship_id, readers FROM relationships"
        )
    }
    found["relationship assertions"] = sorted(
        (names.documents[document], names.relationships[edge], *how)
        for document, edge, *how in table(
            db, "SELECT document_key, relationship_key, source, weight FROM relationship_assertions"
        )
    )
    found["predicates"] = {
        names.predicates[key]: names.readers(readers)
        for key, readers in table(db, "SELECT predicate_key, readers FROM predicates")
    }
    found["predicate readers"] = {
        (names.predicates[key], names.tokens[token]): edges
        for key, token, edges in table(db, "SELECT predicate_key, reader, edges FROM predicate_readers")
    }
    found["vectors"] = _vectors(db, node, names)
    found["words"] = _words(db, names)
    found["to do"] = [
        table(db, f"SELECT count(*) FROM {name}")[0][0] for name in ("pending", "relink", "changed_names", "unembedded")
    ]
    return found


def _vectors(db: apsw.Connection, node: InProcess, names: _Names) -> dict[Any, list[bytes]]:
    """The bytes of every row, by what it is for; a list, so that a row too many shows."""
    found: dict[Any, list[bytes]] = {}
    files: dict[int, bytes] = {}
    for purpose, width, subject, segment, slot in table(
        db, "SELECT purpose, width, subject_key, segment, slot FROM vectors"
    ):
        if segment not in files:
            files[segment] = (node.store.directory.vectors / f"{segment:06d}.f32").read_bytes()
        row = files[segment][slot * width * 4 : (slot + 1) * width * 4]
        # Sums of the same words in another order differ in the last bits.
        rounded = np.frombuffer(row, "<f4").round(5).tobytes() if purpose != "caller" else row
        found.setdefault((purpose, width, names.subject(purpose, subject)), []).append(rounded)
    return found


def _words(db: apsw.Connection, names: _Names) -> dict[Any, Any]:
    """The terms of every row of the full-text index, in order, and its readers."""
    db.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab('main', 'words', 'instance')")
    rows: dict[int, tuple[dict[int, str], set[Any]]] = {}
    for term, key, column, offset in table(db, "SELECT term, doc, col, offset FROM temp.terms"):
        body, readers = rows.setdefault(key, ({}, set()))
        if column == "body":
            body[offset] = term
        else:
            readers.add(names.tokens[term])
    return {
        names.partitions[key]: ([body[offset] for offset in sorted(body)], readers)
        for key, (body, readers) in rows.items()
    }


def in_memory(node: InProcess, resident: Resident | None = None) -> Snapshot:
    """What `resident` (the node's own) answers for every reader token, and its maps, by name."""
    db = apsw.Connection(str(node.store.directory.database))
    try:
        names = _Names(db)
    finally:
        db.close()
    memory = resident or node.store.resident
    found: Snapshot = {"document count": memory.document_count}
    for (purpose, width), rows in memory.tables.items():
        for token, meaning in names.tokens.items():
            [hits] = rows.table.search(np.zeros((1, width), np.float32), rows.table.row_count, [rows.filter([token])])
            if len(hits.rows):
                subjects = sorted(names.subject(purpose, key) for key in rows.subjects_of(hits.rows).tolist())
                found[f"{purpose}@{width} {meaning}"] = subjects
        if rows.table.live_count:  # an empty table stays until the node ends
            found[f"{purpose}@{width} live"] = rows.table.live_count
    for token, meaning in names.tokens.items():
        if documents := memory.documents([token]):
            found[f"documents {meaning}"] = sorted(names.documents[key] for key in documents)
    keys = list(names.documents)
    found["contents of documents"] = [
        (names.documents[key], names.contents[content])
        for key, content in zip(keys, memory.contents_of_documents(keys).tolist(), strict=True)
    ]
    found["partitions of contents"] = [
        (content, [names.partitions[key] for key in memory.partitions_of_content(content_key)])
        for content_key, content in names.contents.items()
    ]
    keys = list(names.partitions)
    found["contents of partitions"] = [
        (names.partitions[key], names.contents[content])
        for key, content in zip(keys, memory.contents_of_partitions(keys).tolist(), strict=True)
    ]
    return {what: sorted(value) if isinstance(value, list) else value for what, value in found.items()}
