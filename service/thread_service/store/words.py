"""The lexical channel: BM25 over partition texts (k1 1.2, b 0.75, as FTS5 computes it), for those who may read them.

Rarest terms first, as many are taken as can be looked up in a few milliseconds, whatever the store holds. There are
three ways, each exact within what it looks at:

    lists      each term's partitions as a list, those the caller may not read dropped: while the lists are short
    few        the caller's own partitions among those of the terms, intersected inside the index: for a caller who may
               read few, however frequent the terms are
    newest     when even the rarest term is frequent: partitions that hold all of them (else the two rarest, else the
               rarest), the newest of them and no more than can be looked at

FTS5's own ranking is not used: it counts the rows of every term and token anew each time and looks up the length of
every row in a table, 2 µs a row, where a list takes 0.3.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import apsw
import numpy as np
from numpy.typing import NDArray

from thread_service.store import sql, word_counts
from thread_service.store.resident import Resident
from thread_service.text.stop_words import STOP_WORDS
from thread_service.text.tokens import is_spaceless, tokens

TERMS_MAX = 64
COMMON_SHARE = 0.1
"""A term in more than this share of all partitions says little and costs much: it is left out beside a rarer one."""
MATCHES_MAX = 5_000
"""Rarest terms first, terms are taken while their partitions together stay below this. A caller has few partitions
when they are no more."""
PLACES_MAX = 4 * MATCHES_MAX
"""Of a term in a list. One that is repeated more often than that is left to FTS5, which passes over places faster."""
STEPS_MAX = 50_000
"""Along lists inside the index, 0.1 µs each, in one look; frequent terms take a few."""
LEAP_STEPS = 10
"""What finding a row somewhere in a list costs, in steps."""
NARROWING_SHARE = 0.125
"""A filter that lets less than this share of all partitions pass is looked for inside the index. A wider one costs more
there than what it leaves out: at a million partitions, one that passed half of them took two thirds of a lookup."""
READABLE_MIN = 0.1
"""Where less than this share of what was found may be read, the wide filters are looked for inside the index too: what
others filed last must not hide what the caller may read."""
NEWEST_TERMS = 4
NEWEST_MAX = 1_000
FREQUENCIES_MAX = 65_536
SCORES_MAX = 1_000_000
"""Partitions in remembered lists, all terms together: 16 MB."""
K1, B = 1.2, 0.75
RAREST_IDF = 1e-6
"""What FTS5 takes for a term in more than half of all rows."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def terms(query: str) -> list[str]:
    """What is looked for: words without stop words, and pairs of characters where a script has no spaces."""
    found: dict[str, None] = {}
    words = tokens(query)
    for index, word in enumerate(words):
        if not is_spaceless(word):
            if word not in STOP_WORDS:
                found[word] = None
        elif index + 1 < len(words) and is_spaceless(words[index + 1]):
            found[word + words[index + 1]] = None
        elif index == 0 or not is_spaceless(words[index - 1]):
            found[word] = None
    return list(found)[:TERMS_MAX]


class _Term(NamedTuple):
    """`partitions`: how many hold it; exact up to `MATCHES_MAX`, estimated beyond."""

    word: str
    partitions: int


class _Scores(NamedTuple):
    """What terms add to the BM25 of the partitions `keys` int64 [n]: `values` float64 [n]."""

    keys: Ints
    values: Floats


class _Filter(NamedTuple):
    """A partition passes if it carries one of the `tokens`; `partitions`: how many do."""

    tokens: Collection[str]
    partitions: int


class _Asked(NamedTuple):
    """One lookup: for whom, and how much of everything that is."""

    connection: apsw.Connection
    resident: Resident
    any_of: Collection[str]
    media_type: str | None
    partitions: int
    last_partition: int
    readable: int
    version: int


