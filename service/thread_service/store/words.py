"""The lexical channel: BM25 over partition texts (k1 1.2, b 0.75, as FTS5 computes it), filtered inside the index."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.store import sql
from thread_service.text.stop_words import STOP_WORDS
from thread_service.text.tokens import is_spaceless, tokens

TERMS_MAX = 64
COMMON_SHARE = 0.1
"""A term in more than this share of all partitions says little and costs much: it is left out beside a rarer one."""
MATCHES_MAX = 5_000
"""Rarest terms first, terms are taken while their partitions together stay below this."""
FREQUENCIES_MAX = 65_536
SCORES_MAX = 1_000_000
"""Partitions of remembered terms, all terms together: 16 MB."""
MOSTLY_READABLE = 0.5
"""From this share of readable documents on, rows are ranked first and tested afterwards, until enough have passed."""


def terms(query: str) -> list[str]:
    """What is looked for: words without stop words, and pairs of characters where a script has no spaces."""
    found: dict[str, None] = {}
    words = tokens(query)
    for index, word in enumerate(words):
        if not is_spaceless(word):
            if word not in STOP_WORDS:
                found[word] = None
        elif index + 1 < len(words) and is_spaceless(words[index + 1]):
            found[f"{word} {words[index + 1]}"] = None
        elif index == 0 or not is_spaceless(words[index - 1]):
            found[word] = None
    return list(found)[:TERMS_MAX]


class _Scores(NamedTuple):
    """BM25, or what a term adds to it, of the partitions `keys` int64 [n]: `values` float64 [n]."""

    version: int
    keys: NDArray[np.int64]
    values: NDArray[np.float64]


class WordIndex:
    """Searches the index; remembers how frequent terms are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frequencies: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._scores: OrderedDict[str, _Scores] = OrderedDict()

    def best(
        self,
        connection: apsw.Connection,
        query: str,
        any_of: Iterable[str],
        media_type: str | None,
        limit: int,
        readable_share: float = 0.0,
        version: int = -1,
    ) -> dict[int, float]:
        """The best partitions that carry one of the reader tokens `any_of` (and the media token): key → BM25.

        Positive, higher is better; at most `limit`. `readable_share`: how much of everything carries one of the tokens.
        Ranking inside the index counts every row of every token, so when most rows pass they are ranked here, from
        what each term adds to each row, and tested afterwards. That is remembered for as long as `version`, which was
        read before the transaction was opened, is the newest.
        """
        chosen = self._choose(connection, terms(query))
        readers = set(any_of)
        if not chosen or not readers:
            return {}
        if media_type is None and readable_share >= MOSTLY_READABLE:
            ranked = self._added_up(connection, chosen, version)
            if readable_share < 1.0:
                ranked = _readable(connection, ranked, readers, limit)
            return dict(zip(ranked.keys[:limit].tolist(), ranked.values[:limit].tolist(), strict=True))
        media = "" if media_type is None else f' AND readers : "{media_type}"'
        expression = f"body : ({_any(chosen)}) AND readers : ({_any(sorted(readers))}){media}"
        return dict(_ranked(connection, expression, limit))

    def _added_up(self, connection: apsw.Connection, chosen: list[str], version: int) -> _Scores:
        """BM25 is a sum over terms: every partition by the sum of what each term adds, best first."""
        added = [self._score(connection, term, version) for term in chosen]
        keys, places = np.unique(np.concatenate([score.keys for score in added]), return_inverse=True)
        values = np.concatenate([score.values for score in added])
        sums = np.bincount(places, weights=values, minlength=len(keys)).astype(np.float64, copy=False)
        best = np.lexsort((keys, -sums))
        return _Scores(version, keys[best], sums[best])

    def _score(self, connection: apsw.Connection, term: str, version: int) -> _Scores:
        with self._lock:
            known = self._scores.get(term)
            if known is not None and known.version == version:
                self._scores.move_to_end(term)
                return known
        found = _ranked(connection, f'body : "{term}"', -1)
        score = _Scores(
            version, np.array([key for key, _ in found], np.int64), np.array([value for _, value in found], np.float64)
        )
        with self._lock:
            self._scores[term] = score
            while sum(len(each.keys) for each in self._scores.values()) > SCORES_MAX:
                self._scores.popitem(last=False)
        return score

    def _choose(self, connection: apsw.Connection, wanted: list[str]) -> list[str]:
        partitions = int(sql.value(connection, "SELECT coalesce(max(partition_key), 0) FROM partitions"))
        frequencies = {term: self._frequency(connection, term, partitions) for term in wanted}
        rare_first = sorted((term for term in wanted if frequencies[term]), key=lambda term: frequencies[term])
        chosen: list[str] = []
        matches = 0
        for term in rare_first:
            matches += frequencies[term]
            if chosen and (matches > MATCHES_MAX or frequencies[term] > max(COMMON_SHARE * partitions, 100)):
                break
            chosen.append(term)
        return chosen

    def _frequency(self, connection: apsw.Connection, term: str, partitions: int) -> int:
        """How many partitions hold the term; counted again when the store has grown by a tenth since."""
        with self._lock:
            known = self._frequencies.get(term)
            if known is not None and known[1] <= partitions <= known[1] * 1.1 + 10:
                self._frequencies.move_to_end(term)
                return known[0]
        count = int(sql.value(connection, "SELECT count(*) FROM words WHERE words MATCH ?", (f'body : "{term}"',)))
        if not count:  # not remembered: the next document may bring the term
            return 0
        with self._lock:
            self._frequencies[term] = (count, partitions)
            if len(self._frequencies) > FREQUENCIES_MAX:
                self._frequencies.popitem(last=False)
        return count


def _ranked(connection: apsw.Connection, expression: str, limit: int) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = sql.rows(
        connection,
        "SELECT rowid, -rank FROM words WHERE words MATCH ? AND rank MATCH 'bm25(1.0, 0.0)' ORDER BY rank LIMIT ?",
        (expression, limit),
    )
    return [(key, score) for key, score in found if score > 0]


def _readable(connection: apsw.Connection, ranked: _Scores, readers: set[str], limit: int) -> _Scores:
    """The first `limit` that carry one of the reader tokens, however many before them do not."""
    statement = (
        "SELECT partition_key, readers FROM partitions JOIN contents USING (content_key)"
        " WHERE partition_key IN (SELECT value FROM json_each(?))"
    )
    passing: list[int] = []
    start, count = 0, int(limit / MOSTLY_READABLE)
    while start < len(ranked.keys) and len(passing) < limit:
        part = ranked.keys[start : start + count].tolist()
        carried = dict(sql.rows(connection, statement, (sql.array(part),)))
        # Scores that are remembered may be of partitions that this transaction does not have, any more or yet.
        passing += [start + at for at, key in enumerate(part) if not readers.isdisjoint(carried.get(key, "").split())]
        start, count = start + count, 2 * count
    return _Scores(ranked.version, ranked.keys[passing[:limit]], ranked.values[passing[:limit]])


def _any(words: Iterable[str]) -> str:
    # Terms and reader tokens hold letters, marks, digits and spaces only: quoted, they cannot be read as operators.
    return " OR ".join(f'"{word}"' for word in words)
