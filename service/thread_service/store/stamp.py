"""Which embedding model wrote the index. Runs inside the caller's transaction."""

from __future__ import annotations

import time
from typing import Literal

import apsw

from thread_service.errors import IndexMismatch
from thread_service.models.embedder import Stamp
from thread_service.store import sql

State = Literal["matches", "mismatch", "unstamped"]


def stored_space(connection: apsw.Connection) -> str | None:
    found = sql.value(connection, "SELECT space FROM stamp")
    return None if found is None else str(found)


def stored_model(connection: apsw.Connection) -> str | None:
    """The name by which the model of the index can be loaded again."""
    found: str | None = sql.value(connection, "SELECT model FROM stamp")
    return found


def state(connection: apsw.Connection, running: Stamp) -> State:
    """How the stored index stands to the running model. An empty index matches whatever runs."""
    space = stored_space(connection)
    if space == running.space:
        return "matches"
    if sql.value(connection, "SELECT 1 FROM vectors WHERE purpose <> 'caller' LIMIT 1") is None:
        return "matches"
    return "unstamped" if space is None else "mismatch"


def check(connection: apsw.Connection, running: Stamp) -> None:
    """Raise IndexMismatch when vectors of `running` do not belong into the stored index."""
    found = state(connection, running)
    if found != "matches":
        raise IndexMismatch(
            f"The index was written with {stored_space(connection) or 'an unknown model'},"
            f" and the node runs {running.space}. Start the node with the model of the index,"
            " or clear the index (POST /v1/clear) and file again."
        )


def ensure(connection: apsw.Connection, running: Stamp) -> None:
    """Before vectors of `running` are committed: check, and stamp an empty index."""
    check(connection, running)
    if stored_space(connection) != running.space:
        connection.execute(
            "INSERT OR REPLACE INTO stamp VALUES (1, ?, ?, ?, ?, ?)",
            (running.space, running.model, running.revision, running.width, int(time.time())),
        )
