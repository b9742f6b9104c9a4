"""The commands beside `serve`. Most ask the node that runs in a data directory, or work on the directory itself.

Progress goes to standard error, what came of it to standard output: sentences, or with `--json` a line for a program.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time

import msgspec

from thread_service.commands.backups import BACKUP, RESTORE, VERIFY_BACKUP
from thread_service.commands.command import Alone, Command, Result, Switches
from thread_service.commands.moving import EXPORT, IMPORT
from thread_service.commands.verifying import VERIFY
from thread_service.errors import InvalidRequest
from thread_service.screen import CommandScreen
from thread_service.settings import Settings
from thread_service.store import compaction, extractions, stamp
from thread_service.store.directory import DataDirectory, existing_node
from thread_service.store.disk import Disk
from thread_service.store.verification import Progress
from thread_service.wire.control_client import NobodyListens, ask
from thread_service.wire.control_protocol import socket_path


def run(name: str, settings: Settings, switches: Switches, *, as_json: bool) -> int:
    """Do what a command says; its exit code. Raises a `ThreadError` when it could not be done."""
    command = VERIFY_BACKUP if name == "verify" and switches.get("backup") else COMMANDS[name]
    with CommandScreen() as progress:
        if isinstance(command, Alone):
            result = command.work(settings, switches, progress)
        else:
            node_id = existing_node(settings.data_dir, settings.node_id or None)
            result = {"node_id": node_id, **_ask_or_open(name, command, switches, settings, node_id, progress)}
    lines = msgspec.json.encode({"command": name, **result}).decode() if as_json else command.sentences(result)
    # An export may have standard output to itself.
    (sys.stderr if switches.get("file") == "-" else sys.stdout).write(f"{lines}\n")
    return command.code(result)


def _ask_or_open(
    name: str, command: Command, switches: Switches, settings: Settings, node_id: str, progress: Progress
) -> Result:
    try:
        return ask(socket_path(settings.data_dir / "nodes" / node_id), name, switches, progress)
    except NobodyListens:
        directory = DataDirectory.open_existing(settings.data_dir, node_id)
    try:
        return command.offline(directory, switches, settings, progress)
    finally:
        directory.close()


# ------------------------------------------------------------------------------------------------------ compact


def _compact(directory: DataDirectory, switches: Switches, settings: Settings, progress: Progress) -> Result:
    disk = Disk(directory)
    try:
        return dataclasses.asdict(compaction.compact(disk, every=True, progress=progress, go_on=lambda: None))
    finally:
        disk.close()


def _compacted(result: Result) -> str:
    said = (
        f"removed rows: {result['rows']}, emptied segments: {result['segments']}, "
        f"disk: {result['bytes_before'] / 1e6:.1f} MB before, {result['bytes_after'] / 1e6:.1f} MB now"
    )
    return f"{said}; {result['left']}" if result["left"] else said


# ------------------------------------------------------------------------------------------------------ extract


def _extract(directory: DataDirectory, switches: Switches, settings: Settings, progress: Progress) -> Result:
    """Only the node has the model: here the documents are marked for its next start."""
    disk = Disk(directory)
    try:
        taken_up = disk.write(lambda connection, _: extractions.take_up(connection)).result()
        with disk.read() as connection:
            counts = extractions.counts(connection)
    finally:
        disk.close()
    return {
        "taken_up": taken_up,
        "extracted": 0,
        **counts._asdict(),
        "why": "no node runs here; the next start does it",
    }


def _extracted(result: Result) -> str:
    said = f"documents read: {result['extracted']}, put off for a later pass: {result['put_off']}"
    return f"{said}, waiting: {result['waiting']} ({result['why']})" if result["waiting"] else said


# ------------------------------------------------------------------------------------------------------ reembed


def _reembed(directory: DataDirectory, switches: Switches, settings: Settings, progress: Progress) -> Result:
    # Only here: the libraries behind a model take a second to import.
    from thread_service.node.reembedding import another_model, reembed

    disk = Disk(directory)
    try:
        with disk.read() as connection:
            begun = stamp.stored(connection, next=True)
        queue = another_model(settings, switches, begun, os.environ)
        if queue is None:
            raise InvalidRequest("name the model with --embedding-model")
        queue.start()
        try:
            return reembed(disk, queue, progress, time.sleep, lambda: None)
        finally:
            queue.close()
    finally:
        disk.close()


def _reembedded(result: Result) -> str:
    if not result["seconds"]:
        return f"the index is of {result['space']} already; nothing was embedded"
    counts = ", ".join(f"{result[name]} {name}" for name in ("texts", "relationships", "predicates"))
    lines = [f"the index is of {result['space']} now, before of {result['was']}: {counts}, {result['seconds']:.1f} s"]
    if result["without"]:
        lines.append(f"{result['without']} relationships that the model refused are found by their names only")
    if result["kept"]:
        lines.append(
            f"{result['kept']} vectors that callers brought stay as they are: searches by text find those of the width"
            f" {result['space'].rpartition('@')[2]}, searches by vector all of theirs"
        )
    lines.append(f"start the node without --embedding-model, or with {result['model']}, from now on")
    return "\n".join(lines)


COMMANDS: dict[str, Command | Alone] = {
    "backup": BACKUP,
    "compact": Command(_compact, _compacted, lambda result: 0),
    "export": EXPORT,
    "extract": Command(_extract, _extracted, lambda result: 0),
    "import": IMPORT,
    "reembed": Command(_reembed, _reembedded, lambda result: 0),
    "restore": RESTORE,
    "verify": VERIFY,
}
