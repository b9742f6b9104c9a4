"""`python failing_disk.py python -m thread_service.cli …`: the node, with a disk whose next sync of vectors fails.

It fails once the file `fail` is in the working directory, and once only: a retry would seem to succeed.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from thread_service import cli
from thread_service.store.files import OsFile

_sync = OsFile.sync


def failing_sync(file: OsFile) -> None:
    trigger = Path("fail")
    if trigger.exists():
        trigger.unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    _sync(file)


if __name__ == "__main__":
    OsFile.sync = failing_sync  # type: ignore[method-assign]
    sys.argv = ["thread", *sys.argv[4:]]
    sys.exit(cli.main())
