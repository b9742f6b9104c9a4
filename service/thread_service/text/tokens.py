"""Words of a text as one form for every comparison: names, mentions and word search all see the tokens made here.

A word is a run of letters, marks and numbers that starts with a letter or a number. Its token is its NFKC case-folded
form, so "Straße", "STRASSE" and "strasse" in full-width letters are one token. Invisible code points inside a word
(joiners, soft hyphens, variation selectors) do not count, nor do marks after 30 in a row. In the scripts that write no
spaces every character with its marks is a token.

A normal form may itself hold several words ("½" is 1⁄2): such a word gives several tokens. A token holds letters, marks
and numbers only: never a space, a quote or a NUL.

Sources: Unicode UAX #15 (NFKC), UAX #31 (NFKC_Casefold), UAX #44 (general categories).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from unicodedata import normalize

import regex

# The voiced sound marks and the long vowel sign of kana are letters by category and common to two scripts.
_SPACELESS = (
    r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u30FC\uFF70\uFF9E\uFF9F]&&[\p{L}\p{N}]]"
)
_SPACED = rf"[[\p{{L}}\p{{N}}]--{_SPACELESS}]"
# The zero-width space is invisible too, but it separates words.
_INVISIBLE = r"[\p{Default_Ignorable_Code_Point}--\u200B]"
_EXTENDING = rf"[\p{{M}}{_INVISIBLE}]"

_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
# The first branch finds nothing that the others would not: it is three times as fast on the commonest words.
_WORD = regex.compile(
    r"[A-Za-z0-9]++(?=[\x00-\x7F]|\Z)"
    rf"|{_SPACED}[{_SPACED}{_EXTENDING}]*+"
    rf"|{_SPACELESS}[{_SPACELESS}{_EXTENDING}]*+",
    regex.VERSION1,
)
_TOKEN = regex.compile(rf"{_SPACED}[{_SPACED}\p{{M}}]*+|{_SPACELESS}\p{{M}}*+", regex.VERSION1)
_HIDDEN = regex.compile(_INVISIBLE, regex.VERSION1)
# Normalising sorts the marks in a row in quadratic time; the Stream-Safe Text Format (UAX #15) allows 30 of them.
_TOO_MANY_MARKS = regex.compile(r"(\p{M}{30})\p{M}++")
_ONE_SPACELESS = regex.compile(_SPACELESS, regex.VERSION1)


class Spelled(NamedTuple):
    """A token beside the spelling it has in the text: `written` still shows capitals.

    Where one written word gives several tokens that do not line up with its characters, each carries the whole word.
    """

    token: str
    written: str


def tokens(text: str) -> list[str]:
    """The tokens of `text` in order. Any text is taken; one without words gives []."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    found: list[str] = []
    known: dict[str, list[str]] = {}
    for word in _WORD.findall(text):
        if word.isascii():
            found.append(word.lower())
        else:
            if word not in known:
                known[word] = _tokens_of(word)
            found += known[word]
    return found


def indexed_words(text: str) -> list[str]:
    """What the index of words holds of a text: its tokens, and behind them every pair of characters that follow each
    other in a script that writes no spaces, joined: what such scripts are searched by."""
    found = tokens(text)
    return found if text.isascii() else [*found, *pairs(found)]


def pairs(words: Sequence[str]) -> list[str]:
    """Of tokens in order, each two that follow each other and are `is_spaceless`, joined."""
    return [
        first + second
        for first, second in pairwise(words)
        if not first.isascii() and not second.isascii() and is_spaceless(first) and is_spaceless(second)
    ]


def spelled_tokens(text: str) -> list[Spelled]:
    """The tokens of `text` with their spelling; the first halves are exactly `tokens(text)`."""
    return [*map(Spelled, *tokens_and_spellings(text))]


def tokens_and_spellings(text: str) -> tuple[list[str], list[str]]:
    """`tokens(text)` and what is `written` for each: for long texts, of which few spellings are looked at."""
    if text.isascii():
        return tokens(text), _ASCII_WORD.findall(text)
    spelled = [spelled for word in _WORD.findall(text) for spelled in _spell(word)]
    return [word.token for word in spelled], [word.written for word in spelled]


def is_spaceless(token: str) -> bool:
    """Whether a token is a character of a script that writes no spaces between words (Han, kana, Thai and others)."""
    return _ONE_SPACELESS.match(token) is not None


def _tokens_of(word: str) -> list[str]:
    visible = _HIDDEN.sub("", normalize("NFKC", _with_few_marks(word)))
    found: list[str] = _TOKEN.findall(normalize("NFKC", _with_few_marks(visible.casefold())))
    return found


def _with_few_marks(word: str) -> str:
    kept: str = _TOO_MANY_MARKS.sub(r"\1", word)
    return kept


def _spell(word: str) -> Iterator[Spelled]:
    if word.isascii():
        yield Spelled(word.lower(), word)
        return
    found = _tokens_of(word)
    pieces = [word] if len(found) == 1 else _TOKEN.findall(word)
    if len(pieces) != len(found):
        pieces = [word] * len(found)
    yield from map(Spelled, found, pieces)
