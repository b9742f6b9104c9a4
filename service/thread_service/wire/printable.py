"""Sentences about requests, fit to be sent: parts of them come from the caller."""

from __future__ import annotations

_CHARS_MAX = 400


def printable(text: str) -> str:
    """`text` as UTF-8 can carry it, and not longer than a message should be."""
    if len(text) > _CHARS_MAX:
        text = text[: _CHARS_MAX - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()
