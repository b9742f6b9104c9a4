"""Names that came or went, and the earlier documents whose links may differ for it. Runs inside the caller's
transaction.

Where a name came, these are the owner's texts that hold it and the documents that are called by it; where one went,
the documents that mention its entity (no name of what was removed is kept for this). They may be very many, so they are
taken round by round: `next_round` finds the next documents of what had the fewest rounds, and `done` notes, once all of
them are linked, how far that was. Names that go together through the same documents have these linked once. What
changes again starts afresh.

Only documents that were there at the change are gone through: a later one is linked, once it is indexed, by the names
there are then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

import apsw

from thread_service.store import sql

NAMES_A_ROUND = 1_024
DOCUMENTS_A_ROUND = 256
"""Texts and documents of a round, from which on nothing more is added to it; one name brings no more either."""

LOOKED_AT_MAX = 4_096
"""The same of what is looked at: also of documents whose links take the change into account already."""

_LAST_DOCUMENT = "(SELECT coalesce(max(document_key), 0) FROM documents)"


@dataclass(frozen=True, slots=True)
class _Changed:
    """A row of `changed_names`: a name that came, or an entity whose name went."""

    sequence: int
    owner_key: int
    name_key: str | None
    entity_key: int | None
    next_partition: int
    last_partition: int
    next_document: int
    last_document: int


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far one of them gets in a round: the next partition and document to look at, None when that was the last."""

    sequence: int
    next_partition: int | None
    next_document: int | None


@dataclass(frozen=True, slots=True)
class Round:
    """Documents to be linked again, ascending, and what is done then."""

    document_keys: Sequence[int]
    progress: Sequence[_Progress]


def note_coming(connection: apsw.Connection, owner_key: int, names: Mapping[str, bool]) -> None:
    """Documents that are called by one of the names, and, where it is true, that hold it in their texts, may be linked
    to it now."""
    connection.executemany(
        "INSERT OR REPLACE INTO changed_names (owner_key, name_key, last_partition, last_document) VALUES (?1, ?2,"
        " iif(?3 OR EXISTS (SELECT 1 FROM changed_names WHERE owner_key = ?1 AND name_key = ?2 AND last_partition > 0),"
        f" (SELECT coalesce(max(partition_key), 0) FROM partitions), 0), {_LAST_DOCUMENT})",
        [(owner_key, name_key, in_texts) for name_key, in_texts in names.items()],
    )


def note_going(connection: apsw.Connection, owner_key: int, entity_key: int) -> None:
    """Documents that mention the entity may be linked otherwise now."""
    connection.execute(
        "INSERT OR REPLACE INTO changed_names (owner_key, entity_key, last_partition, last_document)"
        f" VALUES (?, ?, 0, {_LAST_DOCUMENT})",
        (owner_key, entity_key),
    )


def forget(connection: apsw.Connection, owner_key: int, name_key: str) -> None:
    """The owner has nothing of this name any more: it links no document."""
    connection.execute("DELETE FROM changed_names WHERE owner_key = ? AND name_key = ?", (owner_key, name_key))


def newest(connection: apsw.Connection) -> int:
    """The place of the latest change among those that wait, 0 without any."""
    return int(sql.value(connection, "SELECT coalesce(max(sequence), 0) FROM changed_names"))


def is_waiting(connection: apsw.Connection, up_to: int) -> bool:
    """Whether a change up to this place waits for its first round."""
    statement = "SELECT 1 FROM changed_names WHERE rounds = 0 AND sequence <= ? LIMIT 1"
    return sql.value(connection, statement, (up_to,)) is not None


def next_round(
    connection: apsw.Connection,
    *,
    in_texts: bool,
    size: int = DOCUMENTS_A_ROUND,
    linked: Mapping[int, int] = MappingProxyType({}),
) -> Round | None:
    """None when nothing waits. `in_texts` False: texts are not looked at. `linked`: document → the latest change that
    its links take into account, where that is known; it is left out for changes up to that one."""
    found: set[int] = set()
    progress: list[_Progress] = []
    looked_at = 0
    for row in sql.rows(
        connection,
        "SELECT sequence, owner_key, name_key, entity_key, next_partition, last_partition, next_document, last_document"
        " FROM changed_names ORDER BY rounds, sequence LIMIT ?",
        (NAMES_A_ROUND,),
    ):
        changed = _Changed(*row)
        texts = _holding(connection, changed, size) if in_texts else []
        documents = _concerned(connection, changed, size)
        holding = (document_key for _, document_key in texts)
        found.update(key for key in chain(holding, documents) if linked.get(key, 0) < changed.sequence)
        progress.append(
            _Progress(
                changed.sequence,
                texts[-1][0] + 1 if len({partition for partition, _ in texts}) == size else None,
                documents[-1] + 1 if len(documents) == size else None,
            )
        )
        looked_at += len(texts) + len(documents)
        if len(found) >= size or looked_at >= LOOKED_AT_MAX:
            break
    return Round(sorted(found), progress) if progress else None


def done(connection: apsw.Connection, progress: Sequence[_Progress]) -> None:
    """The documents of the round have been linked again. What changed meanwhile has another place by now."""
    for each in progress:
        if each.next_partition is None and each.next_document is None:
            connection.execute("DELETE FROM changed_names WHERE sequence = ?", (each.sequence,))
        else:
            connection.execute(
                "UPDATE changed_names SET rounds = rounds + 1, next_partition = coalesce(?2, last_partition + 1),"
                " next_document = coalesce(?3, last_document + 1) WHERE sequence = ?1",
                (each.sequence, each.next_partition, each.next_document),
            )


def _holding(connection: apsw.Connection, changed: _Changed, limit: int) -> list[tuple[int, int]]:
    """(partition_key, document_key), ascending, of the owner's texts that hold the name as a phrase: a superset, as the
    index compares stems. At most `limit` partitions, each with all its documents."""
    if changed.name_key is None or changed.next_partition > changed.last_partition:
        return []
    statement = (
        # The owner is not looked for in the index: that would read every row of a large owner for a rare name.
        "SELECT words.rowid, document_key FROM words CROSS JOIN partitions ON partition_key = words.rowid"
        " CROSS JOIN documents USING (content_key)"
        " WHERE words MATCH ? AND words.rowid BETWEEN ? AND ? AND owner_key = ? ORDER BY words.rowid"
    )
    among = (changed.next_partition, changed.last_partition, changed.owner_key)
    found: list[tuple[int, int]] = []
    partitions: set[int] = set()
    for partition_key, document_key in connection.execute(statement, (f'body : "{changed.name_key}"', *among)):
        partitions.add(partition_key)
        if len(partitions) > limit:
            break
        found.append((partition_key, document_key))
    return found


def _concerned(connection: apsw.Connection, changed: _Changed, limit: int) -> list[int]:
    """The owner's documents that are called by the name, or mention the entity; ascending, at most `limit`."""
    if changed.name_key is None:
        source = "mentions CROSS JOIN documents USING (document_key) WHERE entity_key = ?1"
    else:
        # The condition that the index of names is partial by, or it would not be used.
        source = "documents WHERE name_key = ?1 AND name_key <> ''"
    statement = (
        f"SELECT document_key FROM {source} AND owner_key = ?2 AND document_key BETWEEN ?3 AND ?4"
        " ORDER BY document_key LIMIT ?5"
    )
    wanted = changed.entity_key if changed.name_key is None else changed.name_key
    among = (changed.owner_key, changed.next_document, changed.last_document, limit)
    return [*sql.column(connection, statement, (wanted, *among))]
