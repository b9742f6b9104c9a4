"""Taking a backup, beside a running node or of a directory at rest.

First the database, as one snapshot; then of every segment the rows that this snapshot commits, which nobody writes
again; the manifest last. So a backup is a prefix of what was acknowledged, whatever is written meanwhile. A segment
that is full is linked where the file system can; one that the backup before has already is linked to that.

SQLite copies pages as they are, damaged ones too. So the copy of the database is looked through before it counts as a
backup; one that is damaged is completed under a name that sets it aside, and the backups before it stay the newest.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import msgspec

from thread_service.errors import StoreFailed
from thread_service.store import sql, vectors
from thread_service.store.backup import manifest
from thread_service.store.backup.checking import place_of
from thread_service.store.backup.copying import Advance, copy, disk_errors, sha256
from thread_service.store.backup.manifest import FileSum, Manifest, SegmentSum
from thread_service.store.connections import connect_at_rest
from thread_service.store.directory import DataDirectory
from thread_service.store.files import Files, OsFiles
from thread_service.store.lock import DirectoryLock
from thread_service.store.migrations import schema_version
from thread_service.store.readers import Readers
from thread_service.store.segments import SEGMENT_BYTES, SegmentState, capacity, file_name
from thread_service.store.verification import COUNTED, Progress, damage_of_database

PAGES_AT_ONCE = 1_024
"""Pages of the database that are copied between two looks at the time."""
SNAPSHOTS_MAX = 10
"""How often it begins anew, because what the snapshot commits was cleared meanwhile."""
REPORT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Source:
    """What is backed up. `read`: a read transaction. `is_full`: no row will be written to such a segment again.
    `go_on`: called again and again; ends the backup by raising."""

    node_id: str
    path: Path
    read: Callable[[], AbstractContextManager[apsw.Connection]]
    is_full: Callable[[SegmentState], bool] = lambda state: state.slots >= capacity(state.width, SEGMENT_BYTES)
    go_on: Callable[[], None] = lambda: None


@contextlib.contextmanager
def source_at_rest(directory: DataDirectory) -> Iterator[Source]:
    """Of a directory that no node runs in; nothing in it is changed. The lock is the caller's."""
    readers = Readers(lambda: connect_at_rest(directory.database))
    try:
        yield Source(directory.node_id, directory.path, readers.read)
    finally:
        readers.close()


def take(
    source: Source, target: Path, progress: Progress, *, files: Files | None = None, vfs: str | None = None
) -> dict[str, Any]:
    """Put a new backup into the directory `target`, created when missing. Blocking. What `go_on` raises passes through.

    `backup`: its path; `bytes` of it, and `copied_bytes`, those that were written anew; `segments` and how many of them
    are `linked`; `counts`: rows of the main tables; `damage`: what is wrong with the database, in sentences, for which
    this backup is set aside; `seconds`. After an error nothing of the attempt is left; after a crash it has no
    manifest, and the next backup removes it.
    `StorageFull`, `StoreFailed`: there is no room, it cannot be written, or what is kept cannot be read.
    """
    started = time.monotonic()
    with disk_errors(target):
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock(target / "LOCK")
    with lock:
        for left in manifest.unfinished(target):
            shutil.rmtree(left, ignore_errors=True)
        known = {path: each for path, each in manifest.complete(target).items() if each.node_id == source.node_id}
        before = _Before(max(known), known[max(known)]) if known else None
        for _ in range(SNAPSHOTS_MAX):
            taking = _Taking(source, _new_directory(target), before, progress, files or OsFiles(), vfs)
            try:
                with disk_errors(target):
                    found = taking.run()
                return {**found, "seconds": round(time.monotonic() - started, 3)}
            except _Gone:
                shutil.rmtree(taking.place, ignore_errors=True)
            except BaseException:
                shutil.rmtree(taking.place, ignore_errors=True)
                raise
    raise StoreFailed(f"{source.path}: segments go as fast as they are read; try again when less is cleared")


class _Gone(Exception):
    """A segment that the snapshot commits was removed since: what was in it was cleared."""


@dataclass(frozen=True, slots=True)
class _Before:
    path: Path
    manifest: Manifest


def _new_directory(target: Path) -> Path:
    with disk_errors(target):
        while True:
            begun = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")[:-3]
            place = target / f"{begun}Z"
            try:
                place.mkdir(mode=0o700)
            except FileExistsError:
                continue
            (place / "vectors").mkdir(mode=0o700)
            return place


