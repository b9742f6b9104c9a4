"""`backup`, `restore`, and `verify --backup`."""

from __future__ import annotations

from pathlib import Path

from thread_service.commands.command import Alone, Command, Result, Switches
from thread_service.commands.verifying import code, sentences
from thread_service.settings import Settings
from thread_service.store import backup
from thread_service.store.directory import DataDirectory
from thread_service.store.verification import Progress


def _back_up(directory: DataDirectory, switches: Switches, settings: Settings, progress: Progress) -> Result:
    with backup.source_at_rest(directory) as source:
        return backup.take(source, Path(switches["target"]), progress)


def _backed_up(result: Result) -> str:
    counts = result["counts"]
    about = ", ".join(f"{counts[name]} {name}" for name in ("documents", "vectors", "entities"))
    said = (
        f"{result['backup']}: {about}, {result['bytes'] / 1e6:.1f} MB, of which {result['copied_bytes'] / 1e6:.1f} MB"
        f" were copied and the rest linked, {result['seconds']:.1f} s"
    )
    if not result["damage"]:
        return said
    return "\n".join(
        [
            said,
            *result["damage"],
            "the database is damaged: this backup is set aside, `thread restore` takes it only when it is named; run"
            " `thread verify`, and restore an earlier one",
        ]
    )


def _backed_up_code(result: Result) -> int:
    return 1 if result["damage"] else 0


def _restore(settings: Settings, switches: Switches, progress: Progress) -> Result:
    return backup.restore(Path(switches["backup"]), Path(switches["target"]), progress)


def _restored(result: Result) -> str:
    said = f"{result['backup']} is restored: {result['bytes'] / 1e6:.1f} MB, {result['seconds']:.1f} s"
    if result["verified"] is None:
        return f"{said}; its checksums fit; the next start brings the database up to date"
    if result["verified"]["clean"]:
        return f"{said}; {sentences(result['verified'])}"
    return f"{said}, with the damage that was backed up:\n{sentences(result['verified'])}"


def _restored_code(result: Result) -> int:
    return 0 if result["verified"] is None else code(result["verified"])


def _verify(settings: Settings, switches: Switches, progress: Progress) -> Result:
    return backup.check(Path(switches["backup"]), full=switches["full"], progress=progress)


BACKUP = Command(_back_up, _backed_up, _backed_up_code)
RESTORE = Alone(_restore, _restored, _restored_code)
VERIFY_BACKUP = Alone(_verify, sentences, code)
