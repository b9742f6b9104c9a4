"""Every check, one after the other, and what is made of their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from thread_service.doctor import gpu, machine, model, network, packages, storage
from thread_service.doctor.result import Check, Result, Status, problem
from thread_service.errors import ThreadError
from thread_service.settings import Settings, SettingsError

CHECKS: Mapping[str, Mapping[str, Check]] = {
    "machine": {"Python": machine.python, "memory": machine.memory, "clock": machine.clock},
    "packages": {
        "packages": packages.declared,
        "FAISS": packages.faiss,
        "SQLite": packages.database,
        "ONNX": packages.onnx,
    },
    "GPU": {
        "driver": gpu.driver,
        "NVRTC": gpu.nvrtc,
        "CuPy": gpu.cupy,
        "Triton": gpu.triton,
        "torch": gpu.torch,
        "engine": gpu.engine,
    },
    "storage": {
        "directory": storage.directory,
        "file system": storage.file_system,
        "database": storage.log,
        "fsync": storage.fsync,
        "room": storage.room,
        "lock": storage.lock,
        "schema": storage.schema,
    },
    "model": {"model": model.model, "index": model.index, "entities": model.entities},
    "network": {
        "HTTP port": network.http_port,
        "gRPC port": network.grpc_port,
        "reach": network.exposure,
        "mothership": network.mothership,
        "fleet": network.fleet,
    },
}

_MARKS: Mapping[Status, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "info": ("info", "blue"),
    "warning": ("warning", "yellow"),
    "problem": ("problem", "bold red"),
}


class Finding(NamedTuple):
    section: str
    name: str
    result: Result


def run(settings: Settings) -> Iterator[Finding]:
    """What each check finds, as it finds it."""
    for section, checks in CHECKS.items():
        for name, check in checks.items():
            yield Finding(section, name, _result(check, settings))


def _result(check: Check, settings: Settings) -> Result:
    """A check that cannot be done is a problem too."""
    try:
        return check(settings)
    except (ThreadError, SettingsError) as error:
        return problem(str(error), "put that right first")
    except Exception as error:
        said = " ".join(str(error).split())
        return problem(
            f"this check failed: {type(error).__name__}: {said}", "see whether the problems above explain it"
        )


def is_fit(findings: Sequence[Finding]) -> bool:
    """Whether a node would serve as configured."""
    return all(finding.result.status != "problem" for finding in findings)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "command": "doctor",
        "fit": is_fit(findings),
        "checks": [
            {
                "section": section,
                "name": name,
                "status": result.status,
                "found": result.found,
                **({"remedy": result.remedy} if result.remedy else {}),
            }
            for section, name, result in findings
        ],
    }


def show(findings: Sequence[Finding], console: Console) -> None:
    """A checklist, and the sum of it."""
    for _, name, result in findings:
        word, style = _MARKS[result.status]
        console.print(Text.assemble((f"{word:<8}", style), f" {name:<12} {_printable(result.found)}"))
        if result.remedy:
            console.print(Text(f"{'':<22}→ {_printable(result.remedy)}"))
    problems = sum(finding.result.status == "problem" for finding in findings)
    if problems:
        console.print(f"{problems} of {len(findings)} checks found a problem: a node would not serve as configured")
    else:
        console.print("a node can serve as configured")


def _printable(text: str) -> str:
    """What others wrote, such as the name of a process, may hold what a terminal would obey."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
