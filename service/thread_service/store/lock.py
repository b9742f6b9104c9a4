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
from typing import Self

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
            holder = _holder(self._descriptor)
            self.release()
            raise StoreFailed(
                f"{path.parent} is in use by {holder}: stop that process or take another data directory"
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


def _holder(descriptor: int) -> str:
    """The sentence a refused process reads; the holder may not have written its name yet."""
    try:
        who = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {who['pid']} ({who['command']}) on {who['host']} since {who['since']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"
