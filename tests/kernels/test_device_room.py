"""Who goes first when the device is full: codes stay, vectors leave, and queries have room of their own."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from coded_tables import assert_there, clustered, codes_of, grow, nearest_of, only, recall, settle

if TYPE_CHECKING:
    from host_device import HostDevice

    from thread_kernels.engine_cuda import CudaEngine, CudaTable

WIDTH, ROWS = 48, 2_000
VECTORS = clustered(ROWS + 300, WIDTH)
QUERIES = clustered(24, WIDTH, seed=2)
REMOVED = np.arange(0, ROWS, 3)
KEPT = np.setdiff1d(np.arange(ROWS), REMOVED)
ROW_BYTES = 2 * 128 + 8
TILE_BYTES = 8_192

pytestmark = pytest.mark.usefixtures("host_kernels")


@pytest.fixture
def full(host_kernels: None) -> Iterator[tuple[CudaEngine, CudaTable, HostDevice]]:
    """A table whose device has no room beside its codes and vectors, but for what is left for work."""
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    device = host_device(memory_bytes=200_000_000)  # half of it is left for work, the tables of queries among it
    engine = CudaEngine(device, "always")
    table = engine.table(WIDTH)
    grow(table, VECTORS[:ROWS])
    taken = engine.residence.used_bytes - codes_of(table).codebook._tables[-1].nbytes
    others = engine.residence.room((100_000_000 - taken,), np.uint8)
    yield engine, table, device
    del others
    table.close()


def assert_answers(table: CudaTable, rows: np.ndarray) -> None:
    assert recall(table.search(QUERIES, 10, [None] * 24), nearest_of(VECTORS, QUERIES, 10, rows)) >= 0.95


def once(error: Exception) -> Callable[[], None]:
    errors = [error]

    def fail() -> None:
        if errors:
            raise errors.pop()

    return fail


def lines(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


def test_vectors_leave_for_main_memory_when_codes_grow(
    full: tuple[CudaEngine, CudaTable, HostDevice], caplog: pytest.LogCaptureFixture
) -> None:
    engine, table, _ = full
    before, used = codes_of(table), engine.residence.used_bytes
    grow(table, VECTORS[ROWS:])
    codes = codes_of(table)
    assert (codes.coded_rows, codes.vectors.is_resident, codes.is_whole) == (ROWS + 300, False, True)
    assert_there(codes.vectors, VECTORS)
    assert before.vectors.lease.is_over
    assert lines(caplog, "lie in main memory") == 1
    assert engine.residence.used_bytes <= used
    assert_answers(table, np.arange(ROWS + 300))


def test_vectors_go_where_main_memory_has_no_room_either(
    full: tuple[CudaEngine, CudaTable, HostDevice], caplog: pytest.LogCaptureFixture
) -> None:
    engine, table, device = full
    device.pinned_bytes = 0
    used = engine.residence.used_bytes
    grow(table, VECTORS[ROWS:])
    codes = codes_of(table)
    assert (codes.coded_rows, codes.vectors) == (ROWS + 300, None)
    assert lines(caplog, "nor in main memory") == 1
    gc.collect()
    assert engine.residence.used_bytes == used - 2_048 * ROW_BYTES + (32 - 16) * TILE_BYTES
    assert_answers(table, np.arange(ROWS + 300))


def test_codes_that_do_not_fit_beside_themselves_are_compacted_all_the_same(
    full: tuple[CudaEngine, CudaTable, HostDevice],
) -> None:
    _, table, _ = full
    table.remove(REMOVED)
    table.compact()
    codes = codes_of(table)
    np.testing.assert_array_equal(codes.numbers, KEPT)
    assert codes.vectors.is_resident, "they come back once the codes are there"
    assert_there(codes.vectors, VECTORS[KEPT])
    assert_answers(table, KEPT)


def test_vectors_of_one_table_leave_for_the_codes_of_another_and_are_read_again_later(
    full: tuple[CudaEngine, CudaTable, HostDevice], caplog: pytest.LogCaptureFixture
) -> None:
    engine, table, device = full
    other = engine.table(WIDTH)
    grow(other, VECTORS[::-1])
    assert codes_of(other).coded_rows == ROWS + 300
    assert lines(caplog, "no other room for codes") == 1
    assert (codes_of(table).vectors.lease.is_over, codes_of(table).is_whole) == (True, False)
    device.counts.clear()
    assert_answers(table, np.arange(ROWS))
    assert device.counts["scan_lut"] == 1
    device.memory_bytes *= 2
    table.compression.wake()
    settle(table)
    assert codes_of(table).is_whole
    assert_there(codes_of(table).vectors, VECTORS[:ROWS])
    other.close()


def test_a_filtered_search_has_room_when_vectors_have_taken_all_there_is(
    full: tuple[CudaEngine, CudaTable, HostDevice], caplog: pytest.LogCaptureFixture
) -> None:
    from thread_kernels.device import OutOfRoom

    engine, table, device = full
    with pytest.raises(OutOfRoom, match=r"0\.00 GB are left"):
        engine.residence.room((1,), np.uint8)
    device.counts.clear()
    rows = np.arange(0, ROWS, 2)
    found = table.search(QUERIES, 10, [only(table, rows)] * 24)
    assert device.counts["scan_lut"] == 1
    assert recall(found, nearest_of(VECTORS, QUERIES, 10, rows)) >= 0.95
    assert not caplog.records


def test_nothing_needs_no_room_even_when_more_is_taken_than_there_is() -> None:
    from host_device import host_device

    from thread_kernels.device import OutOfRoom, Residence

    residence = Residence(host_device(memory_bytes=1_000))
    kept = residence.room((900,), np.uint8)
    residence.reserve(400)
    assert residence.room((0, 7), np.uint8).shape == (0, 7)
    with pytest.raises(OutOfRoom, match=r"and 0\.00 GB are left"):
        residence.room((1,), np.uint8)
    assert len(kept) == 900


def test_without_memory_to_encode_vectors_leave_and_codes_are_made(
    full: tuple[CudaEngine, CudaTable, HostDevice], caplog: pytest.LogCaptureFixture
) -> None:
    from host_device import NoMemory

    _, table, device = full
    device.memory_bytes *= 2
    device.encoding = once(NoMemory("encode"))
    grow(table, VECTORS[ROWS:])
    codes = codes_of(table)
    assert (codes.coded_rows, codes.vectors.is_resident) == (ROWS + 300, False)
    assert_there(codes.vectors, VECTORS)
    assert lines(caplog, "lie in main memory") == 1
    assert_answers(table, np.arange(ROWS + 300))


def test_rows_that_cannot_be_encoded_at_all_are_scanned_exactly(
    full: tuple[CudaEngine, CudaTable, HostDevice], caplog: pytest.LogCaptureFixture
) -> None:
    from host_device import NoMemory

    engine, table, device = full

    def fail() -> None:
        raise NoMemory("encode")

    device.encoding = fail
    table.append(VECTORS[ROWS:])
    with caplog.at_level(logging.CRITICAL), pytest.raises(RuntimeError, match="codes of the table"):
        settle(table)
    assert codes_of(table).coded_rows == ROWS
    assert_answers(table, np.arange(ROWS + 300))
    assert engine.fault is None


def test_without_memory_to_pack_vectors_only_codes_grow(
    full: tuple[CudaEngine, CudaTable, HostDevice], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    engine, table, device = full
    device.memory_bytes *= 2

    def pack(*_: object) -> None:
        raise torch.OutOfMemoryError("pack")

    monkeypatch.setattr("thread_kernels.device_rows.pack", pack)
    used = engine.residence.used_bytes
    grow(table, VECTORS[ROWS:])
    codes = codes_of(table)
    assert (codes.coded_rows, codes.vectors) == (ROWS + 300, None)
    assert lines(caplog, "nor in main memory (host has no memory left: pack)") == 1
    gc.collect()
    assert engine.residence.used_bytes == used - 2_048 * ROW_BYTES + (32 - 16) * TILE_BYTES
    assert_answers(table, np.arange(ROWS + 300))


def test_without_memory_to_move_vectors_together_the_codes_are_compacted(
    full: tuple[CudaEngine, CudaTable, HostDevice], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    engine, table, device = full
    device.memory_bytes += 2 * 16 * TILE_BYTES  # for the codes twice, not for the vectors

    def index_select(*_: object) -> None:
        raise torch.OutOfMemoryError("copy")

    monkeypatch.setattr(torch.Tensor, "index_select", index_select)
    used = engine.residence.used_bytes
    before = codes_of(table)
    table.remove(REMOVED)
    table.compact()
    codes = codes_of(table)
    np.testing.assert_array_equal(codes.numbers, KEPT)
    assert (codes.vectors, before.vectors.lease.is_over) == (None, True)
    assert lines(caplog, "nor in main memory (host has no memory left: copy)") == 1
    del before
    gc.collect()
    assert engine.residence.used_bytes == used - 2_048 * ROW_BYTES
    assert_answers(table, KEPT)
