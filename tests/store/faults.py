"""A disk that fails on request: under SQLite as a VFS, under the vector segments as `Files`, with one controller.

Every write goes through to real files, so everything reads as usual, and is also kept in a model of what a disk may
hold after a power loss: per file the bytes of its last sync and the writes since, per directory its names at the last
directory sync and the changes since. `Faults.survivors` writes such a state into another directory: what was synced,
and of the rest nothing or (by seed) some of the 512-byte sectors and a prefix of the name changes.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import apsw

from thread_service.store.files import OsFile, OsFiles

SECTOR = 512


@dataclass
class Node:
    """A file's bytes as of its last sync, and what has happened to it since: (offset, data), or (size, None)."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    syncs_directory: bool = False

    def sync(self) -> None:
        for offset, data in self.pending:
            _apply(self.durable, offset, data)
        self.pending.clear()

    def surviving(self, rng: random.Random | None) -> bytearray:
        content = bytearray(self.durable)
        if rng is None:
            return content
        odds = rng.choice((0.0, 0.5, 0.9, 1.0))
        for offset, data in self.pending:
            if data is None:
                if rng.random() < odds:
                    _apply(content, offset, None)
                continue
            for start in range(0, len(data), SECTOR):
                if rng.random() < odds:
                    _apply(content, offset + start, data[start : start + SECTOR])
        return content


