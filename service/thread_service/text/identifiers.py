"""Identifiers of code: which an entity's name holds, which a query asks for, and how well two agree.

    sym:fn Repl.handle(_:)  →  Repl.handle          where is `handle` called?  →  handle

Identifiers are compared by their components, the parts between dots, from the last one backwards and with their case.
A store finds them by their *path*: the case-folded components, the last one first. What agrees with a term has the
term's path, or a longer one that continues it after a dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

WHOLE = 1.0
ENDING = 0.8
LAST_COMPONENT = 0.6

_NEVER_KINDS = frozenset(("file", "module"))
_PREFIXES = ("sym:", "type:", "memory:")
_SPAN = re.compile(r"`([^`]*)`")
_SEPARATORS = re.compile(r"""[\s()\[\]{}<>,;"'`]+""")
_AROUND = "`\"'.,;:?!" + "".join(chr(code) for code in range(0x3001) if chr(code).isspace())


def of_entity(name: str, kind: str) -> str:
    """The identifier that an entity of this name is; "" when it is none."""
    if kind in _NEVER_KINDS:
        return ""
    bare = name.strip()
    for prefix in _PREFIXES:
        if bare.startswith(prefix):
            words = bare[len(prefix) :].split()
            return _cut(words[-1]) if words else ""
    return "" if len(bare.split()) > 1 else _cut(bare)


def in_query(text: str, named: Iterable[str] = ()) -> list[str]:
    """The identifiers a query asks for, each once: those `named` beside it, those in back-ticks, and the words of
    `text` that look like identifiers. A name that is given as an entity is called stands for its identifier."""
    found: dict[str, None] = {}
    for candidate in (*map(_named, named), *_SPAN.findall(text), *_looking_like_identifiers(text)):
        term = _trimmed(_trimmed(candidate).partition("(")[0])
        if any(map(str.isalpha, term)) and len(term.split()) == 1:
            found[term] = None
    return list(found)


def agreement(term: str, identifier: str) -> float:
    """1 for the whole identifier, 0.8 for its last components (two or more), 0.6 for its last alone, else 0."""
    if term == identifier:
        return WHOLE
    asked, components = term.split("."), identifier.split(".")
    if len(asked) >= len(components) or components[-len(asked) :] != asked:
        return 0.0
    return LAST_COMPONENT if len(asked) == 1 else ENDING


def path(identifier: str) -> str:
    """What an identifier is looked up by."""
    return ".".join(reversed(identifier.casefold().split(".")))


def _cut(word: str) -> str:
    return word.partition("(")[0].partition("+ext@")[0]


def _named(name: str) -> str:
    bare = name.strip()
    return of_entity(bare, "") if bare.startswith(_PREFIXES) else bare


def _trimmed(candidate: str) -> str:
    return candidate.strip(_AROUND)


def _looking_like_identifiers(text: str) -> Iterator[str]:
    for separated in _SEPARATORS.split(text):
        word = separated.strip(".:?!")
        if _looks_like_identifier(word):
            yield word


def _looks_like_identifier(word: str) -> bool:
    if not word or not (word[0].isalpha() or word[0] == "_"):
        return False
    if not all(character.isalnum() or character in "_." for character in word):
        return False
    parts = [part for part in word.split(".") if part]
    return len(parts) >= 2 or "_" in word or any(map(str.isupper, word[1:]))
