"""Property lists that may be anything: read whole or refused, and looked into without trusting a type.

The original's files name one thing in several ways (`owner_id`, `ownerId`), so keys are compared by their letters.
"""

from __future__ import annotations

import contextlib
import os
import plistlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NO_LETTER = re.compile(r"[^0-9a-z]")


class Unreadable(Exception):
    """Why a file cannot be read, in a few words."""


def load(path: Path) -> Any:
    """What a property list holds. `Unreadable`: it is missing, no regular file, or no property list."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise Unreadable("is missing") from None
    except ValueError:
        raise Unreadable("has a name that no file can have") from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    try:
        return plistlib.loads(data)
    except (Exception, RecursionError) as error:
        # The parser has many ways to stumble over bytes that are no property list.
        raise Unreadable(f"is no property list: {type(error).__name__}") from None


def letters(key: str) -> str:
    """What keys are compared by."""
    return _NO_LETTER.sub("", key.lower())


def pick(value: Any, *names: str) -> Any:
    """What a dictionary has under the first of the names that it has; None without one."""
    if not isinstance(value, dict):
        return None
    known = {letters(key): found for key, found in value.items() if isinstance(key, str)}
    return next((known[name] for name in names if known.get(name) is not None), None)


def text(value: Any) -> str | None:
    """A string that is Unicode text, also one that stands as bytes or as an address; None for anything else."""
    if isinstance(value, dict):
        value = pick(value, "relative", "absolute")
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
        return None
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def texts(value: Any) -> list[str]:
    """The strings in a list."""
    return [found for each in value if (found := text(each)) is not None] if isinstance(value, list) else []


def entries(value: Any) -> Iterator[tuple[str | None, Any]]:
    """What a list, or a dictionary by key, holds: (key or None, value)."""
    if isinstance(value, dict):
        yield from ((text(key), each) for key, each in value.items())
    elif isinstance(value, list):
        yield from ((None, each) for each in value)
