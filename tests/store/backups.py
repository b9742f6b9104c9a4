"""A store with full segments and one that is not, and what a backup of it must hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opened_store import Opened, opened_store

WIDTH = 16
ROWS_A_SEGMENT = 4


@contextlib.contextmanager
def filled_store(path: Path) -> Iterator[Opened]:
    """With segments of four rows, and ten documents: two full segments, and one of two rows."""
    with opened_store(path) as opened:
        opened.store.segments._segment_bytes = ROWS_A_SEGMENT * WIDTH * 4
        fill(opened, range(10))
        yield opened


def fill(opened: Opened, numbers: range) -> None:
    stamp = f"INSERT OR IGNORE INTO stamp VALUES (1, 'model@{WIDTH}', 'model', NULL, {WIDTH}, 1)"
    opened.write(lambda connection, _: connection.execute(stamp).close())
    for number in numbers:
        opened.file("ann", f"doc {number}", f"text {number}", rows=vector(number))


def vector(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).standard_normal((1, WIDTH), dtype=np.float32)


def silent(text: str, fraction: float | None = None, /) -> None:
    """No progress."""


def back_up(opened: Opened, target: Path) -> dict[str, Any]:
    return opened.store.back_up(target, silent)


def held(data_dir: Path) -> dict[str, NDArray[np.float32]]:
    """Text and vector of every document of a node that is opened for it."""
    with opened_store(data_dir) as opened, opened.store.read() as connection:
        statement = (
            "SELECT text, segment, slot FROM partitions JOIN vectors ON subject_key = partition_key ORDER BY vector_key"
        )
        return {
            text: opened.store.segments.read(segment, np.array([slot]))[0]
            for text, segment, slot in connection.execute(statement)
        }


def assert_held(data_dir: Path, count: int) -> None:
    found = held(data_dir)
    assert [*found] == [f"text {number}" for number in range(count)]
    for number, row in enumerate(found.values()):
        assert np.array_equal(row, vector(number)[0])
