"""The texts of one document of the original, with the vectors that its caller brought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thread_service.node.filing import CALLER_WIDTH_MAX, CALLER_WIDTH_MULTIPLE
from thread_service.node.moving.plists import pick, text
from thread_service.node.moving.records import Unread
from thread_service.node.operations import MediaType, is_usable

_MEDIA = ("text", "image", "code")


@dataclass(frozen=True, slots=True)
class Part:
    """`vector`: little-endian float32, None when the original's model embedded the text. `url`: the caller's own."""

    text: str
    media_type: MediaType
    vector: bytes | None
    url: str | None


def read_parts(value: Any, address: str | None, note: Callable[[Unread], None], name: str) -> list[Part]:
    """The parts in their order, without those that have no text. `address`: the document's own, which is no caller's.

    A vector that is none, or has another width than the first, is noted: its text is embedded instead.
    """
    if not isinstance(value, list):
        note(Unread(name, "is no list"))
        return []
    parts: list[Part] = []
    width = 0
    for number, each in enumerate(value):
        data = text(pick(each, "data", "text"))
        if data is None:
            note(Unread(name, f"part {number} has no text; it is left out"))
            continue
        vector = _vector(pick(each, "embedding"))
        if isinstance(vector, str) or (vector is not None and width and len(vector) != width):
            what = vector if isinstance(vector, str) else "has another width than the first"
            note(Unread(name, f"the vector of part {number} {what}; the text is embedded instead"))
            vector = None
        width = width or len(vector or b"")
        media_type = text(pick(each, "mediatype")) or "text"
        if media_type not in _MEDIA:
            note(Unread(name, f"part {number} is of the media type {media_type[:40]!a}; it counts as text"))
            media_type = "text"
        url = text(pick(each, "url"))
        parts.append(Part(data, cast("MediaType", media_type), vector, url if url != address else None))
    return parts


def _vector(value: Any) -> bytes | str | None:
    """Its bytes; what is wrong with it; None without one."""
    if value is None or value in (b"", []):
        return None
    try:
        data = value if isinstance(value, bytes) else np.asarray(value, "<f4").tobytes()
    except (TypeError, ValueError, OverflowError):
        return "is no list of numbers"
    width, rest = divmod(len(data), 4)
    if rest or width % CALLER_WIDTH_MULTIPLE or width > CALLER_WIDTH_MAX:
        return f"has {len(data)} bytes, which is no width that is kept"
    if not is_usable(np.frombuffer(data, "<f4").astype(np.float32)):
        return "holds NaN, infinity or too large a number"
    return data
