"""What a node's files take on the disk, and what is left there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from thread_service.store.directory import DataDirectory

_BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system's own is."""


def used_bytes(directory: DataDirectory) -> Mapping[str, int]:
    """Of the `database` with its log, the `vectors` and the `cache`. Room that is set aside for vectors counts."""
    database = directory.database
    return {
        "database": _taken(database.with_name(database.name + end) for end in ("", "-wal", "-shm")),
        "vectors": _taken(directory.vectors.iterdir()),
        "cache": _taken(directory.cache.iterdir()),
    }


def free_bytes(directory: DataDirectory) -> int:
    """As --min-free-gb counts it: what this user may still write."""
    return shutil.disk_usage(directory.path).free


def _taken(files: Iterable[Path]) -> int:
    taken = 0
    for file in files:
        # Files come and go while a node runs.
        with contextlib.suppress(FileNotFoundError):
            taken += os.stat(file).st_blocks * _BLOCK_BYTES
    return taken
