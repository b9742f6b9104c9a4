"""The commonest content words of a document: its entities when nobody named any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import regex

from thread_service.text.stop_words import KEYWORD_STOP_WORDS

KEYWORDS_MAX = 10
"""Keywords of one document."""

_MIN_CHARS = 4
# Longer runs are encoded data, or a whole sentence of a script without spaces: nothing anybody would name.
_MAX_CHARS = 64
_ALPHANUMERIC = regex.compile(r"[\p{L}\p{M}\p{N}]++")


def keywords(texts: Iterable[str], limit: int = KEYWORDS_MAX) -> list[str]:
    """At most `limit` lower-case keywords of `texts`, the most frequent first, equal counts in code point order.

    A keyword is a run of letters, marks and numbers, 4 to 64 code points long, that is no English function word.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_ALPHANUMERIC.findall(text.lower()))
    kept = [word for word in counts if _MIN_CHARS <= len(word) <= _MAX_CHARS and word not in KEYWORD_STOP_WORDS]
    kept.sort(key=lambda word: (-counts[word], word))
    return kept[: max(limit, 0)]
