"""What a command is: how it is done, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from thread_service.settings import Settings
from thread_service.store.directory import DataDirectory
from thread_service.store.verification import Progress

Result = dict[str, Any]
Switches = Mapping[str, Any]
"""What a command was given beside settings, and the settings that it gives to the node."""


@dataclass(frozen=True, slots=True)
class Command:
    """Done by the node that runs, or where none does by `offline`; the directory stays the caller's. `sentences` and
    `code`: what comes of it, for people and as the exit code."""

    offline: Callable[[DataDirectory, Switches, Settings, Progress], Result]
    sentences: Callable[[Result], str]
    code: Callable[[Result], int]


@dataclass(frozen=True, slots=True)
class Alone:
    """Done by this process, whether a node runs or not. The result says which `node_id` it was about."""

    work: Callable[[Settings, Switches, Progress], Result]
    sentences: Callable[[Result], str]
    code: Callable[[Result], int]
