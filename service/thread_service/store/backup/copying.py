"""Copying files with their checksum, and what an error of the disk on the other side is called."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from thread_service.errors import StorageFull, StoreFailed
from thread_service.store.connections import is_full
from thread_service.store.files import File, Files

BYTES_AT_ONCE = 4 << 20

Advance = Callable[[int], None]
"""Told how many bytes were read since; may end the work by raising."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


def copy(files: Files, source: Path, target: Path, size: int, advance: Advance) -> str:
    """The first `size` bytes of a file into a new one, synced; their SHA-256. `StoreFailed`: it has fewer."""
    with files.open(source) as reading, files.create(target) as writing:
        digest = _read(reading, source, size, advance, writing)
        writing.sync()
    return digest


def sha256(files: Files, path: Path, size: int, advance: Advance) -> str:
    """Of the first `size` bytes of a file. `StoreFailed`: it has fewer."""
    with files.open(path) as reading:
        return _read(reading, path, size, advance, None)


def _read(reading: File, path: Path, size: int, advance: Advance, writing: File | None) -> str:
    digest = hashlib.sha256()
    offset = 0
    while offset < size:
        part = reading.read(min(BYTES_AT_ONCE, size - offset), offset)
        if not part:
            raise StoreFailed(f"{path} is damaged: it has {offset} bytes of {size}; run `thread verify`")
        digest.update(part)
        if writing is not None:
            writing.write(memoryview(part), offset)
        offset += len(part)
        advance(len(part))
    return digest.hexdigest()


@contextlib.contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Errors of the operating system and of SQLite, while `target` is written, as ours.

    They are no reason for the node to stop writing: its own disk may be well.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"{target}: the disk is full; nothing complete was written") from error
        raise StoreFailed(f"{error.filename or target}: {error.strerror}") from error
    except apsw.Error as error:
        if is_full(error):
            raise StorageFull(f"{target}: the disk is full; nothing complete was written") from error
        raise StoreFailed(f"{target}: the database could not be copied: {error}") from error
