"""Owners and groups. Every function runs inside the caller's transaction."""

from __future__ import annotations

from dataclasses import dataclass

import apsw
import msgspec

from thread_service.store import sql


@dataclass(frozen=True, slots=True)
class Group:
    group_key: int
    owner_key: int
    group_id: str
    label: str
    description: str | None
    tags: tuple[str, ...]
    access: str


def owner_key(connection: apsw.Connection, owner_id: str) -> int | None:
    found: int | None = sql.value(connection, "SELECT owner_key FROM owners WHERE owner_id = ?", (owner_id,))
    return found


def ensure_owner(connection: apsw.Connection, owner_id: str) -> int:
    found = owner_key(connection, owner_id)
    if found is not None:
        return found
    connection.execute("INSERT INTO owners (owner_id) VALUES (?)", (owner_id,))
    return connection.last_insert_rowid()


_GROUP_COLUMNS = "group_key, owner_key, group_id, label, description, tags, access"


def _group(row: tuple[int, int, str, str, str | None, str, str]) -> Group:
    return Group(*row[:5], tuple(msgspec.json.decode(row[5], type=list[str])), row[6])


def group(connection: apsw.Connection, owner_key: int, group_id: str) -> Group | None:
    statement = f"SELECT {_GROUP_COLUMNS} FROM groups WHERE owner_key = ? AND group_id = ?"
    for row in sql.rows(connection, statement, (owner_key, group_id)):
        return _group(row)
    return None


def groups_by_id(connection: apsw.Connection, group_id: str) -> list[Group]:
    """The groups of this id, one per owner who has one."""
    statement = f"SELECT {_GROUP_COLUMNS} FROM groups WHERE group_id = ? ORDER BY group_key"
    return [_group(row) for row in sql.rows(connection, statement, (group_id,))]


def group_by_key(connection: apsw.Connection, group_key: int) -> Group:
    statement = f"SELECT {_GROUP_COLUMNS} FROM groups WHERE group_key = ?"
    return _group(sql.row(connection, statement, (group_key,)))


def ensure_group(
    connection: apsw.Connection,
    owner_key: int,
    group_id: str,
    *,
    label: str,
    access: str | None,
    description: str | None,
    tags: tuple[str, ...] | None,
) -> tuple[Group, bool]:
    """Create the group, or merge tags and set an explicitly said access. Returns it, and whether an access
    was said that its documents may not have yet."""
    found = group(connection, owner_key, group_id)
    if found is None:
        connection.execute(
            "INSERT INTO groups (owner_key, group_id, label, description, tags, access) VALUES (?, ?, ?, ?, ?, ?)",
            (owner_key, group_id, label, description, _json(tags or ()), access or "restricted"),
        )
        return group_by_key(connection, connection.last_insert_rowid()), False
    merged = tuple(sorted({*found.tags, *(tags or ())}))
    new_access = access or found.access
    if merged != found.tags or new_access != found.access:
        connection.execute(
            "UPDATE groups SET tags = ?, access = ? WHERE group_key = ?", (_json(merged), new_access, found.group_key)
        )
        found = group_by_key(connection, found.group_key)
    return found, access is not None


def set_group_access(connection: apsw.Connection, group_key: int, access: str) -> None:
    connection.execute("UPDATE groups SET access = ? WHERE group_key = ?", (access, group_key))


def set_group_label(connection: apsw.Connection, group_key: int, label: str) -> None:
    connection.execute("UPDATE groups SET label = ? WHERE group_key = ?", (label, group_key))


def set_group_metadata(
    connection: apsw.Connection, group_key: int, description: str | None, tags: tuple[str, ...]
) -> None:
    connection.execute(
        "UPDATE groups SET description = ?, tags = ? WHERE group_key = ?",
        (description, _json(tuple(dict.fromkeys(tags))), group_key),
    )


def group_count(connection: apsw.Connection) -> int:
    return int(sql.value(connection, "SELECT count(*) FROM groups"))


def owner_id(connection: apsw.Connection, owner_key: int) -> str:
    found: str = sql.value(connection, "SELECT owner_id FROM owners WHERE owner_key = ?", (owner_key,))
    return found


def remove_groups(connection: apsw.Connection, owner_key: int) -> None:
    """All groups of an owner whose documents are gone already."""
    connection.execute("DELETE FROM groups WHERE owner_key = ?", (owner_key,))


def _json(tags: tuple[str, ...]) -> str:
    return msgspec.json.encode(tags).decode()
