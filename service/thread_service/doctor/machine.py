"""The interpreter, the memory and the clock."""

from __future__ import annotations

import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from thread_service.doctor.result import Result, ok, problem, warning
from thread_service.settings import Settings

PYTHON = (3, 11)
MEMORY_BYTES = 1_000_000_000
"""Enough for a node with the local model and an index of some ten thousand passages."""


def python(settings: Settings) -> Result:
    version = platform.python_version()
    if sys.version_info < PYTHON:
        return problem(
            version, f"install Python {PYTHON[0]}.{PYTHON[1]} or newer and make the environment anew with it"
        )
    if sys.platform != "linux":
        return problem(f"{version} on {sys.platform}", "run the node on Linux")
    return ok(f"{version}, {sys.executable}")


def memory(settings: Settings) -> Result:
    """What is free on the machine or, where that is less, to this control group."""
    free, total = _of_machine()
    limit, used = _of_group(Path("/sys/fs/cgroup"))
    where = "of this machine"
    if limit is not None and limit < total:
        free, total, where = min(free, limit - used), limit, "that this container may use"
    found = f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB {where}"
    if free < MEMORY_BYTES:
        return warning(found, f"leave the node at least {MEMORY_BYTES / 1e9:.0f} GB: the local model alone takes half")
    return ok(found)


def _of_machine() -> tuple[int, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines}
    return sizes["MemAvailable"], sizes["MemTotal"]


def _of_group(root: Path) -> tuple[int | None, int]:
    """(limit, bytes in use) of the control group, version 2; no limit when there is none."""
    try:
        limit, used = (root / "memory.max").read_text().strip(), int((root / "memory.current").read_text())
        return (int(limit), used) if limit.isdecimal() else (None, used)
    except (OSError, ValueError):
        return None, 0


def clock(settings: Settings) -> Result:
    """Documents carry the time at which they were filed: a clock behind the files of this program is wrong."""
    now = time.time()
    installed = os.stat(__file__).st_mtime
    shown = datetime.fromtimestamp(now, UTC).isoformat(" ", "seconds")
    if now < installed:
        return warning(f"{shown}, before this program was installed", "set the clock (timedatectl set-ntp true)")
    return ok(shown)
