"""Where a node keeps its state: `<data-dir>/nodes/<UUID>/`, one directory and one database per node id.

    <data-dir>/node-id          the id of the last node that ran here, plain text
    <data-dir>/nodes/<UUID>/    LOCK  FORMAT  thread.db  vectors/  cache/

FORMAT is written before anything else of a new directory and last by a restore, which puts RESTORING there first; so
what has one of the others without it is a directory whose restore did not finish. Everything is created readable by its
owner only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from thread_service.errors import StoreFailed
from thread_service.store.files import OsFiles
from thread_service.store.lock import DirectoryLock

FORMAT = 1
RESTORING = "RESTORING"
"""The file that says that what lies beside it is half restored."""

_log = logging.getLogger(__name__)
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """An open, locked node directory. `node_id` is an upper-case UUID, `path` is `<data-dir>/nodes/<node_id>`."""

    node_id: str
    path: Path
    lock: DirectoryLock

    @classmethod
    def open(cls, data_dir: Path, node_id: str | None = None) -> Self:
        """Find or create the node's directory and lock it.

        The id is `node_id` if it is a UUID (and is then written to the file), else the file's, else a new one.
        `StoreFailed`: the directory cannot be written, is in use, is incomplete, or is of a newer format.
        """
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _alone(data_dir):
                chosen = _node_id(data_dir, node_id)
            (data_dir / "nodes" / chosen).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFailed(
                f"{data_dir}: cannot be used as the data directory: {error.strerror}; {_remedy(error)}"
            ) from error
        return cls.open_existing(data_dir, chosen)

    @classmethod
    def open_existing(cls, data_dir: Path, node_id: str) -> Self:
        """Lock the directory of a node that is there, as `existing_node` tells. `StoreFailed` as in `open`."""
        path = data_dir / "nodes" / node_id
        lock = DirectoryLock(path / "LOCK")
        try:
            _check_format(path)
            for name in ("vectors", "cache"):
                (path / name).mkdir(mode=0o700, exist_ok=True)
            for directory in (path, path.parent, data_dir):
                OsFiles().sync_directory(directory)
        except OSError as error:
            lock.release()
            raise StoreFailed(f"{path}: cannot be written: {error.strerror}; {_remedy(error)}") from error
        except StoreFailed:
            lock.release()
            raise
        return cls(node_id, path, lock)

    @property
    def database(self) -> Path:
        return self.path / "thread.db"

    @property
    def vectors(self) -> Path:
        return self.path / "vectors"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    def close(self) -> None:
        """Give the directory up to the next process."""
        self.lock.release()


def _remedy(error: OSError) -> str:
    if error.errno == errno.EROFS:
        return "mount it for writing, or give another --data-dir"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"let user {os.getuid()} write there, or give another --data-dir"
    return "give another --data-dir"


def existing_node(data_dir: Path, node_id: str | None = None) -> str:
    """The id of a node that has a database here: `node_id`, else the one in the file, else the only one.

    Nothing is created. `StoreFailed`: there is no such node, or there are several and nothing says which.
    """
    try:
        present = _databases(data_dir)
        chosen = node_id or _read_id(data_dir / "node-id")
    except OSError as error:
        raise StoreFailed(f"{data_dir}: cannot be read: {error.strerror}") from error
    if not present:
        raise StoreFailed(f"{data_dir} holds no node; give its --data-dir")
    if chosen is None and len(present) == 1:
        return present[0]
    if chosen not in present:
        which = "names no node" if chosen is None else f"holds no node {chosen}"
        raise StoreFailed(f"{data_dir} {which}; nodes here: {', '.join(present)} (choose one with --node-id)")
    return chosen


@contextlib.contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """While the id is chosen: processes that start together in a fresh directory must agree on one."""
    descriptor = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _node_id(data_dir: Path, given: str | None) -> str:
    file = data_dir / "node-id"
    stored = _read_id(file)
    wanted = (given or "").strip()
    if _UUID.fullmatch(wanted):
        chosen = wanted.upper()
        if chosen != stored:
            _write(file, chosen)
        return chosen
    if wanted:
        _log.warning("the node id %r is not a UUID and is ignored", wanted[:16])
    if stored is not None:
        return stored
    if others := _databases(data_dir):
        _log.warning("%s names no node; databases here: %s (choose one with --node-id)", file, ", ".join(others))
    fresh = str(uuid.uuid4()).upper()
    _write(file, fresh)
    return fresh


def _read_id(file: Path) -> str | None:
    try:
        text = file.read_bytes()[:64].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    return text.upper() if _UUID.fullmatch(text) else None


def _databases(data_dir: Path) -> list[str]:
    return sorted(path.parent.name for path in data_dir.glob("nodes/*/thread.db"))


def _check_format(path: Path) -> None:
    if read_format(path) is None:
        _write(path / "FORMAT", str(FORMAT))


def read_format(path: Path) -> int | None:
    """The format of a node's directory, None for a new one. `StoreFailed`: it is incomplete, damaged or too new."""
    file = path / "FORMAT"
    try:
        text = file.read_bytes()[:64].decode("ascii", "replace").strip()
    except FileNotFoundError:
        if (path / "thread.db").exists() or (path / RESTORING).exists():
            raise StoreFailed(
                f"{path} is incomplete (no FORMAT file): its restore did not finish; run `thread restore` again"
            ) from None
        return None
    if not text.isdecimal():
        raise StoreFailed(f"{file} is damaged: it holds {text[:16]!r}, not a format version")
    if int(text) > FORMAT:
        raise StoreFailed(
            f"{path} was written by a newer version (format {text}; this one knows {FORMAT}): upgrade the node"
        )
    return int(text)


def _write(file: Path, text: str) -> None:
    """Write a small file so that after a power loss it is there whole, or as it was before."""
    temporary = file.with_name(f"{file.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{text}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(file)
    OsFiles().sync_directory(file.parent)
