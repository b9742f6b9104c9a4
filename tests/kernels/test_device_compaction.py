"""Removed rows on a device without room for the vectors twice: those that are left move together where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from coded_tables import assert_there, clustered, codes_of, grow, nearest_of, only, recall

if TYPE_CHECKING:
    from host_device import HostDevice

    from thread_kernels.engine_cuda import CudaTable

WIDTH, ROWS = 48, 3_000
VECTORS = clustered(ROWS + 100, WIDTH)
QUERIES = clustered(24, WIDTH, seed=2)
REMOVED = np.arange(0, ROWS, 3)
KEPT = np.setdiff1d(np.arange(ROWS), REMOVED)

pytestmark = pytest.mark.usefixtures("host_kernels")


@pytest.fixture
def full(host_kernels: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CudaTable, HostDevice]]:
    """A table whose device has room for its codes twice, and for its vectors once; they move in pieces of 700 rows."""
    from host_device import host_device, leave_room

    from thread_kernels.engine_cuda import CudaEngine

    monkeypatch.setattr("thread_kernels.device_rows._MOVED_BYTES", 2 * 128 * 700)
    device = host_device(gather_up_to=50)
    table = CudaEngine(device, "always").table(WIDTH)
    grow(table, VECTORS[:ROWS])
    leave_room(codes_of(table).codebook.residence, 300_000)
    yield table, device
    table.close()


def test_vectors_stay_on_the_device_and_move_to_the_front_piece_by_piece(
    full: tuple[CudaTable, HostDevice], caplog: pytest.LogCaptureFixture
) -> None:
    table, _ = full
    before = codes_of(table)
    memory = before.vectors.values
    table.remove(REMOVED)
    table.compact()
    codes = codes_of(table)
    np.testing.assert_array_equal(codes.numbers, KEPT)
    assert codes.vectors.is_resident
    assert codes.vectors.values is memory
    assert (codes.vectors.rows, codes.vectors.lease.is_over, before.vectors.lease.is_over) == (len(KEPT), False, True)
    assert_there(codes.vectors, VECTORS[KEPT])
    assert not caplog.records
    assert codes.codebook.residence.pinned_bytes == 0


def test_with_room_for_both_memory_is_given_back(full: tuple[CudaTable, HostDevice]) -> None:
    table, device = full
    device.memory_bytes *= 4
    before = codes_of(table)
    table.remove(REMOVED)
    table.compact()
    vectors = codes_of(table).vectors
    assert (vectors.is_resident, len(vectors.values)) == (True, len(KEPT))
    assert not before.vectors.lease.is_over
    assert_there(vectors, VECTORS[KEPT])
    assert_there(before.vectors, VECTORS[:ROWS])


def test_vectors_in_main_memory_move_there_when_they_do_not_fit_twice(full: tuple[CudaTable, HostDevice]) -> None:
    from host_device import leave_room

    from thread_kernels.device_rows import Vectors

    table, device = full
    residence = codes_of(table).codebook.residence
    with residence.using():
        pinned = Vectors._in_main_memory(residence, 128, ROWS).and_vectors(device.tensor(VECTORS[:ROWS]))
        leave_room(residence, 50_000)
        device.pinned_bytes = residence.pinned_bytes
        memory = pinned.values
        fewer = pinned.only(KEPT)
    assert (fewer.values is memory, fewer.is_resident, pinned.lease.is_over) == (True, False, True)
    assert_there(fewer, VECTORS[KEPT])


def test_a_search_that_began_before_they_moved_does_without_them(full: tuple[CudaTable, HostDevice]) -> None:
    from thread_kernels.device import OutOfRoom

    table, device = full
    before, everything = codes_of(table), table._members.passing(None)
    asked = QUERIES, [200] * 24, [10] * 24, [everything] * 24, 1, 1.0
    device.counts.clear()
    by_vectors = before.search(*asked)
    assert device.counts["block_distances"] == 1, "vectors rule out rows"
    assert before.gather_up_to(1) == 50
    table.remove(REMOVED)
    table.compact()

    device.counts.clear()
    found = before.search(*asked)
    assert device.counts["block_distances"] == 0
    assert [len(rows) for rows in found] == [200] * 24
    assert all(np.isin(few, rows).all() for few, rows in zip(by_vectors, found, strict=True))
    assert before.gather_up_to(1) == 0
    with pytest.raises(OutOfRoom, match="moved"):
        before.gather(QUERIES, 10, np.arange(20), 1)
    assert codes_of(table).gather_up_to(1) == 50


def test_rows_that_come_next_take_the_room_that_was_kept(full: tuple[CudaTable, HostDevice]) -> None:
    table, _ = full
    table.remove(REMOVED)
    table.compact()
    memory = codes_of(table).vectors.values
    grow(table, VECTORS[ROWS:])
    vectors, left = codes_of(table).vectors, np.append(KEPT, np.arange(ROWS, ROWS + 100))
    assert vectors.values is memory
    assert_there(vectors, VECTORS[left])
    for filter, rows in ((None, left), (only(table, range(1, ROWS, 2)), KEPT[KEPT % 2 == 1])):
        found = table.search(QUERIES, 10, [filter] * 24)
        assert recall(found, nearest_of(VECTORS, QUERIES, 10, rows)) >= 0.95
