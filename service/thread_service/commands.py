"""The commands beside `serve`. Each asks the node that runs in a data directory, or works on the directory itself.

Progress goes to standard error, what came of it to standard output: sentences, or with `--json` a line for a program.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from thread_service.errors import InvalidRequest
from thread_service.screen import CommandScreen
from thread_service.settings import Settings
from thread_service.store import compaction, extractions, stamp, verification
from thread_service.store.directory import DataDirectory, existing_node
from thread_service.store.disk import Disk
from thread_service.store.verification import Progress
from thread_service.wire.control_client import NobodyListens, ask
from thread_service.wire.control_protocol import socket_path

Result = dict[str, Any]
Switches = Mapping[str, Any]
"""The flags of a command that are its own, and the settings that it gives to the node."""


def run(name: str, settings: Settings, switches: Switches, *, as_json: bool) -> int:
    """Do what a command says; its exit code. Raises a `ThreadError` when it could not be done."""
    command = COMMANDS[name]
    node_id = existing_node(settings.data_dir, settings.node_id or None)
    with CommandScreen() as progress:
        result = _ask_or_open(name, command, switches, settings, node_id, progress)
    if as_json:
        lines = msgspec.json.encode({"command": name, "node_id": node_id, **result}).decode()
    else:
        lines = command.sentences(result)
    sys.stdout.write(f"{lines}\n")
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


# ------------------------------------------------------------------------------------------------------ verify

DAMAGES_SHOWN = 50


def _verify(directory: DataDirectory, switches: Switches, settings: Settings, progress: Progress) -> Result:
    with verification.at_rest(directory) as place:
        return verification.verify(place, full=switches["full"], progress=progress)


def _verified(result: Result) -> str:
    counts, damages = result["counts"], result["damage"][:DAMAGES_SHOWN]
    about = ", ".join(f"{counts[name]} {name}" for name in ("documents", "vectors", "entities") if name in counts)
    if result["clean"]:
        return f"no damage: {about}, {result['seconds']:.1f} s"
    lines = [damage["sentence"] for damage in damages]
    if len(damages) < result["damaged"]:
        lines.append(f"and {result['damaged'] - len(damages)} more; --json names up to 1,000 for each check")
    lines.append(f"{result['damaged']} damages among {about}: restore a backup with `thread restore`")
    return "\n".join(lines)


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


@dataclass(frozen=True, slots=True)
class Command:
    """`offline` does it where no node runs; the directory stays the caller's. `sentences` and `code`: what comes of
    it, for people and as the exit code."""

    offline: Callable[[DataDirectory, Switches, Settings, Progress], Result]
    sentences: Callable[[Result], str]
    code: Callable[[Result], int]


COMMANDS = {
    "compact": Command(_compact, _compacted, lambda result: 0),
    "extract": Command(_extract, _extracted, lambda result: 0),
    "reembed": Command(_reembed, _reembedded, lambda result: 0),
    "verify": Command(_verify, _verified, lambda result: 0 if result["clean"] else 1),
}
