"""How a verification looks: a slice of a table at a time, each in a read transaction of its own, with rests between.

So a node goes on serving beside it, and no snapshot is held for long. A slice that cannot be read is a damage of its
own, and the next one is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apsw

from thread_service.store import sql
from thread_service.store.verification.findings import DOCUMENTS_MAX, Findings

T = TypeVar("T")
After = TypeVar("After", bound=tuple[Any, ...])

ROWS_AT_ONCE = 1_000
REPORT_SECONDS = 0.1

UNREADABLE = (apsw.CorruptError, apsw.NotADBError, apsw.IOError, UnicodeDecodeError)
"""What is raised over damage that SQLite meets by itself, or that turns text into what is no text."""

Range = tuple[int, int]
"""Keys after the first, up to and with the second."""


class Progress(Protocol):
    """`fraction`: how much of what the text names is done; None for a line of its own."""

    def __call__(self, text: str, fraction: float | None = None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """What is verified, and how it is reached.

    `read`: a read transaction. `quiet`: while it is held nobody appends to a segment or removes one. `rest`: called
    after each slice with the seconds it took; ends the verification by raising. `in_memory`: what the memory of a
    running node has that the database should have too, as (what, in memory, in the database); None without a node.
    """

    path: Path
    read: Callable[[], AbstractContextManager[apsw.Connection]]
    quiet: Callable[[], AbstractContextManager[Any]]
    rest: Callable[[float], None]
    in_memory: Callable[[], Iterable[tuple[str, int, int]]] | None = None

    @property
    def vectors(self) -> Path:
        return self.path / "vectors"

    @property
    def cache(self) -> Path:
        return self.path / "cache"


@dataclass(slots=True)
class Look:
    """One check under way; `check` is its name."""

    place: Place
    check: str
    findings: Findings
    progress: Progress
    full: bool
    _reported: float = field(default=0.0)

    def damage(self, what: str, document_ids: Iterable[str] = (), **where: Any) -> None:
        self.findings.add(self.check, what, document_ids, **where)

    def examined(self, count: int) -> None:
        self.findings.examined[self.check] += count

    def at(self, fraction: float) -> None:
        """Say how far it is, not too often."""
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self.progress(self.check, min(1.0, fraction))

    def step(self, work: Callable[[apsw.Connection], Any], *, table: str, rests: bool = True) -> Any:
        """Run `work` in a read transaction, then rest. What cannot be read is a damage of `table`, and None."""
        try:
            return self._step(work, rests=rests)
        except _Unreadable as error:
            self.damage(f"cannot be read: {error}", table=table)
            return None

    def slices(
        self, table: str, key: str, work: Callable[[apsw.Connection, Range], int], *, rows: int = ROWS_AT_ONCE
    ) -> None:
        """Call `work` for every range of `rows` different values of the integer column `key`; it answers how many
        things it has examined, and reads all that it needs before it remembers anything. Keys that come meanwhile are
        not looked at. A range that cannot be read is halved until the row is found that is in the way."""
        bounds = self.step(lambda c: sql.row(c, f"SELECT min({key}), max({key}) FROM {table}"), table=table)
        if bounds is None or bounds[0] is None:
            return
        first, last = bounds
        statement = (
            f"SELECT max(key) FROM (SELECT DISTINCT {key} AS key FROM {table} WHERE {key} > ? AND {key} <= ?"
            f" ORDER BY {key} LIMIT ?)"
        )
        after = first - 1
        while after < last:
            upto = self.step(partial(sql.value, statement=statement, parameters=(after, last, rows)), table=table)
            # None: nothing is left, or it cannot be told where the next slice ends.
            upto = last if upto is None else upto
            self._slice(table, work, (after, upto))
            after = upto
            self.at((after - first + 1) / (last - first + 1))

    def pages(self, table: str, work: Callable[[apsw.Connection, After], After | None], start: After) -> None:
        """Call `work` with what it answered last, until it answers None: for a key that is not an integer."""
        after: After | None = start
        while after is not None:
            after = self.step(partial(_page, work=work, after=after), table=table)

    def _slice(self, table: str, work: Callable[[apsw.Connection, Range], int], within: Range) -> None:
        mark = self.findings.mark()
        try:
            self.examined(self._step(lambda connection: work(connection, within)))
        except _Unreadable as error:
            self.findings.go_back(mark)
            after, upto = within
            if upto - after == 1:
                self.damage(f"cannot be read: {error}", table=table, key=upto)
            elif self.findings.is_full(self.check):
                self.damage(f"cannot be read: {error}", table=table, key=f"{after + 1} to {upto}")
            else:
                middle = (after + upto) // 2
                self._slice(table, work, (after, middle))
                self._slice(table, work, (middle, upto))

    def _step(self, work: Callable[[apsw.Connection], T], *, rests: bool = True) -> T:
        started = time.monotonic()
        try:
            with self.place.read() as connection:
                try:
                    return work(connection)
                except UNREADABLE as error:
                    raise _Unreadable(str(error)) from error
        finally:
            if rests:
                self.place.rest(time.monotonic() - started)


class _Unreadable(Exception):
    pass


def _page(connection: apsw.Connection, work: Callable[[apsw.Connection, After], After | None], after: After) -> Any:
    return work(connection, after)


def documents_of(connection: apsw.Connection, content_key: int) -> list[str]:
    """Ids of documents that point to a content, the oldest first."""
    statement = "SELECT document_id FROM documents WHERE content_key = ? ORDER BY document_key LIMIT ?"
    return _ids(connection, statement, content_key)


def documents_of_subject(connection: apsw.Connection, purpose: str, subject_key: int) -> list[str]:
    """Ids of documents whose text, relationship or predicate a vector belongs to."""
    purpose = purpose.removeprefix("next_")
    if purpose in ("model", "caller"):
        statement = (
            "SELECT document_id FROM documents WHERE content_key ="
            " (SELECT content_key FROM partitions WHERE partition_key = ?) ORDER BY document_key LIMIT ?"
        )
    else:
        statement = (
            "SELECT DISTINCT document_id FROM relationship_assertions JOIN documents USING (document_key)"
            " JOIN relationships USING (relationship_key)"
            f" WHERE {purpose}_key = ? ORDER BY document_id LIMIT ?"
        )
    return _ids(connection, statement, subject_key)


def documents_that_assert(connection: apsw.Connection, entity_key: int) -> list[str]:
    """Ids of documents that assert an entity."""
    statement = (
        "SELECT document_id FROM assertions JOIN documents USING (document_key) WHERE entity_key = ?"
        " ORDER BY document_id LIMIT ?"
    )
    return _ids(connection, statement, entity_key)


def _ids(connection: apsw.Connection, statement: str, key: int) -> list[str]:
    """None where damage is in the way: the ids only help to tell what was hit."""
    try:
        found: list[str] = sql.column(connection, statement, (key, DOCUMENTS_MAX))
    except UNREADABLE:
        return []
    return found