class WordIndex:
    """Searches the index; remembers how frequent terms are and, until something is filed or removed, their lists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frequencies: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._scores: OrderedDict[str, tuple[int, _Scores]] = OrderedDict()
        self._remembered = 0

    def best(
        self,
        connection: apsw.Connection,
        resident: Resident,
        query: str,
        any_of: Collection[str],
        media_type: str | None,
        limit: int,
        version: int = -1,
    ) -> dict[int, float]:
        """The best partitions that carry one of the reader tokens `any_of` (and the media token): key → BM25.

        Positive, higher is better; at most `limit`. `version`: `Resident.words_version`, read before the transaction
        was opened; what was remembered at another one is not used.
        """
        partitions = resident.lengths.count
        readable = min(partitions, resident.partitions_having(any_of))
        if not partitions or not readable:
            return {}
        last = int(sql.value(connection, "SELECT coalesce(max(partition_key), 0) FROM partitions"))
        asked = _Asked(connection, resident, any_of, media_type, partitions, last, readable, version)
        wanted = self._frequent(asked, terms(query))
        if not wanted:
            return {}
        keys, values = _readable(asked, self._looked_up(asked, wanted))
        best = np.lexsort((keys, -values))[:limit]
        return dict(zip(keys[best].tolist(), values[best].tolist(), strict=True))

    def _frequent(self, asked: _Asked, wanted: Iterable[str]) -> list[_Term]:
        """Terms that are there, rarest first, without the common ones beside a rarer one."""
        found = [_Term(word, self._frequency(asked, word)) for word in wanted]
        rare_first = sorted((term for term in found if term.partitions), key=lambda term: term.partitions)
        common = max(COMMON_SHARE * asked.partitions, 100)
        return [term for place, term in enumerate(rare_first) if not place or term.partitions <= common]

    def _frequency(self, asked: _Asked, word: str) -> int:
        """How many partitions hold it; counted again when the store has grown by a tenth since."""
        with self._lock:
            known = self._frequencies.get(word)
            if known is not None and known[1] <= asked.partitions <= known[1] * 1.1 + 10:
                self._frequencies.move_to_end(word)
                return known[0]
        count, last = sql.row(
            asked.connection,
            "SELECT count(*), max(rowid) FROM (SELECT rowid FROM words WHERE words MATCH ? LIMIT ?)",
            (f'body : "{word}"', MATCHES_MAX + 1),
        )
        if not count:  # not remembered: the next document may bring the term
            return 0
        if count > MATCHES_MAX:
            count = max(count, min(asked.partitions, count * asked.last_partition // last))
        with self._lock:
            self._frequencies[word] = (count, asked.partitions)
            if len(self._frequencies) > FREQUENCIES_MAX:
                self._frequencies.popitem(last=False)
        return int(count)

    def _looked_up(self, asked: _Asked, rare_first: Sequence[_Term]) -> _Scores:
        listed = _within(rare_first, [term.partitions for term in rare_first], MATCHES_MAX)
        steps = [min(LEAP_STEPS * asked.readable, term.partitions) for term in rare_first]
        among_few = _within(rare_first, steps, STEPS_MAX) if asked.readable <= MATCHES_MAX else ()
        if len(among_few) > len(listed):
            return _intersected(asked, among_few, "OR", _filters(asked, below=1.0), 0, MATCHES_MAX)
        if listed:
            return _added_up([self._list(asked, term) for term in listed])
        for number in dict.fromkeys((NEWEST_TERMS, 2, 1)):
            found = _newest(asked, rare_first[:number])
            if len(found.keys):
                return found
        return _added_up([])

    def _list(self, asked: _Asked, term: _Term) -> _Scores:
        with self._lock:
            version, known = self._scores.get(term.word, (-1, None))
            if known is not None and version == asked.version:
                self._scores.move_to_end(term.word)
                return known
        found = _listed(asked, term)
        if asked.version >= 0:
            with self._lock:
                self._forget(term.word)
                self._scores[term.word] = (asked.version, found)
                self._remembered += len(found.keys)
                while self._remembered > SCORES_MAX:
                    self._forget(next(iter(self._scores)))
        return found

    def _forget(self, word: str) -> None:
        _, gone = self._scores.pop(word, (-1, None))
        self._remembered -= 0 if gone is None else len(gone.keys)


def _within(rare_first: Sequence[_Term], costs: Sequence[int], limit: int) -> Sequence[_Term]:
    """As many of the first as together cost no more than `limit`."""
    return rare_first[: int(np.searchsorted(np.cumsum(costs), limit, side="right"))]


def _added_up(added: Sequence[_Scores]) -> _Scores:
    """BM25 is a sum over terms."""
    if not added:
        return _Scores(np.empty(0, np.int64), np.empty(0))
    keys, places = np.unique(np.concatenate([each.keys for each in added]), return_inverse=True)
    sums = np.bincount(places, np.concatenate([each.values for each in added]), len(keys))
    return _Scores(keys, sums.astype(np.float64, copy=False))


def _listed(asked: _Asked, term: _Term) -> _Scores:
    """What the term adds to every partition that holds it."""
    places = sql.value(
        asked.connection,
        "SELECT group_concat(doc) FROM (SELECT doc FROM word_places WHERE term = ? AND col = 'body' LIMIT ?)",
        (_stem(asked.connection, term.word), PLACES_MAX),
    )
    if places is None:
        return _added_up([])
    keys = np.fromstring(places, np.int64, sep=",")
    if len(keys) == PLACES_MAX:
        return _scored_by_the_index(asked.connection, term.word)
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(starts, append=len(keys))
    return _Scores(keys[starts], _bm25(asked, keys[starts], counts, len(starts)))


def _scored_by_the_index(connection: apsw.Connection, word: str) -> _Scores:
    found = sql.rows(
        connection, "SELECT rowid, -bm25(words, 1.0, 0.0) FROM words WHERE words MATCH ?", (f'body : "{word}"',)
    )
    return _Scores(np.array([key for key, _ in found], np.int64), np.array([value for _, value in found]))


def _newest(asked: _Asked, together: Sequence[_Term]) -> _Scores:
    """The newest partitions that hold all of the terms and may be read."""
    narrow, every = _filters(asked, below=NARROWING_SHARE), _filters(asked, below=1.0)
    found = _intersected(asked, together, "AND", narrow, _first_to_look_at(asked, together, narrow), NEWEST_MAX)
    readable = _readable(asked, found)
    if len(narrow) < len(every) and len(found.keys) == NEWEST_MAX and len(readable.keys) < READABLE_MIN * NEWEST_MAX:
        first = _first_to_look_at(asked, together, every)
        others = _readable(asked, _intersected(asked, together, "AND", every, first, NEWEST_MAX))
        # Within as many steps it may not have come as far back.
        readable = max(readable, others, key=lambda each: len(each.keys))
    return readable


def _readable(asked: _Asked, found: _Scores) -> _Scores:
    readable = asked.resident.are_readable(found.keys, asked.any_of, asked.media_type)
    return _Scores(found.keys[readable], found.values[readable])


def _intersected(
    asked: _Asked, wanted: Sequence[_Term], join: str, filters: Iterable[_Filter], first: int, limit: int
) -> _Scores:
    """The newest partitions, from `first` on, that hold any or all of the terms and pass the filters."""
    word_counts.ensure(asked.connection)
    inside = [f" AND readers : ({_quoted(sorted(each.tokens), 'OR')})" for each in filters]
    found = sql.rows(
        asked.connection,
        f"SELECT rowid, {word_counts.WORD_COUNTS}(words, {len(wanted)}) FROM words WHERE words MATCH ? AND rowid >= ?"
        " ORDER BY rowid DESC LIMIT ?",
        (f"body : ({_quoted([term.word for term in wanted], join)}){''.join(inside)}", first, limit),
    )
    keys = np.array([key for key, _ in found], np.int64)
    counts = word_counts.counted([each for _, each in found], len(wanted))
    values = [_bm25(asked, keys, counts[:, place], term.partitions) for place, term in enumerate(wanted)]
    return _Scores(keys, np.sum(values, axis=0))


def _filters(asked: _Asked, *, below: float) -> list[_Filter]:
    """What the caller may find, where that is less than such a share of all partitions."""
    filters = [_Filter(asked.any_of, asked.readable)]
    if asked.media_type is not None:
        filters.append(_Filter((asked.media_type,), asked.resident.partitions_having((asked.media_type,))))
    return [each for each in filters if each.partitions < below * asked.partitions]


def _first_to_look_at(asked: _Asked, wanted: Sequence[_Term], filters: Sequence[_Filter]) -> int:
    """The partition from which on intersecting the terms takes `STEPS_MAX`: all of the shortest list, and for each of
    its rows a leap in every other, or all of that."""
    shortest, *others = sorted([*(term.partitions for term in wanted), *(each.partitions for each in filters)])
    steps = shortest + sum(min(LEAP_STEPS * shortest, each) for each in others)
    return int(asked.last_partition * max(0.0, 1 - STEPS_MAX / steps))


def _bm25(asked: _Asked, keys: Ints, counts: Ints, partitions: int) -> Floats:
    """What a term that `partitions` hold adds to those that hold it so often: Robertson and Zaragoza, "The
    Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the idf of FTS5."""
    lengths = asked.resident.lengths
    rare = (lengths.count - partitions + 0.5) / (partitions + 0.5)
    idf = max(RAREST_IDF, float(np.log(rare))) if rare > 0 else RAREST_IDF
    weighed = K1 * (1 - B + B * lengths.get(keys) / max(1.0, lengths.mean))
    scores: Floats = idf * counts * (K1 + 1) / (counts + weighed)
    return scores


def _stem(connection: apsw.Connection, word: str) -> str:
    """The word as the index holds it."""
    stem = connection.fts5_tokenizer("porter", ["ascii"])
    [found] = stem(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None, include_offsets=False, include_colocated=False)
    return str(found)


def _quoted(words: Iterable[str], join: str) -> str:
    # Terms and reader tokens hold letters, marks and digits only: quoted, they cannot be read as operators.
    return f" {join} ".join(f'"{word}"' for word in words)
