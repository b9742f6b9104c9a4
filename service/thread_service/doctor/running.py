"""Where the node of these settings keeps its state, and whether one runs there. Nothing is created."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from thread_service.settings import Settings
from thread_service.store.lock import Holder, holder

if TYPE_CHECKING:
    import apsw


def node_directory(settings: Settings) -> Path | None:
    """The directory of the node that would run; None while there is none. `StoreFailed`: it cannot be told which."""
    from thread_service.errors import StoreFailed
    from thread_service.store.directory import existing_node

    try:
        node_id = existing_node(settings.data_dir, settings.node_id or None)
    except StoreFailed:
        if any(settings.data_dir.glob("nodes/*/thread.db")) and not settings.node_id:
            raise
        return None
    return settings.data_dir / "nodes" / node_id


def running_node(settings: Settings) -> Holder | None:
    """The process that holds the directory."""
    directory = node_directory(settings)
    return None if directory is None else holder(directory / "LOCK")


@contextmanager
def database(settings: Settings, directory: Path) -> Iterator[apsw.Connection]:
    """The node's database, to be read only."""
    from thread_service.store.connections import connect_at_rest, connect_reader

    path = directory / "thread.db"
    connection = connect_at_rest(path) if running_node(settings) is None else connect_reader(path, None)
    try:
        yield connection
    finally:
        connection.close()
