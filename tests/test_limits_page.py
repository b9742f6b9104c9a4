"""`docs/limits.md` says the numbers that the program has."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from thread_service.settings import declarations
from thread_service.wire import limits
from thread_service.wire.connections import Bounds

PAGE = (Path(__file__).parents[1] / "docs" / "limits.md").read_text(encoding="utf-8")


def rows() -> list[tuple[str, str]]:
    """(where, number) of every row."""
    cells = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [(row[-1].strip("`"), row[1]) for row in cells if row[-1] != "where"]


def value(where: str) -> Any:
    """What stands at a flag, a dotted name, or a parameter's default such as `module.Class(parameter)`."""
    if where.startswith("--"):
        return next(setting.default({}) for setting in declarations().values() if setting.flag == where)
    path, _, parameter = where.rstrip(")").partition("(")
    parts = path.split(".")
    module = max(n for n in range(1, len(parts)) if (_file(parts[:n])).exists())
    found: Any = importlib.import_module(".".join(["thread_service", *parts[:module]]))
    for name in parts[module:]:
        if dataclasses.is_dataclass(found):
            return next(field.default for field in dataclasses.fields(found) if field.name == name)
        found = getattr(found, name)
    return inspect.signature(found).parameters[parameter].default if parameter else found


def _file(parts: list[str]) -> Path:
    path = Path(inspect.getfile(limits)).parents[1].joinpath(*parts)
    return path if path.is_dir() else path.with_suffix(".py")


def test_every_number_is_the_programs_own() -> None:
    assert len(rows()) > 35
    for where, number in rows():
        assert float(number.replace(",", "")) == value(where), where


def test_every_bound_of_requests_and_connections_is_there() -> None:
    shown = {where for where, _ in rows()}
    constants = {name for name in vars(limits) if re.fullmatch(r"[A-Z_]+_MAX", name)}
    assert {f"wire.limits.{name}" for name in constants} <= shown
    named = {where.rpartition(".")[2] for where in shown if where.startswith("wire.connections.")}
    assert {field.name for field in dataclasses.fields(Bounds)} - named == {"progress_bytes", "sweep_seconds"}
    assert f"by {Bounds().progress_bytes:,} bytes" in PAGE
