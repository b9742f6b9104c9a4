"""The commands beside `serve`. Each asks the node that runs in a data directory, or works on the directory itself.

Progress goes to standard error, what came of it to standard output: a sentence, or with `--json` a line for a program.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from thread_service.settings import Settings
from thread_service.store import compaction
from thread_service.store.directory import DataDirectory, existing_node
from thread_service.store.disk import Disk
from thread_service.wire.control_client import NobodyListens, ask
from thread_service.wire.control_protocol import socket_path

Result = dict[str, Any]


def run(name: str, settings: Settings, *, as_json: bool) -> None:
    """Do what a command says. Raises a `ThreadError` when it could not be done."""
    command = COMMANDS[name]
    node_id = existing_node(settings.data_dir, settings.node_id or None)
    result = _ask_or_open(name, command.offline, settings.data_dir, node_id)
    if as_json:
        line = msgspec.json.encode({"command": name, "node_id": node_id, **result}).decode()
    else:
        line = command.sentence(result)
    sys.stdout.write(f"{line}\n")


def _ask_or_open(name: str, offline: Callable[[Disk], Result], data_dir: Path, node_id: str) -> Result:
    try:
        return ask(socket_path(data_dir / "nodes" / node_id), name, {}, _report)
    except NobodyListens:
        directory = DataDirectory.open_existing(data_dir, node_id)
    try:
        disk = Disk(directory)
    except BaseException:
        directory.close()
        raise
    try:
        return offline(disk)
    finally:
        disk.close()


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")


# ------------------------------------------------------------------------------------------------------ compact


def _compact(disk: Disk) -> Result:
    return dataclasses.asdict(compaction.compact(disk, every=True, progress=_report, go_on=lambda: None))


def _compacted(result: Result) -> str:
    said = (
        f"removed rows: {result['rows']}, emptied segments: {result['segments']}, "
        f"disk: {result['bytes_before'] / 1e6:.1f} MB before, {result['bytes_after'] / 1e6:.1f} MB now"
    )
    return f"{said}; {result['left']}" if result["left"] else said


@dataclass(frozen=True, slots=True)
class Command:
    """`offline` does it where no node runs. `sentence` says what came of it."""

    offline: Callable[[Disk], Result]
    sentence: Callable[[Result], str]


COMMANDS = {"compact": Command(_compact, _compacted)}
