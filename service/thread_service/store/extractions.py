"""Documents that nobody described and no instruct model has read yet: their entities are keywords until then. Runs
inside the caller's transaction.

One row for each, so that the reading goes on where it was after any crash. A row waits for its turn, or is put off for
a later pass, with the reason: there is no model, or it gave no usable answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import apsw

from thread_service.store import sql


class Unextracted(NamedTuple):
    document_key: int
    content_key: int


class Counts(NamedTuple):
    """Documents that wait for their turn, and that are put off."""

    waiting: int
    put_off: int


def mark(connection: apsw.Connection, document_key: int, *, put_off: str | None = None) -> None:
    """The document was indexed with keywords. `put_off`: why it does not wait for its turn."""
    connection.execute("INSERT OR REPLACE INTO unextracted VALUES (?, ?)", (document_key, put_off))


def unmark(connection: apsw.Connection, document_key: int) -> None:
    """It was read, or described, or its content went."""
    connection.execute("DELETE FROM unextracted WHERE document_key = ?", (document_key,))


def is_waiting(connection: apsw.Connection) -> bool:
    return sql.value(connection, "SELECT 1 FROM unextracted WHERE put_off IS NULL LIMIT 1") is not None


def take(connection: apsw.Connection, limit: int, *, without: Iterable[int]) -> list[Unextracted]:
    """The next that wait, but those of these keys. They stay marked."""
    statement = (
        "SELECT document_key, content_key FROM unextracted JOIN documents USING (document_key)"
        " WHERE put_off IS NULL AND document_key NOT IN (SELECT value FROM json_each(?)) ORDER BY document_key LIMIT ?"
    )
    return [Unextracted(*row) for row in sql.rows(connection, statement, (sql.array(without), limit))]


def texts(connection: apsw.Connection, content_key: int) -> list[str]:
    """The texts of searchable content, in order."""
    statement = (
        "SELECT text FROM partitions JOIN contents USING (content_key)"
        " WHERE content_key = ? AND state = 'ready' ORDER BY ordinal"
    )
    return [*sql.column(connection, statement, (content_key,))]


def put_off(connection: apsw.Connection, document: Unextracted, reason: str) -> None:
    """Leave it for a later pass, unless its content is another by now."""
    connection.execute(
        "UPDATE unextracted SET put_off = ?3 WHERE document_key = ?1"
        " AND EXISTS (SELECT 1 FROM documents WHERE document_key = ?1 AND content_key = ?2)",
        (*document, reason),
    )


def take_up(connection: apsw.Connection) -> int:
    """A later pass: everything that was put off waits for its turn again. How many that is."""
    connection.execute("UPDATE unextracted SET put_off = NULL WHERE put_off IS NOT NULL")
    return connection.changes()


def counts(connection: apsw.Connection) -> Counts:
    waiting = "(SELECT count(*) FROM unextracted WHERE put_off IS NULL)"
    return Counts(*sql.row(connection, f"SELECT {waiting}, (SELECT count(*) FROM unextracted) - {waiting}"))
