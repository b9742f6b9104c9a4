"""Rows are read from wherever they lie, however they move meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from thread_service.store.files import OsFiles
from thread_service.store.places import Places, packed, unpacked
from thread_service.store.segments import Location, Segments

WIDTH = 16


class Interrupted(Segments):
    """Does something between the look-up of a row and its read."""

    before_read: Callable[[], None] | None = None

    def read(self, segment: int, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        if (interrupt := self.before_read) is not None:
            self.before_read = None
            interrupt()
        return super().read(segment, slots)


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[Interrupted]:
    found = Interrupted(tmp_path, OsFiles(), segment_bytes=4 * WIDTH * 4)  # four rows in a file
    found.open({})
    yield found
    found.close()


def vectors(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((count, WIDTH), np.float32)


def test_a_place_is_one_number_however_large_its_parts() -> None:
    locations = [Location(1, 0, 7), Location(3, 2**24, 7), Location(10**6, 2**31, 7)]
    parts = [part.tolist() for part in unpacked(packed(locations))]
    assert parts == [[1, 3, 10**6], [0, 2**24, 2**31]]
    assert packed([]).tolist() == []


def test_rows_come_in_their_order_from_any_segments_and_those_without_a_place_are_nan(segments: Interrupted) -> None:
    written = vectors(10)
    places = packed(segments.append(written))
    shuffled = np.random.default_rng(1).permutation(10)
    rows = Places(segments, WIDTH)
    rows.set(np.arange(10), places[shuffled])
    assert np.array_equal(rows.read(np.arange(10)), written[shuffled])
    assert np.array_equal(rows.read(np.array([1, 4, 9])), written[shuffled[[1, 4, 9]]])
    assert np.isnan(rows.read(np.array([10, 10**9]))).all()
    assert rows.read(np.array([], dtype=np.int64)).shape == (0, WIDTH)


def test_a_row_that_moves_while_it_is_read_is_read_where_it_is_now(segments: Interrupted) -> None:
    written = vectors(8)
    rows = Places(segments, WIDTH)
    rows.set(np.arange(8), packed(segments.append(written)))

    def move_first_segment() -> None:
        rows.set(np.array([0, 1, 3]), packed(segments.append(written[[0, 1, 3]])))
        segments.remove(1)

    segments.before_read = move_first_segment
    found = rows.read(np.arange(8))
    assert np.array_equal(found[[0, 1, 3, 4, 5, 6, 7]], written[[0, 1, 3, 4, 5, 6, 7]])
    assert np.isnan(found[2]).all()  # it was removed, so nobody moved it
    assert np.array_equal(rows.read(np.arange(2)), written[:2])
