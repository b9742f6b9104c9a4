"""`verify`: what it finds, in sentences."""

from __future__ import annotations

from thread_service.commands.command import Command, Result, Switches
from thread_service.settings import Settings
from thread_service.store import verification
from thread_service.store.directory import DataDirectory
from thread_service.store.verification import Progress

DAMAGES_SHOWN = 50


def _verify(directory: DataDirectory, switches: Switches, settings: Settings, progress: Progress) -> Result:
    with verification.at_rest(directory) as place:
        return verification.verify(place, full=switches["full"], progress=progress)


def sentences(result: Result) -> str:
    counts, damages = result["counts"], result["damage"][:DAMAGES_SHOWN]
    about = ", ".join(f"{counts[name]} {name}" for name in ("documents", "vectors", "entities") if name in counts)
    if result["clean"]:
        return f"no damage: {about}, {result['seconds']:.1f} s"
    lines = [damage["sentence"] for damage in damages]
    if len(damages) < result["damaged"]:
        lines.append(f"and {result['damaged'] - len(damages)} more; --json names up to 1,000 for each check")
    lines.append(f"{result['damaged']} damages among {about}: restore a backup with `thread restore`")
    return "\n".join(lines)


def code(result: Result) -> int:
    return 0 if result["clean"] else 1


VERIFY = Command(_verify, sentences, code)
