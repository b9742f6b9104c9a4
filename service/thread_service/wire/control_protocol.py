"""How a command speaks with a running node: lines of JSON over a Unix socket in the node's directory.

    → {"command": "compact", "arguments": {}}
    ← {"progress": "segment 1: 20 of 40 rows were removed, 20 move"}        any number of times
    ← {"progress": "vectors", "fraction": 0.25}                              the same, with how much of it is done
    ← {"result": {"rows": 20, ...}}                                        or
    ← {"error": {"type": "storage-full", "detail": "the disk is full; nothing was written"}}

One command a connection; the node closes it after the last line. Commands of other kinds need no other protocol.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

LINE_BYTES_MAX = 1 << 20
_ADDRESS_BYTES_MAX = 107


class Request(msgspec.Struct, frozen=True):
    command: str
    arguments: dict[str, Any] = {}


class Problem(msgspec.Struct, frozen=True):
    """`type`: the slug of an error of the tree in `errors`. `detail`: the sentence for the caller."""

    type: str
    detail: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a node: progress (and a fraction, 0 to 1, where one is known), a result or an error."""

    progress: str | None = None
    fraction: float | None = None
    result: dict[str, Any] | None = None
    error: Problem | None = None


def socket_path(directory: Path) -> Path:
    """Where the node of a directory listens."""
    return directory / "control"


@contextmanager
def address(path: Path) -> Iterator[str]:
    """The path of a socket as it fits into a socket's address, which holds 107 bytes. OSError: no such directory."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
