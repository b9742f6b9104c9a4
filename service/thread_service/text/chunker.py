"""Splitting a text into chunks that fit an embedding model, at the largest boundary that fits.

In this order: a text within the limit stays whole and unchanged; paragraphs (at blank lines) are merged while they fit;
a paragraph over the limit is split at sentence ends (Unicode UAX #29), neighbouring sentences staying together while
they fit; a sentence over the limit is split by length, at a line end or white space in the second half of what fits,
else between two grapheme clusters, and between two code points only inside a cluster that is over the limit itself.

Chunks keep the order of the text and do not overlap. Nothing but white space between chunks is lost. Time and memory
are linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from apsw.unicode import grapheme_next_break, sentence_next_break

DEFAULT_MAX_CHARS = 1200

_PARAGRAPH_JOINER = "\n\n"
# UAX #29 ends a sentence at every line end; inside a paragraph a line end only wraps.
_UNWRAPPED = dict.fromkeys(map(ord, "\n\r\x85\u2028\u2029"), " ")


def chunk(texts: Iterable[str], max_chars: int = DEFAULT_MAX_CHARS) -> list[str]:
    """The chunks of `texts` in order, each at most `max_chars` code points long and none of them blank.

    Texts are never merged with each other. Blank texts give nothing. Raises `ValueError` when `max_chars` < 1.
    """
    if max_chars < 1:
        raise ValueError(f"max_chars must be at least 1, not {max_chars}")
    return [piece for text in texts for piece in _chunk_text(text, max_chars)]


def _chunk_text(text: str, max_chars: int) -> Iterator[str]:
    if len(text) <= max_chars:
        if text and not text.isspace():
            yield text
        return
    merged: list[str] = []
    length = 0
    for paragraph in _paragraphs(text):
        joined = length + len(_PARAGRAPH_JOINER) + len(paragraph)
        if merged and joined <= max_chars:
            merged.append(paragraph)
            length = joined
            continue
        if merged:
            yield _PARAGRAPH_JOINER.join(merged)
        if len(paragraph) <= max_chars:
            merged, length = [paragraph], len(paragraph)
        else:
            merged, length = [], 0
            yield from _split_paragraph(paragraph, max_chars)
    if merged:
        yield _PARAGRAPH_JOINER.join(merged)


def _paragraphs(text: str) -> Iterator[str]:
    """The runs of lines that are not blank; the indentation of a first line is kept, white space at the end is not."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        if not line.isspace():
            lines.append(line)
        elif lines:
            yield "".join(lines).rstrip()
            lines = []
    if lines:
        yield "".join(lines).rstrip()


def _split_paragraph(paragraph: str, max_chars: int) -> Iterator[str]:
    """Merges neighbouring spans of the paragraph, white space at their ends not counted, while they fit."""
    start = end = 0
    for span_start, span_end in _spans(paragraph, max_chars):
        span = paragraph[span_start:span_end]
        content_end = span_start + len(span.rstrip())
        content_start = span_end - len(span.lstrip())
        if content_start >= content_end:
            continue
        if end == 0:
            start = content_start
        elif content_end - start > max_chars:
            yield paragraph[start:end]
            start = content_start
        end = content_end
    if end:
        yield paragraph[start:end]


def _spans(paragraph: str, max_chars: int) -> Iterator[tuple[int, int]]:
    """Cuts the whole paragraph into spans of at most `max_chars`: its sentences, the long ones cut by length."""
    unwrapped = paragraph.translate(_UNWRAPPED)
    start = 0
    while start < len(paragraph):
        end = sentence_next_break(unwrapped, start)
        while end - start > max_chars:
            cut = start + _cut(paragraph[start : start + max_chars + 1])
            yield start, cut
            start = cut
        yield start, end
        start = end


def _cut(window: str) -> int:
    """Where to cut text that is too long: 1 to max_chars, given the max_chars + 1 code points it starts with."""
    max_chars = len(window) - 1
    head = window[:max_chars]
    after_line = head.rfind("\n") + 1
    after_space = max_chars if window[-1].isspace() else max_chars - len(_last_word(head))
    for cut in (after_line, after_space):
        if 2 * cut > max_chars and grapheme_next_break(window, cut - 1) == cut:
            return cut
    cut = following = 0
    while following <= max_chars:
        cut, following = following, grapheme_next_break(window, following)
    return cut or max_chars


def _last_word(text: str) -> str:
    """What follows the last white space of `text`: the whole text when it has none, nothing when it ends in it."""
    return "" if text[-1].isspace() else text.rsplit(None, 1)[-1]
