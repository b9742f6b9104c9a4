"""Reading rows: the few shapes in which statements are asked. Statements are written where they are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import apsw
import msgspec
import numpy as np
from numpy.typing import NDArray


def rows(connection: apsw.Connection, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
    """All rows, as tuples."""
    return connection.execute(statement, tuple(parameters)).fetchall()


def row(connection: apsw.Connection, statement: str, parameters: Sequence[Any] = ()) -> Any:
    """The first row as a tuple, None without one."""
    found = rows(connection, statement, parameters)
    return found[0] if found else None


def column(connection: apsw.Connection, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
    """The only column of all rows."""
    return [value for (value,) in rows(connection, statement, parameters)]


def integers(connection: apsw.Connection, statement: str, width: int) -> NDArray[np.int64]:
    """All rows of `width` integer columns, int64 [width, n]: for millions of them."""
    cells = chain.from_iterable(connection.execute(statement))
    return np.ascontiguousarray(np.fromiter(cells, np.int64).reshape(-1, width).T)


def value(connection: apsw.Connection, statement: str, parameters: Sequence[Any] = ()) -> Any:
    """The only column of the first row, None without one."""
    found = rows(connection, statement, parameters)
    return found[0][0] if found else None


def array(values: Iterable[int] | Iterable[str]) -> str:
    """Keys as one parameter, for `IN (SELECT value FROM json_each(?))`."""
    return msgspec.json.encode(list(values)).decode()


def strings(encoded: str) -> list[str]:
    """The other way: what `json_group_array` made of texts."""
    return msgspec.json.decode(encoded, type=list[str])
