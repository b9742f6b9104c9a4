"""What one check found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from thread_service.settings import Settings

Status = Literal["ok", "info", "warning", "problem"]
"""`problem`: a node would not start, or not serve as configured. `warning`: it would, with less than was wanted or at a
risk. `info`: good to know."""


@dataclass(frozen=True, slots=True)
class Result:
    """`found` is a fact, `remedy` what to do about it; empty when there is nothing to do."""

    status: Status
    found: str
    remedy: str = ""


Check = Callable[[Settings], Result]


def ok(found: str) -> Result:
    return Result("ok", found)


def info(found: str, remedy: str = "") -> Result:
    return Result("info", found, remedy)


def warning(found: str, remedy: str) -> Result:
    return Result("warning", found, remedy)


def problem(found: str, remedy: str) -> Result:
    return Result("problem", found, remedy)
