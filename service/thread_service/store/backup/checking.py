"""Whether a backup is whole: its files against the checksums of the manifest, then all that `verify` looks at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from thread_service.errors import StoreFailed
from thread_service.store import verification
from thread_service.store.backup import manifest
from thread_service.store.backup.copying import sha256
from thread_service.store.backup.manifest import Manifest
from thread_service.store.connections import connect_at_rest
from thread_service.store.files import OsFiles
from thread_service.store.migrations import NEWEST, schema_version
from thread_service.store.readers import Readers
from thread_service.store.verification import Place, Progress
from thread_service.store.verification.look import Look


def check(backup: Path, *, full: bool, progress: Progress) -> dict[str, Any]:
    """As `verification.verify`, with the checks `files` and `manifest` before all others, and the backup's path.

    `backup`: see `manifest.find`. `StoreFailed`: it is no complete backup, or its database is of another version than
    this program verifies.
    """
    path = manifest.find(backup)
    said = manifest.read(path)
    if said.schema != NEWEST:
        raise StoreFailed(
            f"{path} has schema version {said.schema}, and this program verifies version {NEWEST}: verify it with the "
            "version that wrote it"
        )
    with place_of(path) as place:
        checks: dict[str, Callable[[Look], None]] = {"files": lambda look: _check_files(look, said)}
        # What has lost even its schema has no tables to be looked at.
        if _schema(place) == said.schema:
            checks |= {"manifest": lambda look: _check_counts(look, said), **verification.CHECKS}
        return {"backup": str(path), **verification.verify(place, full=full, progress=progress, checks=checks)}


def _schema(place: Place) -> int | None:
    """The version that the database itself says; None when it is no database any more."""
    try:
        with place.read() as connection:
            return schema_version(connection)
    except (StoreFailed, apsw.Error):
        return None


@contextlib.contextmanager
def place_of(path: Path, rest: Callable[[float], None] = lambda seconds: None) -> Iterator[Place]:
    """A directory with a database and segments that nobody writes to, to be verified. `rest`: see `Place`."""
    readers = Readers(lambda: connect_at_rest(path / "thread.db"))
    try:
        yield Place(path, readers.read, contextlib.nullcontext, rest)
    finally:
        readers.close()


def _check_files(look: Look, said: Manifest) -> None:
    files = OsFiles()
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        look.at(done / max(1, said.bytes))

    for name, expected in said.files().items():
        look.examined(1)
        try:
            digest = sha256(files, look.place.path / name, expected.bytes, advance)
        except FileNotFoundError:
            look.damage("is missing", file=name)
        except StoreFailed:
            look.damage(f"is shorter than the {expected.bytes} bytes that were backed up", file=name)
        except OSError as error:
            look.damage(f"cannot be read: {error.strerror}", file=name)
        else:
            if digest != expected.sha256:
                look.damage("is not what was backed up: its SHA-256 does not fit", file=name)


def _check_counts(look: Look, said: Manifest) -> None:
    found = verification.counts_of(look.place)
    for table, expected in said.counts.items():
        look.examined(1)
        if table in found and found[table] != expected:
            look.damage(f"has {found[table]} rows, and {expected} were backed up", table=table)
