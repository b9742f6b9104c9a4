"""The database file itself: pages, b-trees, column types and, in full, that every index agrees with its table.

SQLite checks the index of words along with the others (`words` is a table to it), for what it can tell by itself.
"""

from __future__ import annotations

from functools import partial

import apsw

from thread_service.store import sql
from thread_service.store.verification.look import Look


def check(look: Look) -> None:
    """A table at a time; `sqlite_schema` stands for the list of free pages too."""
    pragma = "integrity_check" if look.full else "quick_check"
    statement = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    tables = look.step(lambda connection: sql.column(connection, statement), table="sqlite_schema") or []
    for number, table in enumerate(["sqlite_schema", *tables]):
        found = look.step(partial(_ask, pragma=pragma, table=table), table=table)
        look.examined(1)
        for message in found or ():
            look.damage(message, table=table)
        look.at((number + 1) / (len(tables) + 1))


def _ask(connection: apsw.Connection, pragma: str, table: str) -> list[str]:
    """What SQLite has to say about a table, empty when it is sound."""
    quoted = table.replace('"', '""')
    # An index of words that this connection has used before is checked as it was then, unless a query goes first:
    # beside a writer that would be damage where there is none.
    sql.value(connection, f'SELECT 1 FROM "{quoted}" LIMIT 1')
    found = sql.column(connection, f'PRAGMA {pragma}("{quoted}")')
    return [message for message in found if message != "ok"]
