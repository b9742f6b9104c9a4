"""The few file operations that vector segments and backups need, behind a seam.

Only this module touches the disk for them, so a test can put a layer in its place that runs out of space, fails an
fsync or loses power. Every operation raises `OSError`; none retries. A name in a directory is durable only after
`Files.sync_directory`, bytes only after `File.sync`.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

_ZEROS = bytes(1 << 16)
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class File(Protocol):
    """One open file. Offsets and sizes are bytes."""

    def read(self, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset`; fewer only at the end of the file."""

    def write(self, data: memoryview, offset: int) -> None:
        """All of `data` (one dimension, format "B") at `offset`."""

    def allocate(self, offset: int, size: int) -> None:
        """Reserve blocks for the range, so that a later write or fsync of it cannot run out of space."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """fdatasync: the bytes, and the file's length where it changed."""

    def map(self) -> mmap.mmap:
        """The whole file, read-only; it stays valid after the file is closed or removed."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Files(Protocol):
    """Names in directories."""

    def create(self, path: Path) -> File:
        """A new file for reading and writing; `FileExistsError` if there is one."""

    def open(self, path: Path, *, writable: bool = False) -> File: ...

    def names(self, directory: Path) -> list[str]: ...

    def remove(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """A second name of the same file; `FileExistsError` if there is one."""

    def sync_directory(self, path: Path) -> None: ...


class OsFile:
    """`File` over a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, size: int, offset: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self._descriptor, size, offset)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return b"".join(parts)

    def write(self, data: memoryview, offset: int) -> None:
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data = data[written:]
            offset += written

    def allocate(self, offset: int, size: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, offset, size)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            for start in range(offset, offset + size, len(_ZEROS)):
                self.write(memoryview(_ZEROS)[: offset + size - start], start)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def map(self) -> mmap.mmap:
        return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OsFiles:
    """`Files` of the operating system."""

    def create(self, path: Path) -> OsFile:
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def open(self, path: Path, *, writable: bool = False) -> OsFile:
        return OsFile(os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def names(self, directory: Path) -> list[str]:
        return os.listdir(directory)

    def remove(self, path: Path) -> None:
        path.unlink()

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
