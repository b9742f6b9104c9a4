"""Which schema a database file has, and how it gets to this one.

The version is `PRAGMA user_version`; version n is what the first n migrations made. A file that is not ours, or is
newer than this code, is refused before anything in it is changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from thread_service.errors import StoreFailed

APPLICATION_ID = 0x54687264
"""`PRAGMA application_id`: "Thrd"."""


OLDEST = 2
"""Version 1 had several shapes before the first release."""


def steps(schema: str) -> tuple[str, ...]:
    """Every migration, the oldest first."""
    return ("", schema)


def migrate(connection: apsw.Connection, migrations: Sequence[str], oldest: int = 0) -> None:
    """Bring the database to version `len(migrations)`, each migration (SQL text) in a transaction of its own.

    `StoreFailed`: another program's database, a newer version, or one before `oldest`. Errors of SQLite pass through,
    nothing half-applied.
    """
    version = schema_version(connection)
    if 0 < version < oldest:
        raise StoreFailed(
            f"{connection.filename}: the database has schema version {version}, from before the first release, which "
            "this program does not read; file its documents anew into another --data-dir"
        )
    if version > len(migrations):
        raise StoreFailed(
            f"{connection.filename}: the database has schema version {version}, this program knows {len(migrations)}: "
            "it was written by a newer version; upgrade the node"
        )
    for number in range(version, len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(migrations[number])
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", number + 1)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def schema_version(connection: apsw.Connection) -> int:
    """0 for an empty database. `StoreFailed`: another program's."""
    identity = connection.pragma("application_id")
    version = connection.pragma("user_version")
    assert isinstance(identity, int)
    assert isinstance(version, int)
    if identity == APPLICATION_ID:
        return version
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if identity or version or tables:
        raise StoreFailed(f"{connection.filename} is a database of another program; nothing in it was changed")
    return 0
