"""Orphans in the tables: rows that point to what is not there.

What the schema declares as a foreign key is read from the schema; the few references that SQL cannot declare, because
the table they lead to depends on another column, are listed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from thread_service.store import sql
from thread_service.store.verification.look import Look, Range, documents_of_subject


@dataclass(frozen=True, slots=True)
class _Reference:
    """`columns` of `table` name a row of `parent` by its `named`. `keys`: the primary key of `table`; `slices`: the
    column of integers by which it is taken in slices."""

    table: str
    keys: tuple[str, ...]
    slices: str
    columns: tuple[str, ...]
    parent: str
    named: tuple[str, ...]

    def orphans(self) -> str:
        """SQL with two parameters: the range of a slice."""
        joined = " AND ".join(f"p.{named} = t.{column}" for column, named in zip(self.columns, self.named, strict=True))
        given = " AND ".join(f"t.{column} IS NOT NULL" for column in self.columns)
        shown = ", ".join(f"t.{column}" for column in (*self.keys, *self.columns))
        return (
            f"SELECT {shown} FROM {self.table} t WHERE t.{self.slices} > ? AND t.{self.slices} <= ? AND {given}"
            f" AND NOT EXISTS (SELECT 1 FROM {self.parent} p WHERE {joined})"
        )


def check_declared(look: Look) -> None:
    for reference in look.step(_declared, table="sqlite_schema") or ():
        statement = reference.orphans()

        def work(
            connection: apsw.Connection, within: Range, reference: _Reference = reference, statement: str = statement
        ) -> int:
            for row in sql.rows(connection, statement, within):
                keys, values = row[: len(reference.keys)], row[len(reference.keys) :]
                wanted = ", ".join(f"{name} {value}" for name, value in zip(reference.columns, values, strict=True))
                look.damage(f"points to {wanted}, which is not in {reference.parent}", table=reference.table, key=keys)
            return _count(connection, reference.table, reference.slices, within)

        look.slices(reference.table, reference.slices, work)


def _declared(connection: apsw.Connection) -> list[_Reference]:
    found: list[_Reference] = []
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    for table in sql.column(connection, tables):
        keys, slices = _primary_key(connection, table), _first_integer(connection, table)
        by_number: dict[int, list[tuple[str, str, str | None]]] = {}
        for number, _, parent, column, named in sql.rows(
            connection,
            'SELECT id, seq, "table", "from", "to" FROM pragma_foreign_key_list(?) ORDER BY id, seq',
            (table,),
        ):
            by_number.setdefault(number, []).append((parent, column, named))
        for parts in by_number.values():
            parent = parts[0][0]
            named = [name for _, _, name in parts if name is not None] or _primary_key(connection, parent)
            columns = tuple(column for _, column, _ in parts)
            found.append(_Reference(table, tuple(keys), slices, columns, parent, tuple(named)))
    return found


def _primary_key(connection: apsw.Connection, table: str) -> list[str]:
    return sql.column(connection, "SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (table,))


def _first_integer(connection: apsw.Connection, table: str) -> str:
    """The first column of the primary key that holds integers."""
    statement = "SELECT name FROM pragma_table_info(?) WHERE pk AND type = 'INTEGER' ORDER BY pk LIMIT 1"
    return str(sql.value(connection, statement, (table,)))


def _count(connection: apsw.Connection, table: str, key: str, within: Range) -> int:
    return int(sql.value(connection, f"SELECT count(*) FROM {table} WHERE {key} > ? AND {key} <= ?", within))


_SUBJECTS: dict[str, Sequence[str]] = {
    "partition": ("model", "caller", "next_model"),
    "relationship": ("relationship", "next_relationship"),
    "predicate": ("predicate", "next_predicate"),
}
"""What the subject of a vector is a key of, by the purposes of the vector."""


def check_subjects(look: Look) -> None:
    """Vectors, and wishes for one, whose subject is gone; subjects with two vectors."""

    def vectors(connection: apsw.Connection, within: Range) -> int:
        for kind, purposes in _SUBJECTS.items():
            among = ", ".join(f"'{purpose}'" for purpose in purposes)
            for key, purpose, subject in sql.rows(connection, _orphans("vectors", "vector_key", kind, among), within):
                what = f"is the vector of {kind} {subject} (purpose {purpose}), which is not there"
                look.damage(what, table="vectors", key=key)
        for key, purpose, subject in sql.rows(connection, _TWICE, within):
            what = f"is a second vector of the {purpose} subject {subject}"
            look.damage(what, documents_of_subject(connection, purpose, subject), table="vectors", key=key)
        return _count(connection, "vectors", "vector_key", within)

    def wishes(connection: apsw.Connection, within: Range) -> int:
        for kind in ("relationship", "predicate"):
            for key, _, subject in sql.rows(connection, _orphans("unembedded", "sequence", kind, f"'{kind}'"), within):
                look.damage(
                    f"waits for the vector of {kind} {subject}, which is not there", table="unembedded", key=key
                )
        return _count(connection, "unembedded", "sequence", within)

    look.slices("vectors", "vector_key", vectors)
    look.slices("unembedded", "sequence", wishes)


def _orphans(table: str, key: str, kind: str, purposes: str) -> str:
    return (
        f"SELECT {key}, purpose, subject_key FROM {table} t WHERE {key} > ? AND {key} <= ? AND purpose IN ({purposes})"
        f" AND NOT EXISTS (SELECT 1 FROM {kind}s WHERE {kind}_key = t.subject_key)"
    )


_TWICE = (
    "SELECT vector_key, purpose, subject_key FROM vectors v WHERE vector_key > ? AND vector_key <= ?"
    " AND EXISTS (SELECT 1 FROM vectors o WHERE o.subject_key = v.subject_key AND o.purpose = v.purpose"
    "  AND o.vector_key < v.vector_key)"
)
