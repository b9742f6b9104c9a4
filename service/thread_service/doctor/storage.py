"""The data directory: what it lies on, what is in it, and who has it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from thread_service.doctor.result import Result, info, ok, problem, warning
from thread_service.doctor.running import database, node_directory, running_node
from thread_service.settings import Settings

NETWORK = (
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "ocfs2",
    "smb3",
    "smbfs",
)
"""File systems of other machines; so is `fuse.` before most of these and `sshfs`."""
VOLATILE = ("tmpfs", "ramfs")
SLOW_FSYNC_SECONDS = 0.1
SMALLEST_ROOM_BYTES = 64_000_000
_SYNCS = 5


def directory(settings: Settings) -> Result:
    """It is there or can be made, and can be written."""
    path = settings.data_dir
    there = _nearest(path)
    if not there.is_dir():
        return problem(f"{there} is not a directory", "give another --data-dir")
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return problem(f"{there} is on a read-only file system", "mount it for writing, or give another --data-dir")
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(
            f"{there} cannot be written by this user", f"sudo chown {os.getuid()} it, or give another --data-dir"
        )
    if there != path:
        return info(f"{path} is not there yet; the first start makes it")
    state = node_directory(settings)
    return ok(f"{path}, empty" if state is None else str(state))


def file_system(settings: Settings) -> Result:
    """SQLite's log is memory shared by processes of one machine."""
    there = _nearest(settings.data_dir)
    kind, mounted = _mount(there, Path("/proc/self/mountinfo").read_text())
    found = f"{kind} at {mounted}"
    if kind.removeprefix("fuse.") in (*NETWORK, "nfs4", "sshfs"):
        return warning(
            f"{found}, a network file system: SQLite's write-ahead log does not work across machines",
            "give a --data-dir on a local disk",
        )
    if kind in VOLATILE:
        return warning(f"{found}: it lies in memory and is gone after a restart", "give a --data-dir on a disk")
    return ok(found)


def _mount(path: Path, table: str) -> tuple[str, str]:
    """Type and place of the file system that holds `path`, of the lines of /proc/self/mountinfo."""
    best = ("unknown", "/")
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].encode().decode("unicode_escape")
        # Of two at one place the later one is on top.
        if path.is_relative_to(place) and len(place) >= len(best[1]):
            best = (after.split()[0], place)
    return best


def log(settings: Settings) -> Result:
    """A database with a write-ahead log, tried out in a folder that is removed again."""
    from thread_service.store.connections import connect_writer

    with tempfile.TemporaryDirectory(prefix=".thread-doctor-", dir=_nearest(settings.data_dir)) as folder:
        connection = connect_writer(Path(folder) / "try.db", None)
        try:
            connection.execute("CREATE TABLE try (one)")
        finally:
            connection.close()
    return ok("a database can be written here")


def fsync(settings: Settings) -> Result:
    """What every commit waits for."""
    seconds: list[float] = []
    with tempfile.TemporaryFile(dir=_nearest(settings.data_dir), buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(bytes(4096))
            started = time.perf_counter()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - started)
    middle = sorted(seconds)[_SYNCS // 2]
    found = f"{middle * 1e3:.1f} ms for an fsync"
    if middle > SLOW_FSYNC_SECONDS:
        return warning(found, "deposits wait for it: give a --data-dir on a faster disk")
    return ok(found)


def room(settings: Settings) -> Result:
    usage = shutil.disk_usage(_nearest(settings.data_dir))
    found = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB"
    if usage.free < SMALLEST_ROOM_BYTES:
        return problem(found, "make room: deposits would be refused")
    if usage.free < settings.min_free_gb * 1e9:
        what = f"{found}, less than --min-free-gb {settings.min_free_gb:g}"
        return warning(what, "make room: a mothership is told to route new documents elsewhere")
    return ok(found)


def lock(settings: Settings) -> Result:
    node = running_node(settings)
    if node is None:
        return ok("no node runs here")
    return warning(
        f"in use by {node}", "stop it before another one starts; `thread verify` and `thread compact` reach it"
    )


def schema(settings: Settings) -> Result:
    """Whether this version of the program can open what is there."""
    from thread_service.store.directory import read_format
    from thread_service.store.migrations import NEWEST, OLDEST, schema_version

    state = node_directory(settings)
    if state is None:
        return info("no database yet")
    read_format(state)
    with database(settings, state) as connection:
        version, known = schema_version(connection), NEWEST
    if version > known:
        return problem(f"version {version}, and this program knows {known}", "upgrade the node")
    if 0 < version < OLDEST:
        return problem(f"version {version} is from before the first release", "give another --data-dir")
    if version < known:
        return info(f"version {version}; the next start brings it to {known}")
    return ok(f"version {version}")


def _nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(each for each in (path, *path.parents) if each.exists())
