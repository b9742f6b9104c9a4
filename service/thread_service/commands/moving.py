"""`export` and `import`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from thread_service.commands.command import Alone, Result, Switches
from thread_service.errors import InvalidRequest
from thread_service.node.moving import exporting, importing, lines, original
from thread_service.node.moving.records import Line, Record, Unread
from thread_service.settings import Settings
from thread_service.store import sql
from thread_service.store.connections import connect_at_rest, connect_reader
from thread_service.store.directory import DataDirectory, existing_node
from thread_service.store.disk import Disk
from thread_service.store.lock import holder
from thread_service.store.readers import Readers
from thread_service.store.verification import Progress

UNREAD_SHOWN = 50


# ------------------------------------------------------------------------------------------------------ export


def _export(settings: Settings, switches: Switches, progress: Progress) -> Result:
    """Beside a running node: its database lets others read a snapshot of it."""
    started = time.monotonic()
    node_id = existing_node(settings.data_dir, settings.node_id or None)
    place = settings.data_dir / "nodes" / node_id
    with _readers(settings.data_dir, node_id) as readers, readers.read() as connection:
        # Nested, `readers` would give the same snapshot again.
        newer = Readers(lambda: connect_reader(place / "thread.db", None))
        try:
            found = exporting.export(node_id, connection, newer.read, place / "vectors", progress)
            if switches["file"] == "-":
                unread = lines.write(found, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            else:
                unread = lines.write_file(found, Path(switches["file"]))
        finally:
            newer.close()
        tables = ("owners", "groups", "documents")
        counts = {table: int(sql.value(connection, f"SELECT count(*) FROM {table}")) for table in tables}
    return {
        "node_id": node_id,
        "file": switches["file"],
        **counts,
        "failed": len(unread),
        "unread": [{"item": each.item, "what": each.what} for each in unread],
        "seconds": round(time.monotonic() - started, 3),
    }


@contextlib.contextmanager
def _readers(data_dir: Path, node_id: str) -> Iterator[Readers]:
    """Of a node that runs; where none does, of its directory, so that none starts meanwhile."""
    path = data_dir / "nodes" / node_id
    directory = None if holder(path / "LOCK") else DataDirectory.open_existing(data_dir, node_id)

    def connect() -> apsw.Connection:
        database = path / "thread.db"
        return connect_reader(database, None) if directory is None else connect_at_rest(database)

    readers = Readers(connect)
    try:
        yield readers
    finally:
        readers.close()
        if directory is not None:
            directory.close()


def _exported(result: Result) -> str:
    done = result["documents"] - result["failed"]
    said = f"{result['file']}: {done} documents, {result['groups']} groups, {result['seconds']:.1f} s"
    return "\n".join([said, *_about_unread(result, "not exported")])


# ------------------------------------------------------------------------------------------------------ import


def _import(settings: Settings, switches: Switches, progress: Progress) -> Result:
    started = time.monotonic()
    if (switches["file"] is None) == (switches["original"] is None):
        raise InvalidRequest("say what to import: the file of an export, or --from-thread with a data directory")
    node_id, found = _records(switches, settings, progress)
    with _opened(settings, node_id) as disk:
        done = importing.file_records(disk, found)
        with disk.read() as connection:
            waiting = sql.value(connection, "SELECT count(*) FROM pending")
    return {
        "node_id": disk.directory.node_id,
        **done.as_json(),
        "waiting": waiting,
        "seconds": round(time.monotonic() - started, 3),
    }


def _records(
    switches: Switches, settings: Settings, progress: Progress
) -> tuple[str, Iterator[Record | Line | Unread]]:
    """The id of the node they are of, and the records."""
    if switches["original"] is not None:
        found = original.find(Path(switches["original"]), settings.node_id or None)
        return found.node_id, found.records(progress)
    path = Path(switches["file"])
    return lines.read_header(path).node_id, lines.read(path, progress)


@contextlib.contextmanager
def _opened(settings: Settings, node_id: str) -> Iterator[Disk]:
    """The store of a node that does not run, which is created with this id when there is none yet."""
    is_new = not (settings.data_dir / "node-id").exists() and not [*settings.data_dir.glob("nodes/*/thread.db")]
    directory = DataDirectory.open(settings.data_dir, settings.node_id or (node_id if is_new else None))
    try:
        disk = Disk(directory)
    except BaseException:
        directory.close()
        raise
    try:
        yield disk
    finally:
        disk.close()


def _imported(result: Result) -> str:
    said = f"documents: {result['documents']} new, {result['skipped']} there already; groups: {result['groups']} new"
    if result["waiting"]:
        said += f"; {result['waiting']} documents are indexed when the node is started"
    sentences = [f"{said}, {result['seconds']:.1f} s", *_about_unread(result, "not imported")]
    if result["failed"]:
        sentences.append("correct them and import again: what is there already is left as it is")
    return "\n".join(sentences)


def _about_unread(result: dict[str, Any], what: str) -> list[str]:
    if not result["failed"]:
        return []
    named = [f"{each['item']}: {each['what']}" for each in result["unread"][:UNREAD_SHOWN]]
    if len(named) < result["failed"]:
        named.append(f"and {result['failed'] - len(named)} more; --json names up to 1,000")
    return [f"{result['failed']} {what}:", *named]


def _code(result: Result) -> int:
    return 1 if result["failed"] else 0


EXPORT = Alone(_export, _exported, _code)
IMPORT = Alone(_import, _imported, _code)
