"""What a backup holds, as it says itself: `manifest.json`, which is there only when everything else is."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated

import msgspec

from thread_service.errors import StoreFailed
from thread_service.store.files import Files
from thread_service.store.segments import file_name

FORMAT = 1
NAME = "manifest.json"
BACKUP_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}Z")
"""Of the directory of one backup: when it was begun, in UTC."""
QUARANTINED = "-quarantined"
"""What the name of a backup ends with that is damaged as a database: it is taken only by who names it."""


UUID = "^[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}$"


class FileSum(msgspec.Struct, frozen=True):
    """Size in bytes and SHA-256 in lower-case hexadecimal."""

    bytes: int
    sha256: str


class SegmentSum(msgspec.Struct, frozen=True):
    """`rows` of `width` float32 each. `source`: inode and time of change (ns) of the file that it is a copy of, by
    which the next backup tells that nothing has changed."""

    width: int
    rows: int
    bytes: int
    sha256: str
    source: tuple[int, int]


class Manifest(msgspec.Struct, frozen=True):
    """`schema`: version of the database. `counts`: rows of its main tables."""

    format: int
    node_id: Annotated[str, msgspec.Meta(pattern=UUID)]
    schema: int
    taken_at: str
    counts: dict[str, int]
    database: FileSum
    segments: dict[int, SegmentSum]

    @property
    def bytes(self) -> int:
        return self.database.bytes + sum(segment.bytes for segment in self.segments.values())

    def files(self) -> dict[str, FileSum]:
        """Every file by its path in the backup, the database first."""
        named = {
            f"vectors/{file_name(number)}": FileSum(segment.bytes, segment.sha256)
            for number, segment in sorted(self.segments.items())
        }
        return {"thread.db": self.database, **named}


def read(backup: Path) -> Manifest:
    """`StoreFailed`: there is no complete backup, or it is of a newer version, or its manifest is damaged."""
    path = backup / NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreFailed(f"{backup} is no complete backup: it has no {NAME}; take another one") from None
    except OSError as error:
        raise StoreFailed(f"{path}: cannot be read: {error.strerror}") from error
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("format")
        if isinstance(version, int) and version > FORMAT:
            raise StoreFailed(f"{path} was written by a newer version (format {version}): upgrade this program")
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreFailed(f"{path} is damaged: {error}; take another backup") from None


def find(path: Path) -> Path:
    """The backup at `path`: itself, or of a directory of backups of one node the newest. `StoreFailed`: there is none,
    or the directory has backups of several nodes."""
    if (path / NAME).exists():
        return path
    found = complete(path)
    if len({manifest.node_id for manifest in found.values()}) > 1:
        raise StoreFailed(f"{path} holds backups of several nodes; name one of the directories in it")
    if not found:
        raise StoreFailed(f"{path} holds no complete backup: one has a {NAME}")
    return max(found)


def complete(directory: Path) -> dict[Path, Manifest]:
    """The complete backups in a directory; what is damaged, quarantined or of a newer version is left out."""
    found: dict[Path, Manifest] = {}
    for path in _directories(directory):
        try:
            found[path] = read(path)
        except StoreFailed:
            continue
    return found


def unfinished(directory: Path) -> list[Path]:
    """What attempts have left that did not end."""
    found = [*_directories(directory), *_directories(directory, QUARANTINED)]
    return [path for path in found if not (path / NAME).exists()]


def _directories(directory: Path, ending: str = "") -> list[Path]:
    def is_one(name: str) -> bool:
        return name.endswith(ending) and BACKUP_NAME.fullmatch(name.removesuffix(ending)) is not None

    try:
        return sorted(path for path in directory.iterdir() if is_one(path.name) and path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_whole(files: Files, path: Path, data: bytes) -> None:
    """Write a small file so that after a power loss it is there whole, or not at all, or as it was."""
    temporary = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        files.remove(temporary)
    with files.create(temporary) as file:
        file.write(memoryview(data), 0)
        file.sync()
    files.rename(temporary, path)
    files.sync_directory(path.parent)
