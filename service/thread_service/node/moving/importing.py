"""Filing records in a store, for a node that does not run: its next start indexes them.

Each document goes through the same steps as a deposit, in the order of the records, many in a transaction. One that the
owner has already is left as it is; so an import that was cut off is begun again and goes on, and nothing is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.errors import InvalidRequest, ThreadError
from thread_service.node.filing import check
from thread_service.node.moving import records
from thread_service.node.moving.records import Document, End, Group, Header, Owner, Record, Unread
from thread_service.node.operations import DocumentIn, PartitionIn, owner_id
from thread_service.store import contents, documents, graph, group_tags, pending, policies, registry, sql
from thread_service.store.changes import Changes
from thread_service.store.disk import Disk
from thread_service.store.pending import SaidGraph
from thread_service.text import policy
from thread_service.text.ids import content_digest

DOCUMENTS_AT_ONCE = 64
BYTES_AT_ONCE = 4 << 20
"""Of texts in one transaction."""
NAMED_MAX = 1_000
"""Things that could not be read that are named; further ones are counted."""


@dataclass(slots=True)
class Imported:
    """`skipped`: documents that their owner has. `failed`: how much could not be read or filed; `unread`: what."""

    documents: int = 0
    skipped: int = 0
    groups: int = 0
    owners: int = 0
    failed: int = 0
    unread: list[Unread] = field(default_factory=list)

    def note(self, what: Unread) -> None:
        self.failed += 1
        if len(self.unread) < NAMED_MAX:
            self.unread.append(what)

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("documents", "skipped", "groups", "owners", "failed")},
            "unread": [{"item": each.item, "what": each.what} for each in self.unread],
        }


def file_records(disk: Disk, found: Iterable[Record | Unread]) -> Imported:
    """File every record. Blocking. What `found` raises passes through; what was filed until then stays.

    StorageFull, StoreFailed: as for any write.
    """
    done = Imported()
    waiting: list[Document] = []
    size = 0
    for record in found:
        if isinstance(record, Document):
            waiting.append(record)
            size += sum(map(len, record.texts))
            if len(waiting) >= DOCUMENTS_AT_ONCE or size >= BYTES_AT_ONCE:
                _file(disk, waiting, done)
                waiting, size = [], 0
        elif isinstance(record, Unread):
            done.note(record)
        elif not isinstance(record, Header | End):
            _settle(disk, record, done)
    _file(disk, waiting, done)
    return done


def _settle(disk: Disk, record: Owner | Group | records.Policy, done: Imported) -> None:
    def work(connection: apsw.Connection, changes: Changes) -> None:
        if isinstance(record, Owner):
            before = registry.owner_key(connection, owner_id(record.id))
            registry.ensure_owner(connection, owner_id(record.id))
            done.owners += before is None
        elif isinstance(record, Group):
            done.groups += _ensure_group(connection, record)
        elif sql.value(connection, "SELECT 1 FROM policy") is None:
            policies.write(connection, _policy(record))

    disk.write(work).result()


def _ensure_group(connection: apsw.Connection, record: Group) -> bool:
    """Whether it is new; one that is there stays as it is."""
    owner_key = registry.ensure_owner(connection, owner_id(record.owner))
    if registry.group(connection, owner_key, record.id) is not None:
        return False
    registry.ensure_group(
        connection,
        owner_key,
        record.id,
        label=record.label,
        access=record.access,
        description=record.description,
        tags=tuple(record.tags),
    )
    return True


def _policy(record: records.Policy) -> policy.Policy:
    return policy.Policy(
        tuple(record.kinds),
        record.prompt_template,
        record.predicate_aliases,
        record.max_entities,
        record.max_relationships,
        record.co_mention,
        record.hub_degree_cap,
    )


# ---------------------------------------------------------------------------------------------------- documents


def _file(disk: Disk, waiting: list[Document], done: Imported) -> None:
    ready: list[tuple[Document, list[NDArray[np.float32] | None]]] = []
    for record in waiting:
        try:
            ready.append((record, _checked(record)))
        except InvalidRequest as error:
            done.note(Unread(f"document {record.id!a} of {record.owner!a}", str(error)))
    if not ready:
        return

    def work(connection: apsw.Connection, changes: Changes) -> int:
        return sum(_file_one(connection, record, vectors, changes) for record, vectors in ready)

    try:
        filed = disk.write(work, is_large=True).result()
    except ThreadError:
        raise
    except Exception as error:
        _file_apart(disk, [record for record, _ in ready], done, error)
        return
    done.documents += filed
    done.skipped += len(ready) - filed


def _file_apart(disk: Disk, filed: list[Document], done: Imported, error: Exception) -> None:
    """One of them is at fault: each alone, so that the others are filed."""
    if len(filed) > 1:
        for record in filed:
            _file(disk, [record], done)
    else:
        what = f"could not be filed: {type(error).__name__}: {error}"
        done.note(Unread(f"document {filed[0].id!a} of {filed[0].owner!a}", what))


def _checked(record: Document) -> list[NDArray[np.float32] | None]:
    """Its vectors, one entry for each text. InvalidRequest: it could not have been filed."""
    if not record.id:
        raise InvalidRequest.field("id", "is empty")
    vectors: list[NDArray[np.float32] | None] = [None] * len(record.texts)
    if record.vectors is not None:
        if any(data is not None and len(data) % 4 for data in record.vectors):
            raise InvalidRequest.field("vectors", "are no float32 numbers")
        vectors = [None if data is None else np.frombuffer(data, "<f4").astype(np.float32) for data in record.vectors]
    if record.urls is not None and len(record.urls) != len(record.texts):
        raise InvalidRequest.field("urls", "has another number of entries than texts")
    if not set(record.group_tags) <= set(record.groups) >= {record.primary_group} - {None}:
        raise InvalidRequest.field("groups", "lacks a group that is named beside it")
    partitions = () if record.vectors is None else tuple(PartitionIn(vector) for vector in vectors)
    check(0, DocumentIn(tuple(record.texts), record.id, partitions=partitions))
    said = _said(record)
    if said.kept is not None:
        graph.kept_contribution(said.kept)
    return vectors


def _said(record: Document) -> SaidGraph:
    if record.waiting is not None:
        return record.waiting
    return SaidGraph(None, []) if record.graph is None else SaidGraph([], [], record.graph)


def _file_one(
    connection: apsw.Connection, record: Document, vectors: list[NDArray[np.float32] | None], changes: Changes
) -> bool:
    """False when the owner has it already."""
    owner_key = registry.ensure_owner(connection, owner_id(record.owner))
    if documents.find(connection, owner_key, record.id) is not None:
        return False
    digest = content_digest(record.media_type, record.texts, vectors)
    found = contents.find(connection, digest)
    if found is None:
        content_key = contents.create(connection, digest, record.media_type, record.texts, vectors)
    else:
        content_key, state = found
        if state == "failed":
            contents.retry(connection, content_key)
    said = documents.Said(content_key, record.name, record.metadata, record.urls, record.created_at)
    document_key = documents.create(connection, owner_key, record.id, said)
    groups = {group_id: _group_key(connection, owner_key, group_id) for group_id in record.groups}
    primary = None if record.primary_group is None else groups[record.primary_group]
    documents.place(connection, document_key, groups.values(), primary, is_named=record.is_named)
    for group_id, tags in record.group_tags.items():
        group_tags.add(connection, document_key, groups[group_id], tags)
    documents.set_access(connection, [document_key], record.access, changes)
    pending.enqueue(connection, document_key, _said(record))
    return True


def _group_key(connection: apsw.Connection, owner_key: int, group_id: str) -> int:
    """Of a group whose record could not be read, a restricted one without label."""
    group, _ = registry.ensure_group(
        connection, owner_key, group_id, label="", access=None, description=None, tags=None
    )
    return group.group_key
