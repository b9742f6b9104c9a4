"""Reader tokens: who may find a row, written as a few short words.

Every access filter of the node is a union of tokens, optionally intersected with a media type. The same words filter
the vector tables (a row set per token), the full-text index (a column of tokens) and the document sets, so that the
three cannot disagree.

| token | a row carries it when |
|---|---|
| `o7` | a document of owner 7 points to it |
| `a` | an available document points to it |
| `g3` | a document in group 3 points to it (only the group's owner may use this one) |
| `p3` | an available document in group 3 points to it |
| `mtext` | its media type is text |

A group's documents are its owner's, so `g3` needs no further intersection for that owner, and `p3` none for others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

AVAILABLE = "a"


def own(owner_key: int) -> str:
    return f"o{owner_key}"


def in_group(group_key: int) -> str:
    return f"g{group_key}"


def public_in_group(group_key: int) -> str:
    return f"p{group_key}"


def media(media_type: str) -> str:
    return f"m{media_type}"


def of_document(owner_key: int, access: str, group_keys: Collection[int]) -> set[str]:
    """The tokens one document gives to what it points to."""
    tokens = {own(owner_key), *map(in_group, group_keys)}
    if access == "available":
        tokens |= {AVAILABLE, *map(public_in_group, group_keys)}
    return tokens


def join(tokens: Iterable[str]) -> str:
    """The stored form: sorted, one space between."""
    return " ".join(sorted(tokens))