class Faults:
    """The controller of the files below `root`. `space`: bytes they may still grow by, None for a disk without end.

    `writes` and `syncs` count by the file's ending ("thread.db-wal" counts under "-wal", "000001.f32" under ".f32").
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.lock = threading.RLock()
        self.space: int | None = None
        self.powered = True
        self.writes: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self._countdown: int | None = None
        self._failing: dict[tuple[str, str], int] = {}
        self._names: dict[Path, Node] = {}
        self._durable_names: dict[Path, Node] = {}
        self._changes: list[tuple[Path, Node | None]] = []

    def fail(self, what: Literal["write", "sync"], suffix: str, nth: int = 1) -> None:
        """The nth `what` from now on a file that ends in `suffix` fails: no space for a write, EIO for a sync."""
        self._failing[what, suffix] = nth

    def cut_power(self, operations: int) -> None:
        """After so many more operations nothing can be changed any more; the last one may be half done."""
        self._countdown = operations

    def survivors(self, target: Path, seed: int | None = None) -> None:
        """What a disk holds when the power goes now. `seed` None: only what was synced."""
        rng = None if seed is None else random.Random(seed)
        with self.lock:
            names = dict(self._durable_names)
            for path, node in self._changes[: 0 if rng is None else rng.randint(0, len(self._changes))]:
                _change(names, path, node)
            for path, node in names.items():
                if not path.is_relative_to(self._root):
                    continue
                copy = target / path.relative_to(self._root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(node.surviving(rng))

    # What the two layers report, before they do it.

    def opened(self, path: Path, *, created: bool, syncs_directory: bool = False) -> Node:
        with self.lock:
            node = self._names.get(path)
            if node is None:
                node = Node(syncs_directory=syncs_directory)
                self._names[path] = node
                if created:
                    self.operation()
                    self._changes.append((path, node))
                else:
                    node.durable = bytearray(path.read_bytes())
                    self._durable_names[path] = node
            return node

    def wrote(self, path: Path, node: Node, offset: int, data: bytes, size: int) -> None:
        with self.lock:
            self._refuse_without_power()
            suffix = _suffix(path)
            self.writes[suffix] += 1
            grown = max(0, offset + len(data) - size)
            if self._is_failing("write", suffix) or (self.space is not None and grown > self.space):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.space is not None:
                self.space -= grown
            node.pending.append((offset, data))
            self.operation()

    def truncated(self, node: Node, size: int, old: int) -> None:
        with self.lock:
            self.operation()
            if self.space is not None:
                self.space += max(0, old - size)
            node.pending.append((size, None))

    def synced(self, path: Path, node: Node) -> None:
        with self.lock:
            suffix = _suffix(path)
            self.operation()
            self.syncs[suffix] += 1
            if self._is_failing("sync", suffix):
                # As Linux does: the error is told once and the pages count as clean, so they are lost.
                node.pending.clear()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            node.sync()
            if node.syncs_directory:
                node.syncs_directory = False
                self.synced_directory(path.parent)

    def synced_directory(self, directory: Path) -> None:
        with self.lock:
            self.operation()
            kept: list[tuple[Path, Node | None]] = []
            for path, node in self._changes:
                if path.parent == directory:
                    _change(self._durable_names, path, node)
                else:
                    kept.append((path, node))
            self._changes = kept

    def renamed(self, source: Path, target: Path) -> None:
        with self.lock:
            self.operation()
            self._names[target] = self._names.pop(source)
            self._changes += [(target, self._names[target]), (source, None)]

    def linked(self, source: Path, target: Path) -> None:
        with self.lock:
            self.operation()
            self._names[target] = self._names[source]
            self._changes.append((target, self._names[target]))

    def removed(self, path: Path, *, sync: bool = False) -> None:
        with self.lock:
            self.operation()
            self._names.pop(path, None)
            self._changes.append((path, None))
            if sync:
                self.synced_directory(path.parent)

    def operation(self) -> None:
        """One more change of the disk; raises once the power is gone."""
        if self._countdown is not None:
            self._countdown -= 1
            self.powered = self._countdown > 0
        self._refuse_without_power()

    def _refuse_without_power(self) -> None:
        if not self.powered:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _is_failing(self, what: str, suffix: str) -> bool:
        left = self._failing.get((what, suffix), 0)
        if left:
            self._failing[what, suffix] = left - 1
        return left == 1


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    size = offset if data is None else max(len(content), offset + len(data))
    if data is None:
        del content[size:]
    content.extend(bytes(max(0, size - len(content))))
    if data is not None:
        content[offset : offset + len(data)] = data


def _change(names: dict[Path, Node], path: Path, node: Node | None) -> None:
    if node is None:
        names.pop(path, None)
    else:
        names[path] = node


def _suffix(path: Path) -> str:
    return next((s for s in ("-wal", "-journal") if path.name.endswith(s)), path.suffix)


# ---------------------------------------------------------------------------------------------------- under SQLite


class FaultyVfs(apsw.VFS):
    """Register with `FaultyVfs("name", faults)`, open with `vfs="name"`, keep it until every connection is closed."""

    def __init__(self, name: str, faults: Faults) -> None:
        self._faults = faults
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _VfsFile(self._faults, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        try:
            self._faults.removed(Path(filename), sync=syncdir)
        except OSError as error:
            raise _sqlite_error(error, apsw.SQLITE_IOERR_DELETE) from None
        super().xDelete(filename, syncdir)


class _VfsFile(apsw.VFSFile):
    def __init__(self, faults: Faults, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._faults = faults
        self._path = Path(text) if text else None
        created = self._path is not None and not self._path.exists()
        super().__init__("", name, flags)
        if self._path is not None:
            logs = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
            self._node = faults.opened(self._path, created=created, syncs_directory=bool(flags[0] & logs))

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._path is not None:
            try:
                self._faults.wrote(self._path, self._node, offset, bytes(data), self.xFileSize())
            except OSError as error:
                raise _sqlite_error(error, apsw.SQLITE_IOERR_WRITE) from None
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        if self._path is not None:
            try:
                self._faults.truncated(self._node, newsize, self.xFileSize())
            except OSError as error:
                raise _sqlite_error(error, apsw.SQLITE_IOERR_TRUNCATE) from None
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        if self._path is not None:
            try:
                self._faults.synced(self._path, self._node)
            except OSError as error:
                raise _sqlite_error(error, apsw.SQLITE_IOERR_FSYNC) from None


def _sqlite_error(error: OSError, code: int) -> apsw.Error:
    if error.errno == errno.ENOSPC:
        return apsw.FullError("database or disk is full")
    io = apsw.IOError("disk I/O error")
    io.extendedresult = code  # type: ignore[attr-defined]
    return io


# ---------------------------------------------------------------------------------------------------- under segments


class FaultyFiles:
    """`Files` for the segments."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._under = OsFiles()

    def create(self, path: Path) -> FaultyFile:
        file = self._under.create(path)
        return FaultyFile(self._faults, path, file, self._faults.opened(path, created=True))

    def open(self, path: Path, *, writable: bool = False) -> FaultyFile:
        file = self._under.open(path, writable=writable)
        return FaultyFile(self._faults, path, file, self._faults.opened(path, created=False))

    def names(self, directory: Path) -> list[str]:
        return self._under.names(directory)

    def remove(self, path: Path) -> None:
        self._faults.removed(path)
        self._under.remove(path)

    def rename(self, source: Path, target: Path) -> None:
        self._faults.renamed(source, target)
        self._under.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._faults.opened(source, created=False)
        self._under.link(source, target)
        self._faults.linked(source, target)

    def sync_directory(self, path: Path) -> None:
        self._faults.synced_directory(path)


class FaultyFile:
    def __init__(self, faults: Faults, path: Path, under: OsFile, node: Node) -> None:
        self._faults, self._path, self._under, self._node = faults, path, under, node

    def read(self, size: int, offset: int) -> bytes:
        return self._under.read(size, offset)

    def write(self, data: memoryview, offset: int) -> None:
        self._faults.wrote(self._path, self._node, offset, bytes(data), self.size())
        self._under.write(data, offset)

    def allocate(self, offset: int, size: int) -> None:
        old = self.size()
        grown = max(0, offset + size - old)
        room = grown if self._faults.space is None else min(grown, self._faults.space)
        if room:
            self._faults.wrote(self._path, self._node, old, bytes(room), old)
            self._under.allocate(old, room)
        if room < grown:
            # As file systems do: what there was has been taken.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, size: int) -> None:
        self._faults.truncated(self._node, size, self.size())
        self._under.truncate(size)

    def size(self) -> int:
        return self._under.size()

    def sync(self) -> None:
        self._faults.synced(self._path, self._node)

    def map(self) -> mmap.mmap:
        return self._under.map()

    def close(self) -> None:
        self._under.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
