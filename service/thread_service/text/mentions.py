"""Finding names in text without a model.

A name is compared as its *key*: its tokens joined by single spaces (see `tokens`). Keys are indexed by their *head*,
the first two tokens (or the only one), so that a store can look up which of very many names could occur in a text by
the one- and two-token heads that do occur in it, and only those names are then matched.

Two rules. In a document the leftmost name wins and, where several start at the same token, the longest. In a query the
longest name wins wherever it starts, because a query is short and its longest name says most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

from thread_service.text.stop_words import STOP_WORDS
from thread_service.text.tokens import spelled_tokens, tokens, tokens_and_spellings

MAX_LINKABLE_WORDS = 64

_SEVERAL_WORDS = 1.0
_PROPER_WORD = 0.7
_PLAIN_WORD = 0.2

MAX_QUERY_NAME_WORDS = 16
"""The longest name that is looked for in a query, in tokens."""


class Mention(NamedTuple):
    """The name (a key) that the tokens [start, end) of a text are."""

    start: int
    end: int
    name: str


class QueryName(NamedTuple):
    """A name (a key) that a query holds, and how surely the query means it: 0.2 to 1."""

    name: str
    weight: float


def is_linkable(spelling: str) -> bool:
    """Whether a name is distinctive enough to be linked wherever a text contains it.

    It is when it has two or more words, or one word with a capital letter or a digit; never when it has no word or only
    stop words, or more than `MAX_LINKABLE_WORDS`: no text mentions a whole paragraph by name, and the length of names
    bounds the cost of finding them. In scripts without spaces every character counts as a word.
    """
    words = spelled_tokens(spelling)
    if len(words) > MAX_LINKABLE_WORDS or all(word.token in STOP_WORDS for word in words):
        return False
    return len(words) > 1 or any(map(_is_capital, words[0].written)) or _has_digit(words[0].token)


def name_key(spelling: str) -> str:
    """The form in which a name is compared: its tokens joined by single spaces; "" for a name without words."""
    return " ".join(tokens(spelling))


def head(key: str) -> str:
    """What a name key is looked up by: its first two tokens joined by a space, or its only token."""
    return " ".join(key.split(" ", 2)[:2])


def heads(tokens: Sequence[str]) -> set[str]:
    """Every head that a name occurring in `tokens` can have: all single tokens and all pairs of neighbours."""
    return {*tokens, *(f"{first} {second}" for first, second in pairwise(tokens))}


def common_start(first: Sequence[str], second: Sequence[str]) -> int:
    """How many tokens both start with."""
    return next(
        (at for at, (one, other) in enumerate(zip(first, second, strict=False)) if one != other),
        min(len(first), len(second)),
    )


def find_mentions(tokens: Sequence[str], names: Collection[str]) -> list[Mention]:
    """The names (keys) that occur in `tokens`: leftmost first, of those the longest, never overlapping."""
    trie = _NameTrie(names)
    found: list[Mention] = []
    end = 0
    for start in trie.starts(tokens):
        if start >= end:
            for longest in trie.starting_at(tokens, start):
                end = longest.end
            if end > start:
                found.append(longest)
    return found


def query_names(query: str, names: Collection[str]) -> list[QueryName]:
    """The names (keys) that `query` holds, in the order in which they first occur, each once with its greatest weight.

    The longest name takes its tokens first, so a shorter name counts only where it stands alone. A name of two or more
    words weighs 1; one word weighs 0.7 where the query writes it with a capital at the start or it holds a digit, else
    0.2. Names of nothing but stop words are never found.
    """
    query_tokens, written = tokens_and_spellings(query)
    trie = _NameTrie(name for name in names if not STOP_WORDS.issuperset(name.split(" ")))
    candidates = [mention for start in trie.starts(query_tokens) for mention in trie.starting_at(query_tokens, start)]
    candidates.sort(key=lambda mention: (mention.start - mention.end, mention.start))
    taken = bytearray(len(query_tokens))
    kept: list[Mention] = []
    for mention in candidates:
        if not any(taken[mention.start : mention.end]):
            taken[mention.start : mention.end] = b"\1" * (mention.end - mention.start)
            kept.append(mention)
    weights: dict[str, float] = {}
    for mention in sorted(kept):
        is_one = mention.end - mention.start == 1
        weight = _weight_of_word(mention.name, written[mention.start]) if is_one else _SEVERAL_WORDS
        weights[mention.name] = max(weight, weights.get(mention.name, 0.0))
    return [QueryName(name, weight) for name, weight in weights.items()]


class _Node:
    """A node of a trie over tokens: `name` is the key that ends here, if one does."""

    __slots__ = ("children", "name")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.name: str | None = None


class _NameTrie:
    """Name keys by head, and behind each head as a trie over their further tokens: matching at one token costs no more
    than the longest name has tokens, and next to nothing where no name starts."""

    def __init__(self, names: Iterable[str]) -> None:
        self._heads: dict[str, _Node] = {}
        for name in names:
            start = head(name)
            node = self._heads.get(start)
            if node is None:
                node = self._heads[start] = _Node()
            for token in name[len(start) :].split():
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = _Node()
                node = child
            node.name = name

    def starts(self, tokens: Sequence[str]) -> Iterator[int]:
        """Where a name may start, ascending."""
        known = self._heads.keys()
        for start, (first, second) in enumerate(zip_longest(tokens, tokens[1:], fillvalue="")):
            if first in known or f"{first} {second}" in known:
                yield start

    def starting_at(self, tokens: Sequence[str], start: int) -> Iterator[Mention]:
        """The names that `tokens` holds at `start`, the shortest first."""
        node = self._heads.get(tokens[start])
        if node is not None and node.name is not None:
            yield Mention(start, start + 1, node.name)
        position = start + 2
        node = self._heads.get(" ".join(tokens[start:position])) if position <= len(tokens) else None
        while node is not None:
            if node.name is not None:
                yield Mention(start, position, node.name)
            if position >= len(tokens):
                return
            node = node.children.get(tokens[position])
            position += 1


def _weight_of_word(token: str, written: str) -> float:
    return _PROPER_WORD if _is_capital(written[0]) or _has_digit(token) else _PLAIN_WORD


def _is_capital(character: str) -> bool:
    return character.isupper() or character.istitle()


def _has_digit(token: str) -> bool:
    return any(character.isdigit() for character in token)
