"""Texts as token windows, and windows as batches.

A text longer than the model's limit becomes several windows, none overlapping, none dropped; the text's vector is the
average of theirs, each weighted by its tokens (`thread_service.models.local`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer


class Window(NamedTuple):
    """`ids` with the special tokens, of the text at index `text`; `weight` counts the text's own tokens."""

    text: int
    ids: list[int]
    weight: int


def cut_into_windows(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Window]:
    """Every window of every text, in order. The tokenizer's truncation must be set to the model's limit.

    A text without any token still has one window.
    """
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    return [
        Window(index, part.ids, max(1, len(part) - special))
        for index, encoding in enumerate(tokenizer.encode_batch_fast(list(texts)))
        for part in (encoding, *encoding.overflowing)
    ]


def batch_by_length(lengths: Sequence[int], *, max_tokens: int, max_rows: int) -> Iterator[list[int]]:
    """Indices grouped so that no batch has more than `max_rows` rows or `max_tokens` tokens once padded to its
    longest row; a row over `max_tokens` is a batch of its own. Longest first: similar lengths pad little.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) == max_rows or lengths[batch[0]] * (len(batch) + 1) > max_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def cut_text(text: str, max_bytes: int) -> list[str]:
    """`text` in consecutive pieces of at most `max_bytes` UTF-8 bytes, cut at white space where there is some.

    Bounds the work one text can ask for at a time. `"".join(pieces)` is the text.
    """
    if len(text) * 4 <= max_bytes or len(text.encode("utf-8", "surrogatepass")) <= max_bytes:
        return [text]
    pieces = []
    start = 0
    while start < len(text):
        # Four bytes are the most a character takes, so a slice may come out shorter than it could, never longer.
        end = min(len(text), start + max_bytes // 4)
        if end < len(text):
            space = text.rfind(" ", start + (end - start) // 2, end)
            end = space + 1 if space >= 0 else end
        pieces.append(text[start:end])
        start = end
    return pieces
