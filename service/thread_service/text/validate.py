"""Which strings are text: Unicode scalar values, all that UTF-8 can carry. NUL is text, a surrogate is not."""

from __future__ import annotations


def first_surrogate(text: str) -> int | None:
    """The offset of the first surrogate code point of `text` in code points, or None when all of it is text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
