"""A verification from beginning to end, beside a running node or on a directory that none runs in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import apsw

from thread_service.errors import StoreFailed
from thread_service.store import sql
from thread_service.store.connections import connect_at_rest
from thread_service.store.directory import DataDirectory
from thread_service.store.migrations import NEWEST, schema_version
from thread_service.store.readers import Readers
from thread_service.store.verification import (
    caches,
    contents,
    counts,
    groups,
    pages,
    provenance,
    references,
    rows,
    words,
)
from thread_service.store.verification.findings import Findings
from thread_service.store.verification.look import UNREADABLE, Look, Place, Progress

CHECKS: dict[str, Callable[[Look], None]] = {
    "database": pages.check,
    "segments": rows.check_files,
    "vectors": rows.check_rows,
    "references": references.check_declared,
    "subjects": references.check_subjects,
    "contents": contents.check,
    "groups": groups.check,
    "words": words.check,
    "entities": provenance.check_entities,
    "entity words": provenance.check_words,
    "assertions": provenance.check_assertions,
    "relationships": provenance.check_relationships,
    "predicates": provenance.check_predicates,
    "counts": counts.check,
    "names": provenance.check_names,
    "mentions": provenance.check_mentions,
    "stamp": provenance.check_stamp,
    "codes": caches.check_codes,
    "memory": caches.check_memory,
}
"""In this order; each goes on where another has found damage."""

SENTENCES_MAX = 50

COUNTED = (
    "owners", "groups", "documents", "contents", "partitions", "vectors", "segments", "entities", "relationships",
    "predicates", "mentions", "pending",
)  # fmt: skip
"""The main tables."""


def verify(
    place: Place, *, full: bool, progress: Progress, checks: Mapping[str, Callable[[Look], None]] = CHECKS
) -> dict[str, Any]:
    """Everything that was found, as JSON can hold it. Blocking. What `place.rest` raises passes through.

    `full`: also compare every index of the database with its table, and every word with the index of words.

    `clean`; `damaged`: how many damages; `damage`: those that are named (see `Damage`); `checks`: for each, how many
    things were examined and how many of them are damaged; `counts`: rows of the main tables; `seconds`.
    """
    started = time.monotonic()
    findings = Findings()
    for name, check in checks.items():
        progress(name)
        check(Look(place, name, findings, progress, full))
    return {
        "clean": findings.is_clean,
        "full": full,
        "damaged": findings.damaged.total(),
        "damage": [damage.as_json() for damage in findings.named],
        "checks": {name: {"examined": findings.examined[name], "damaged": findings.damaged[name]} for name in checks},
        "counts": counts_of(place),
        "seconds": round(time.monotonic() - started, 3),
    }


def damage_of_database(place: Place, progress: Progress) -> list[str]:
    """What SQLite finds wrong with the file of the database, in sentences; the first of them when they are many."""
    findings = Findings()
    pages.check(Look(place, "database", findings, progress, full=False))
    return [damage.as_json()["sentence"] for damage in findings.named[:SENTENCES_MAX]]


def counts_of(place: Place) -> dict[str, int]:
    """Rows of the main tables, those that can be read."""
    found: dict[str, int] = {}
    for table in COUNTED:
        # A database that lost its pages may have lost the names of its tables.
        with place.read() as connection, contextlib.suppress(*UNREADABLE, apsw.SQLError):
            found[table] = sql.value(connection, f"SELECT count(*) FROM {table}")
    return found


@contextlib.contextmanager
def at_rest(directory: DataDirectory) -> Iterator[Place]:
    """The place of a directory that no node runs in; nothing in it is changed. The lock is the caller's.

    `StoreFailed`: the database is another program's, or of another version than this program works with.
    """
    readers = Readers(lambda: connect_at_rest(directory.database))
    try:
        _check_version(readers)
        yield Place(directory.path, readers.read, contextlib.nullcontext, lambda seconds: None)
    finally:
        readers.close()


def _check_version(readers: Readers) -> None:
    with readers.read() as connection, contextlib.suppress(*UNREADABLE):
        version, known = schema_version(connection), NEWEST
        if version != known:
            raise StoreFailed(
                f"{connection.filename} has schema version {version}, and this program verifies version {known}: "
                "use the version that wrote it, or start this one on it once"
            )
