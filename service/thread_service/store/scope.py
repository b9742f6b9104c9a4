"""What a caller may read, as reader tokens."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from thread_service.store import audience, registry


def readable(owner_key: int | None) -> tuple[str, ...]:
    """Own documents and available ones."""
    return (audience.AVAILABLE,) if owner_key is None else (audience.own(owner_key), audience.AVAILABLE)


def own(owner_key: int | None) -> tuple[str, ...]:
    return () if owner_key is None else (audience.own(owner_key),)


def in_groups(connection: apsw.Connection, owner_key: int | None, group_ids: Iterable[str]) -> tuple[str, ...]:
    """Readable documents of the readable groups of these ids: all of the caller's own groups, the available ones of
    others' available groups. A restricted group of another's is as one that does not exist."""
    return tuple(
        audience.in_group(group.group_key)
        if group.owner_key == owner_key
        else audience.public_in_group(group.group_key)
        for group_id in dict.fromkeys(group_ids)
        for group in registry.groups_by_id(connection, group_id)
        if group.owner_key == owner_key or group.access == "available"
    )