@dataclass(slots=True)
class _Taking:
    """One attempt, into the new directory `place`, which gets another name when the database turns out damaged."""

    source: Source
    place: Path
    before: _Before | None
    progress: Progress
    files: Files
    vfs: str | None
    linked: int = 0
    copied_bytes: int = 0
    _done: int = 0
    _reported: float = field(default=0.0)

    def run(self) -> dict[str, Any]:
        self.progress("database")
        with self.source.read() as connection:
            # The first statement takes the snapshot, in which the database is copied.
            counts = {table: int(sql.value(connection, f"SELECT count(*) FROM {table}")) for table in COUNTED}
            committed, schema = vectors.committed(connection), schema_version(connection)
            self._copy_database(connection)
        damage = self._damage()
        if damage:
            self.place = self.place.rename(self.place.with_name(f"{self.place.name}{manifest.QUARANTINED}"))
        database = self._summed_database()
        self.progress("vectors")
        self._done = 0
        total = sum(state.slots * state.width * 4 for state in committed.values())
        segments = {
            number: self._segment(number, state, self._advance("vectors", total))
            for number, state in sorted(committed.items())
        }
        self.files.sync_directory(self.place / "vectors")
        self.files.sync_directory(self.place)
        self.files.sync_directory(self.place.parent)
        taken_at = self.place.name.removesuffix(manifest.QUARANTINED)
        whole = Manifest(manifest.FORMAT, self.source.node_id, schema, taken_at, counts, database, segments)
        manifest.write_whole(self.files, self.place / manifest.NAME, msgspec.json.format(msgspec.json.encode(whole)))
        return {
            "backup": str(self.place),
            "bytes": whole.bytes,
            "copied_bytes": self.copied_bytes,
            "segments": len(segments),
            "linked": self.linked,
            "counts": counts,
            "damage": damage,
        }

    def _copy_database(self, connection: apsw.Connection) -> None:
        with closing(apsw.Connection(str(self.place / "thread.db"), vfs=self.vfs)) as target:
            # Until the manifest is there nobody reads it, so one sync at the end is enough.
            target.pragma("journal_mode", "off")
            target.pragma("synchronous", "off")
            with disk_errors(self.place.parent), target.backup("main", connection, "main") as copying:
                while not copying.done:
                    self.source.go_on()
                    copying.step(PAGES_AT_ONCE)
                    self._report("database", 1 - copying.remaining / max(1, copying.page_count))

    def _damage(self) -> list[str]:
        """Of the copy: what happened to it on this disk would be as bad as what was copied."""
        with place_of(self.place, lambda _: self.source.go_on()) as place:
            return damage_of_database(place, self.progress)

    def _summed_database(self) -> FileSum:
        path = self.place / "thread.db"
        path.chmod(0o600)
        with self.files.open(path, writable=True) as file:
            file.sync()
            size = file.size()
        self.copied_bytes += size
        return FileSum(size, sha256(self.files, path, size, lambda _: self.source.go_on()))

    def _segment(self, number: int, state: SegmentState, advance: Advance) -> SegmentSum:
        path, target = (where / "vectors" / file_name(number) for where in (self.source.path, self.place))
        size = state.slots * state.width * 4
        try:
            now = path.stat()
            identity = (now.st_ino, now.st_mtime_ns)
            if (known := self._known(number, state, identity)) is not None:
                advance(size)
                return known
            if self.source.is_full(state) and self._link(path, target):
                digest = sha256(self.files, target, size, advance)
            else:
                digest = copy(self.files, path, target, size, advance)
                self.copied_bytes += size
        except FileNotFoundError as error:
            raise _Gone from error
        return SegmentSum(state.width, state.slots, size, digest, identity)

    def _known(self, number: int, state: SegmentState, identity: tuple[int, int]) -> SegmentSum | None:
        """What the backup before says of it, when that has the same rows of the same file and could be linked."""
        if self.before is None:
            return None
        known = self.before.manifest.segments.get(number)
        if known is None or (known.width, known.rows, known.source) != (state.width, state.slots, identity):
            return None
        theirs = self.before.path / "vectors" / file_name(number)
        with contextlib.suppress(FileNotFoundError):
            if theirs.stat().st_size >= known.bytes and self._link(theirs, self.place / "vectors" / theirs.name):
                return known
        return None

    def _link(self, path: Path, target: Path) -> bool:
        """False where that cannot be done: between two file systems, or on one without links."""
        try:
            self.files.link(path, target)
        except FileNotFoundError:
            raise
        except OSError:
            return False
        self.linked += 1
        return True

    def _advance(self, text: str, total: int) -> Advance:
        def advance(size: int) -> None:
            self.source.go_on()
            self._done += size
            self._report(text, self._done / max(1, total))

        return advance

    def _report(self, text: str, fraction: float) -> None:
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self.progress(text, min(1.0, fraction))
