"""A document as windows that a model reads one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from thread_service.text.chunker import chunk

WINDOW_CHARACTERS = 3_000
"""About 750 tokens of English, which leave room for prompt and answer in a context of 4,096 in any script."""


def windows(texts: Iterable[str], characters: int = WINDOW_CHARACTERS) -> Iterator[str]:
    """The texts in order, joined by spaces while they fit; longer ones cut between paragraphs, sentences or words.

    Blank texts give nothing; nothing but white space is lost.
    """
    window = ""
    for piece in chunk(texts, characters):
        if window and len(window) + 1 + len(piece) > characters:
            yield window
            window = piece
        else:
            window = f"{window} {piece}" if window else piece
    if window:
        yield window
