"""Restoring a backup into an empty data directory.

The order is what keeps a half restored directory from being taken for a whole one: first the mark with which a node
refuses to start there, last of all FORMAT, with which it does not.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from thread_service.errors import StoreFailed
from thread_service.store import verification
from thread_service.store.backup import manifest
from thread_service.store.backup.checking import place_of
from thread_service.store.backup.copying import Advance, copy, disk_errors
from thread_service.store.backup.manifest import Manifest, write_whole
from thread_service.store.directory import FORMAT, RESTORING
from thread_service.store.files import Files, OsFiles
from thread_service.store.lock import DirectoryLock
from thread_service.store.migrations import NEWEST
from thread_service.store.verification import Progress


def restore(backup: Path, data_dir: Path, progress: Progress, *, files: Files | None = None) -> dict[str, Any]:
    """Restore a backup, see `manifest.find`, into `data_dir`, which is empty or missing or half restored. Blocking.

    `backup` and its `node_id`; `bytes`; `verified`: what `thread verify` says of what was restored, None when the
    database is of an earlier version, which the next start brings up to date; `seconds`. Damage that was backed up is
    restored and said there.
    `StoreFailed`: no complete backup, or it is damaged itself, or of a newer version; the directory is not empty, is in
    use or cannot be written. `StorageFull`. Nothing that can be started is left then.
    """
    started = time.monotonic()
    path = manifest.find(backup)
    said = manifest.read(path)
    if said.schema > NEWEST:
        raise StoreFailed(f"{path} was taken by a newer version (schema {said.schema}): upgrade this program")
    _refuse_unless_empty(data_dir, said.node_id)
    with disk_errors(data_dir):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        node = data_dir / "nodes" / said.node_id
        node.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock(node / "LOCK")
    with lock, disk_errors(data_dir):
        _Restoring(path, said, data_dir, node, progress, files or OsFiles()).run()
        verified = _verified(node, said, progress)
        files = files or OsFiles()
        write_whole(files, node / "FORMAT", b"%d\n" % FORMAT)
        files.remove(node / RESTORING)
        files.sync_directory(node)
    return {
        "backup": str(path),
        "node_id": said.node_id,
        "bytes": said.bytes,
        "verified": verified,
        "seconds": round(time.monotonic() - started, 3),
    }


class _Restoring:
    def __init__(
        self, path: Path, said: Manifest, data_dir: Path, node: Path, progress: Progress, files: Files
    ) -> None:
        self._path = path
        self._said = said
        self._data_dir = data_dir
        self._node = node
        self._progress = progress
        self._files = files
        self._done = 0

    def run(self) -> None:
        node, files = self._node, self._files
        write_whole(files, node / RESTORING, f"{self._path}\n".encode("utf-8", "surrogateescape"))
        for entry in node.iterdir():
            if entry.name in ("vectors", "cache"):
                shutil.rmtree(entry)
            elif entry.name not in (RESTORING, "LOCK"):
                files.remove(entry)
        for name in ("vectors", "cache"):
            (node / name).mkdir(mode=0o700)
        for directory in (node, node.parent, self._data_dir, self._data_dir.parent):
            files.sync_directory(directory)
        write_whole(files, self._data_dir / "node-id", f"{self._said.node_id}\n".encode())
        self._copy("database", "thread.db")
        self._progress("vectors")
        for name in self._said.files():
            if name != "thread.db":
                self._copy("vectors", name)
        files.sync_directory(node / "vectors")
        files.sync_directory(node)

    def _copy(self, text: str, name: str) -> None:
        expected = self._said.files()[name]
        source = self._path / name
        try:
            digest = copy(self._files, source, self._node / name, expected.bytes, self._advance(text))
        except FileNotFoundError:
            raise StoreFailed(f"{source} is missing: the backup is damaged; restore another one") from None
        if digest != expected.sha256:
            raise StoreFailed(f"{source} is damaged: its SHA-256 does not fit the manifest; restore another backup")

    def _advance(self, text: str) -> Advance:
        def advance(size: int) -> None:
            self._done += size
            self._progress(text, min(1.0, self._done / max(1, self._said.bytes)))

        return advance


def _verified(node: Path, said: Manifest, progress: Progress) -> dict[str, Any] | None:
    if said.schema != NEWEST:
        return None
    with place_of(node) as place:
        return verification.verify(place, full=False, progress=progress)


def _refuse_unless_empty(data_dir: Path, node_id: str) -> None:
    """Only what an earlier attempt at the same node has left may be there."""
    try:
        there = {name for name in os.listdir(data_dir) if name != "lost+found"}
        if not there:
            return
        nodes = set(os.listdir(data_dir / "nodes")) if "nodes" in there else set()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreFailed(f"{data_dir}: cannot be used as the data directory: {error.strerror}") from error
    node = data_dir / "nodes" / node_id
    is_begun = there <= {"node-id", "node-id.new", "nodes"} and nodes <= {node_id}
    if not is_begun or not ((node / RESTORING).exists() or {*os.listdir(node)} <= {"LOCK", f"{RESTORING}.new"}):
        raise StoreFailed(f"{data_dir} is not empty: restore into an empty directory, and start the node with that")
    if (node / "FORMAT").exists():
        raise StoreFailed(f"{data_dir} was restored already; start the node with it")
