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


# The CHECK of a table cannot be changed in place.
_NEXT_MODEL = """
CREATE TABLE next_stamp (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    space TEXT NOT NULL,
    model TEXT NOT NULL,
    revision TEXT,
    width INTEGER NOT NULL,
    stamped_at INTEGER NOT NULL
) STRICT;
CREATE TABLE new_vectors (
    vector_key INTEGER PRIMARY KEY AUTOINCREMENT,
    purpose TEXT NOT NULL CHECK (purpose IN ('model', 'caller', 'relationship', 'predicate',
        'next_model', 'next_relationship', 'next_predicate')),
    width INTEGER NOT NULL,
    subject_key INTEGER NOT NULL,
    segment INTEGER NOT NULL REFERENCES segments,
    slot INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
INSERT INTO new_vectors SELECT * FROM vectors;
DELETE FROM sqlite_sequence WHERE name = 'new_vectors';
INSERT INTO sqlite_sequence SELECT 'new_vectors', seq FROM sqlite_sequence WHERE name = 'vectors';
DROP TABLE vectors;
ALTER TABLE new_vectors RENAME TO vectors;
CREATE INDEX vectors_by_subject ON vectors (subject_key, purpose);
CREATE INDEX vectors_by_segment ON vectors (segment);
"""


_BROUGHT_VECTORS = """
CREATE TABLE brought_vectors (
    partition_key INTEGER PRIMARY KEY REFERENCES partitions ON DELETE CASCADE,
    vector BLOB NOT NULL
) STRICT;
INSERT INTO brought_vectors SELECT partition_key, vector FROM partitions WHERE vector IS NOT NULL;
ALTER TABLE partitions DROP COLUMN vector;
"""


NEWEST = 4
"""The version that this program reads and writes."""


def steps(schema: str, version: int) -> tuple[str, ...]:
    """The migrations of a database of this version, by number: a new one gets the whole schema at once."""
    return ("", "", "", schema) if version == 0 else ("", "", _NEXT_MODEL, _BROUGHT_VECTORS)


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
        if not migrations[number]:  # a part of the next: a new database gets everything at once or nothing
            continue
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
