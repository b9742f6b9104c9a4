"""Records as lines of JSON: written whole or not at all, and read line by line, whatever is in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from thread_service.errors import InvalidRequest
from thread_service.node.moving.records import VERSION, Document, End, Group, Header, Line, Owner, Record, Unread
from thread_service.store.files import OsFiles
from thread_service.store.verification import Progress

LINE_BYTES_MAX = 1 << 30
_SKIP_BYTES = 1 << 20

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def write(records: Iterable[Record | Unread], file: BinaryIO) -> list[Unread]:
    """Write every record; those that there are none of."""
    unread: list[Unread] = []
    for record in records:
        if isinstance(record, Unread):
            unread.append(record)
        else:
            file.write(_encoder.encode(record) + b"\n")
    return unread


def write_file(records: Iterable[Record | Unread], path: Path) -> list[Unread]:
    """`write` into a file, which is there when everything is in it, and which only its owner reads."""
    temporary = path.with_name(f"{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            unread = write(records, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    OsFiles().sync_directory(path.parent)
    return unread


def read_header(path: Path) -> Header:
    """InvalidRequest: it is no export, or one of a newer version. OSError."""
    with path.open("rb") as file:
        try:
            header = _decoder.decode(file.readline(LINE_BYTES_MAX))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            header = None
    if not isinstance(header, Header):
        raise InvalidRequest(f"{path} is no export of a node: its first line is no header")
    if header.version > VERSION:
        raise InvalidRequest(f"{path} was written by a newer version ({header.version}): upgrade this program")
    return header


def read(path: Path, progress: Progress) -> Iterator[Line | Unread]:
    """Every record but the header, by its line; in the place of a line that is none, what is wrong with it. OSError."""
    counts = {"owners": 0, "groups": 0, "documents": 0}
    end: End | None = None
    size = max(1, path.stat().st_size)
    done = 0
    progress("reading records")
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
            done += len(line)
            if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                done += _skip_line(file)
                yield Unread(f"line {number}", f"is longer than {LINE_BYTES_MAX} bytes")
                continue
            try:
                record = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                yield Unread(f"line {number}", _why(error))
                continue
            counts["owners"] += isinstance(record, Owner)
            counts["groups"] += isinstance(record, Group)
            counts["documents"] += isinstance(record, Document)
            if isinstance(record, End):
                end = record
            elif not isinstance(record, Header):
                yield Line(number, record)
            progress("reading records", done / size)
    if end is None:
        yield Unread("end", f"is missing: the file ends early, after {counts['documents']} documents")
    elif (missing := {name: getattr(end, name) - count for name, count in counts.items()}) and any(missing.values()):
        yield Unread("end", f"says that there were more or fewer records: {_differences(missing)}")


def _why(error: Exception) -> str:
    """The decoder's sentence, such as "Expected `str`, got `int` - at `$.label`", with the field first."""
    what, found, path = str(error).rpartition(" - at `$.")
    return f"{path.rstrip('`')}: {what[:1].lower()}{what[1:]}" if found else str(error)


def _skip_line(file: BinaryIO) -> int:
    """The rest of a line; how many bytes that were."""
    skipped = 0
    while part := file.readline(_SKIP_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _differences(missing: dict[str, int]) -> str:
    return ", ".join(f"{count:+} {name}" for name, count in missing.items() if count)
