"""One process per data directory: an flock that the kernel drops when its holder dies.

Because the lock belongs to the open file and not to the file's existence there are no stale locks: what the file says
only tells a second process who is in the way. The file is never removed, or two processes could each lock their own.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from thread_service.errors import StoreFailed


class DirectoryLock:
    """Hold `path` (created when missing) until `release` or the end of the process.

    `StoreFailed`: another process holds it (the message says which and since when), or the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreFailed(f"{path}: cannot open the lock file: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._say_who()
        except BlockingIOError as error:
            who = _read_holder(self._descriptor) or "another process"
            self.release()
            raise StoreFailed(
                f"{path.parent} is in use by {who}: stop that process or take another data directory"
            ) from error
        except OSError as error:
            self.release()
            raise StoreFailed(f"{path}: cannot lock: {error.strerror}") from error

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _say_who(self) -> None:
        # The program's name only: its arguments may hold secrets.
        who = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": Path(sys.argv[0]).name if sys.argv else "",
        }
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(who).encode() + b"\n", 0)


class Holder(NamedTuple):
    """Who holds a lock. `pid` 0: that cannot be told."""

    pid: int
    command: str
    host: str
    since: str

    def __str__(self) -> str:
        return (
            f"process {self.pid} ({self.command}) on {self.host} since {self.since}" if self.pid else "another process"
        )


def holder(path: Path) -> Holder | None:
    """Who holds the lock at `path`; None when nobody does. Nothing is created.

    It is tried out, for as long as that takes: a process that starts in the same instant would be refused.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(descriptor) or Holder(0, "", "", "")
    finally:
        os.close(descriptor)
    return None


def _read_holder(descriptor: int) -> Holder | None:
    """What the holder has written of itself; it may not have done so yet."""
    try:
        who = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(int(who["pid"]), str(who["command"]), str(who["host"]), str(who["since"]))
    except (ValueError, KeyError, TypeError, OSError):
        return None
