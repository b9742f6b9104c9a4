"""Which embedding model wrote the index, and which is to take its place (`reembedding`). Runs inside the caller's
transaction.
"""

from __future__ import annotations

import logging
import time
from typing import Literal

import apsw

from thread_service.errors import IndexMismatch
from thread_service.models.embedder import Stamp
from thread_service.store import sql

State = Literal["matches", "mismatch", "unstamped"]

_log = logging.getLogger(__name__)


def stored_space(connection: apsw.Connection) -> str | None:
    found = sql.value(connection, "SELECT space FROM stamp")
    return None if found is None else str(found)


def stored(connection: apsw.Connection, *, next: bool = False) -> Stamp | None:
    """The whole stamp of the index, or of the model that is to take its place (`next`); None without one."""
    table = "next_stamp" if next else "stamp"
    found = sql.row(connection, f"SELECT space, model, revision, width FROM {table}")
    return None if found is None else Stamp(*found)


def state(connection: apsw.Connection, running: Stamp) -> State:
    """How the stored index stands to the running model. An empty index matches whatever runs."""
    space = stored_space(connection)
    if space == running.space:
        return "matches"
    if _is_empty(connection):
        return "matches"
    return "unstamped" if space is None else "mismatch"


def _is_empty(connection: apsw.Connection) -> bool:
    """Whether no vector of a model is stored. (Callers' vectors are a space of their own.)"""
    return sql.value(connection, "SELECT 1 FROM vectors WHERE purpose <> 'caller' LIMIT 1") is None


def check(connection: apsw.Connection, running: Stamp) -> None:
    """Raise IndexMismatch when vectors of `running` do not belong into the stored index."""
    found = state(connection, running)
    if found != "matches":
        raise IndexMismatch(
            f"The index was written with {stored_space(connection) or 'an unknown model'},"
            f" and the node runs {running.space}. Start the node with the model of the index,"
            " or let `thread reembed` embed what is stored with this one."
        )


def log_difference(connection: apsw.Connection, running: Stamp) -> None:
    """Say in the log that another model wrote the index, or another revision of this one."""
    found = state(connection, running)
    if found != "matches":
        _log.error(
            "the index was written with %s, the node runs %s: deposits that need the model are refused and its vectors"
            " are not searched; start the node with the model of the index, or run `thread reembed` to embed what is"
            " stored with this one",
            stored_space(connection) or "an unknown model",
            running.space,
        )
    stored = sql.value(connection, "SELECT revision FROM stamp WHERE space = ?", (running.space,))
    if stored is not None and stored != running.revision and not _is_empty(connection):
        _log.warning(
            "the index was written with revision %s of %s, the node runs revision %s: distances between their vectors"
            " may be wrong; run `thread reembed` to embed what is stored anew, or start the node with that revision",
            stored,
            running.model,
            running.revision or "unknown",
        )


def log_unfinished(connection: apsw.Connection) -> None:
    """Say in the log that embedding anew was begun and did not end."""
    if (unfinished := stored(connection, next=True)) is not None:
        _log.warning(
            "embedding anew with %s did not end; `thread reembed --embedding-model %s` goes on with it",
            unfinished.space,
            unfinished.model,
        )


def ensure(connection: apsw.Connection, running: Stamp) -> None:
    """Before vectors of `running` are committed: check, and stamp an empty index."""
    check(connection, running)
    if stored_space(connection) != running.space or _is_empty(connection):
        connection.execute(
            "INSERT OR REPLACE INTO stamp VALUES (1, ?, ?, ?, ?, ?)",
            (running.space, running.model, running.revision, running.width, int(time.time())),
        )
