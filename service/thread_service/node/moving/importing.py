"""Filing records in a store, for a node that does not run: its next start indexes them.

Each document goes through the same steps as a deposit, in the order of the records, many in a transaction. One that the
owner has already is left as it is; so an import that was cut off is begun again and goes on, and nothing is replaced.
A record at fault costs nothing but itself: it is named, and the others are filed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import apsw

from thread_service.errors import InvalidRequest, ThreadError
from thread_service.node.moving import records
from thread_service.node.moving.checks import Vectors, check, checked, said_graph
from thread_service.node.moving.records import Document, End, Group, Header, Line, Owner, Record, Unread
from thread_service.node.operations import owner_id
from thread_service.store import contents, documents, group_tags, pending, policies, registry, sql
from thread_service.store.changes import Changes
from thread_service.store.disk import Disk
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


def file_records(disk: Disk, found: Iterable[Record | Line | Unread]) -> Imported:
    """File every record. Blocking. What `found` raises passes through; what was filed until then stays.

    StorageFull, StoreFailed: as for any write.
    """
    done = Imported()
    waiting: list[_Waiting] = []
    size = 0
    for each in found:
        record, where = (each.record, f"line {each.number}: ") if isinstance(each, Line) else (each, "")
        if isinstance(record, Document):
            waiting.append(_Waiting(record, f"{where}document {record.id!a} of {record.owner!a}"))
            size += sum(map(len, record.texts))
            if len(waiting) >= DOCUMENTS_AT_ONCE or size >= BYTES_AT_ONCE:
                _file(disk, waiting, done)
                waiting, size = [], 0
        elif isinstance(record, Unread):
            done.note(record)
        elif not isinstance(record, Header | End):
            _settle(disk, record, f"{where}{_named(record)}", done)
    _file(disk, waiting, done)
    return done


def _named(record: Owner | Group | records.Policy) -> str:
    if isinstance(record, Owner):
        return f"owner {record.id!a}"
    return f"group {record.id!a} of {record.owner!a}" if isinstance(record, Group) else "policy"


def _not_filed(item: str, error: Exception) -> Unread:
    return Unread(item, f"could not be filed: {type(error).__name__}: {error}")


def _settle(disk: Disk, record: Owner | Group | records.Policy, item: str, done: Imported) -> None:
    def work(connection: apsw.Connection, changes: Changes) -> bool:
        if isinstance(record, Owner):
            is_new = registry.owner_key(connection, owner_id(record.id)) is None
            registry.ensure_owner(connection, owner_id(record.id))
            return is_new
        if isinstance(record, Group):
            return _ensure_group(connection, record)
        if sql.value(connection, "SELECT 1 FROM policy") is None:
            policies.write(connection, _policy(record))
        return False

    try:
        check(record)
        is_new = disk.write(work).result()
    except InvalidRequest as error:
        done.note(Unread(item, str(error)))
    except ThreadError:
        raise
    except Exception as error:
        done.note(_not_filed(item, error))
    else:
        done.owners += is_new and isinstance(record, Owner)
        done.groups += is_new and isinstance(record, Group)


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


@dataclass(frozen=True, slots=True)
class _Waiting:
    """`item`: how it is named when it cannot be filed."""

    record: Document
    item: str


def _file(disk: Disk, waiting: list[_Waiting], done: Imported) -> None:
    ready: list[tuple[_Waiting, Vectors]] = []
    for each in waiting:
        try:
            ready.append((each, checked(each.record)))
        except InvalidRequest as error:
            done.note(Unread(each.item, str(error)))
    if not ready:
        return

    def work(connection: apsw.Connection, changes: Changes) -> int:
        return sum(_file_one(connection, each.record, vectors, changes) for each, vectors in ready)

    try:
        filed = disk.write(work, is_large=True).result()
    except ThreadError:
        raise
    except Exception as error:
        _file_apart(disk, [each for each, _ in ready], done, error)
        return
    done.documents += filed
    done.skipped += len(ready) - filed


def _file_apart(disk: Disk, filed: list[_Waiting], done: Imported, error: Exception) -> None:
    """One of them is at fault: each alone, so that the others are filed."""
    if len(filed) > 1:
        for each in filed:
            _file(disk, [each], done)
    else:
        done.note(_not_filed(filed[0].item, error))


def _file_one(connection: apsw.Connection, record: Document, vectors: Vectors, changes: Changes) -> bool:
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
    pending.enqueue(connection, document_key, said_graph(record))
    return True


def _group_key(connection: apsw.Connection, owner_key: int, group_id: str) -> int:
    """Of a group whose record could not be read, a restricted one without label."""
    group, _ = registry.ensure_group(
        connection, owner_key, group_id, label="", access=None, description=None, tags=None
    )
    return group.group_key
