"""The index of words: it holds the partitions of what is searchable and no others, and in full, every one of their
words and readers.

The index stores no text, so that it can be compared only by asking: a small index of one slice of partitions, made for
the purpose, and the stored one must answer alike to every word of the slice.
"""

from __future__ import annotations

import apsw

from thread_service.store import sql
from thread_service.store.verification.look import Look, Range, documents_of
from thread_service.text.tokens import indexed_words

_PARTITIONS_AT_ONCE = 2_000
_INDEXED = "SELECT partition_key, content_key FROM partitions JOIN contents USING (content_key) WHERE state = 'ready'"


def check(look: Look) -> None:
    def partitions(connection: apsw.Connection, within: Range) -> int:
        missing = sql.rows(
            connection,
            f"{_INDEXED} AND partition_key > ? AND partition_key <= ?"
            " AND NOT EXISTS (SELECT 1 FROM words_docsize WHERE id = partition_key)",
            within,
        )
        for key, content_key in missing:
            hit = documents_of(connection, content_key)
            look.damage("is not in the index of words", hit, table="partitions", key=key)
        if look.full:
            _compare(look, connection, within)
        count = "SELECT count(*) FROM partitions WHERE partition_key > ? AND partition_key <= ?"
        return int(sql.value(connection, count, within))

    def indexed(connection: apsw.Connection, within: Range) -> int:
        strange = sql.column(
            connection,
            "SELECT id FROM words_docsize WHERE id > ? AND id <= ? AND NOT EXISTS"
            f" (SELECT 1 FROM ({_INDEXED}) WHERE partition_key = id)",
            within,
        )
        for key in strange:
            look.damage("is the words of a partition that is not there, or not searchable", table="words", key=key)
        return 0

    look.slices("partitions", "partition_key", partitions, rows=_PARTITIONS_AT_ONCE)
    look.slices("words_docsize", "id", indexed)


def _compare(look: Look, connection: apsw.Connection, within: Range) -> None:
    """Each word of a slice, and each token of readers, asked of the stored index and of a fresh one."""
    found = sql.rows(
        connection,
        "SELECT partition_key, content_key, text, readers FROM partitions JOIN contents USING (content_key)"
        " WHERE state = 'ready' AND partition_key > ? AND partition_key <= ?",
        within,
    )
    content_of = {key: content_key for key, content_key, _, _ in found}
    asked: dict[str, set[str]] = {"body": set(), "readers": set()}
    with apsw.Connection(":memory:") as fresh:
        fresh.execute(sql.value(connection, "SELECT sql FROM sqlite_schema WHERE name = 'words'"))
        for key, _, text, readers in found:
            words = indexed_words(text)
            asked["body"].update(words)
            asked["readers"].update(readers.split())
            fresh.execute("INSERT INTO words (rowid, body, readers) VALUES (?, ?, ?)", (key, " ".join(words), readers))
        wrong: dict[int, set[str]] = {}
        for column, all_words in asked.items():
            for word in sorted(all_words):
                parameters = (f'{column} : "{word}"', *within)
                difference = {*_holding(fresh, parameters)} ^ {*_holding(connection, parameters)}
                for key in difference & content_of.keys():
                    wrong.setdefault(key, set()).add(word)
    for key, missed in sorted(wrong.items()):
        hit = documents_of(connection, content_of[key])
        some = ", ".join(f"{word!a}" for word in sorted(missed)[:3])
        look.damage(f"is indexed with other words or readers than it has: {some}", hit, table="partitions", key=key)


def _holding(connection: apsw.Connection, parameters: tuple[str, int, int]) -> list[int]:
    found: list[int] = sql.column(
        connection, "SELECT rowid FROM words WHERE words MATCH ? AND rowid > ? AND rowid <= ?", parameters
    )
    return found
