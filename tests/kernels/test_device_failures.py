"""When the device has no memory or does not answer: the right rows all the same, and one line on what it costs."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from coded_tables import Store, clustered, grow, nearest_of, only, recall, settle

if TYPE_CHECKING:
    from host_device import HostDevice

    from thread_kernels.engine_cuda import CudaEngine

WIDTH, ROWS = 48, 1_500
VECTORS = clustered(ROWS, WIDTH)
QUERIES = clustered(24, WIDTH, seed=2)

pytestmark = pytest.mark.usefixtures("host_kernels")


def new_engine(**options: Any) -> tuple[CudaEngine, HostDevice]:
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    device = host_device(**options)
    return CudaEngine(device, "always"), device


def lines(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


def test_a_container_may_take_less_than_the_machine_has(tmp_path: Path) -> None:
    from thread_kernels.device import main_memory_bytes

    installed = main_memory_bytes(tmp_path / "none")
    assert installed > 1 << 28
    for limit, expected in (("1048576\n", 1 << 20), ("max\n", installed), (f"{installed + 1}\n", installed)):
        (tmp_path / "memory.max").write_text(limit)
        assert main_memory_bytes(tmp_path / "memory.max") == expected


@pytest.mark.parametrize(
    ("error", "is_about_memory"),
    [
        (MemoryError("std::bad_alloc"), True),
        (RuntimeError("cudaErrorMemoryAllocation: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_no_memory_is_told_from_a_lost_device_by_what_any_library_says(error: Exception, is_about_memory: bool) -> None:
    from thread_kernels.device import found_no_memory

    assert found_no_memory(error) is is_about_memory


class OfTheRuntime(RuntimeError):
    """As CuPy says it: with a code."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class OfTorch(RuntimeError):
    """As torch's AcceleratorError."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"CUDA error: {said}")
        self.error_code = code


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (OfTheRuntime(700), True),
        (OfTheRuntime(719), True),
        (OfTheRuntime(214), True),
        (OfTheRuntime(46), True),
        (OfTheRuntime(1), False),
        (OfTheRuntime(9), False),
        (OfTheRuntime(701), False),
        (OfTorch(700, "an illegal memory access was encountered"), True),
        (OfTorch(98, "invalid device function"), False),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), True),
        (RuntimeError("Triton Error [CUDA]: unspecified launch failure"), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), False),
    ],
)
def test_only_errors_that_no_later_call_recovers_from_lose_the_device(error: Exception, is_lost: bool) -> None:
    from thread_kernels.device import lost_its_context

    assert lost_its_context(error) is is_lost


def test_memory_that_was_let_go_of_is_given_back_once_it_is_much() -> None:
    from host_device import host_device

    from thread_kernels.device import Residence

    device = host_device(memory_bytes=1_600)
    residence = Residence(device)

    def given_back_after(*sizes: int) -> int:
        for size in sizes:
            residence.room((size,), np.uint8)
        with residence.using():
            return device.counts["given back"]

    assert [given_back_after(99), given_back_after(1), given_back_after(), given_back_after(70, 70)] == [0, 1, 1, 2]
    kept = residence.room((1_000,), np.uint8)
    assert (given_back_after(99), len(kept)) == (2, 1_000)


def test_what_libraries_kept_for_later_is_given_back_before_room_is_refused() -> None:
    from host_device import NoMemory, host_device

    from thread_kernels.device import OutOfRoom, Residence

    device = host_device()
    residence = Residence(device)
    succeeds_from = 1

    def pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        if device.counts["given back"] < succeeds_from:
            raise NoMemory
        return np.zeros(shape, dtype)

    device.pinned = pinned  # type: ignore[method-assign]
    room = residence.pinned_room((10,), np.float32)
    assert (room.nbytes, residence.pinned_bytes, device.counts["given back"]) == (40, 40, 1)
    succeeds_from = 9
    with pytest.raises(OutOfRoom, match="in main memory, and there are fewer"):
        residence.pinned_room((10,), np.float32)
    assert (residence.pinned_bytes, device.counts["given back"]) == (40, 2)


def test_vectors_that_do_not_fit_stay_in_main_memory_and_codes_go_next(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thread_kernels.device_rows._FEWEST", 60_000)
    # Half of it is left for work: 13 MB for 4 MB of codes, or 15 MB of vectors.
    engine, device = new_engine(memory_bytes=2 * 13_000_000, product_from=8)
    table = engine.table(WIDTH)
    grow(table, VECTORS)
    assert lines(caplog, "do not fit on the device") == 1
    assert "large batches are scanned by codes" in caplog.text
    assert recall(table.search(QUERIES, 10, [None] * 24), nearest_of(VECTORS, QUERIES, 10)) >= 0.95
    assert (device.counts["scan_exact"], table.stats().coded_rows) == (0, ROWS)
    table.close()

    engine, _ = new_engine(memory_bytes=2 * 100_000)
    table = engine.table(WIDTH)
    table.append(VECTORS)
    with caplog.at_level(logging.CRITICAL), pytest.raises(RuntimeError, match="codes of the table"):
        settle(table)
    assert table.stats().state == "failed"
    assert recall(table.search(QUERIES, 10, [None] * 24), nearest_of(VECTORS, QUERIES, 10)) == 1.0
    assert engine.fault is None
    table.close()


def test_memory_is_left_free_for_work_on_the_widest_table_that_may_have_codes() -> None:
    from thread_kernels.working_memory import working_bytes

    engine, device = new_engine(memory_bytes=100 << 30)
    residence = engine.residence
    assert residence.reserved_bytes == 0
    for width, widest in ((384, 384), (1_024, 1_024), (48, 1_024)):
        engine.table(width).close()
        assert residence.reserved_bytes == working_bytes(widest, 8)
    device.memory_bytes = 1 << 30
    assert residence.reserved_bytes == 1 << 29, "never more than half"


def test_narrow_tables_that_never_have_codes_need_no_memory_for_work() -> None:
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    engine = CudaEngine(host_device())
    engine.table(8).close()
    assert engine.residence.reserved_bytes == 0


def test_what_is_left_free_is_no_room_for_tables() -> None:
    from host_device import host_device

    from thread_kernels.device import OutOfRoom, Residence

    residence = Residence(host_device(memory_bytes=1_000))
    residence.reserve(400)
    residence.reserve(300)
    kept = residence.room((600,), np.uint8)
    with pytest.raises(OutOfRoom, match="are left"):
        residence.room((1,), np.uint8)
    assert (kept.nbytes, residence.used_bytes) == (600, 600)


def test_work_is_reckoned_from_the_shapes() -> None:
    """By hand: keys for 128 queries six times, and a sample twice with its distances."""
    from thread_kernels.working_memory import working_bytes

    keys, training = 6 * 8 * 128 * 16 * 8_192, 2 * 4 * 1_024 * 65_536 + (576 << 20)
    queries = 64 << 20
    assert working_bytes(1_024, 8) == keys + training + queries == 2_013_265_920
    assert working_bytes(1_024, 9) == keys + training + queries + (256 << 20)
    assert working_bytes(4_096, 8) == keys + 2 * (1 << 30) + (576 << 20) + queries


def test_codebooks_count_as_long_as_they_are_held() -> None:
    engine, _ = new_engine()
    table = engine.table(WIDTH)
    grow(table, VECTORS)
    current = table.compression.current
    assert current is not None
    codebook = current.codes.codebook
    size = 2 * codebook.centroids.nbytes + codebook.prepared.offsets.nbytes
    size += 0 if codebook.rotation is None else codebook.rotation.nbytes
    rooms = codebook._tables[-1].nbytes + current.codes.tiles.memory.nbytes
    rooms += sum(part.nbytes for part in current.codes.vectors.packed.parts)
    assert engine.residence.used_bytes == size + rooms
    del current, codebook
    table.compression.abandon()
    table.close()
    gc.collect()
    assert engine.residence.used_bytes == 0


def test_a_batch_without_memory_is_tried_in_halves_and_then_scanned_in_main_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from host_device import NoMemory, fails_above

    engine, device = new_engine()
    table = engine.table(WIDTH)
    grow(table, VECTORS)
    filters = [None, only(table, range(0, ROWS, 2))] * 12
    as_ever = table.search(QUERIES, 10, filters)

    device.counts.clear()
    device.fail = fails_above(6, NoMemory)
    for one, two in zip(table.search(QUERIES, 10, filters), as_ever, strict=True):
        np.testing.assert_array_equal(one.rows, two.rows)
    assert (device.counts["scan_lut"], device.counts["given back"]) == (4, 3)
    assert not caplog.records

    device.fail = fails_above(0, NoMemory)
    found = table.search(QUERIES[::2], 10, [None] * 12)
    assert recall(found, nearest_of(VECTORS, QUERIES[::2], 10)) == 1.0
    assert lines(caplog, "scanned in main memory") == 12

    device.fail = lambda queries: None
    for one, two in zip(table.search(QUERIES, 10, filters), as_ever, strict=True):
        np.testing.assert_array_equal(one.rows, two.rows)
    assert engine.fault is None
    table.close()


def test_a_batch_that_fails_is_scanned_in_main_memory_and_the_next_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from host_device import Refused, fails_above

    engine, device = new_engine()
    table = engine.table(WIDTH)
    grow(table, VECTORS)
    device.fail = fails_above(0, Refused)
    assert recall(table.search(QUERIES, 10, [None] * 24), nearest_of(VECTORS, QUERIES, 10)) == 1.0
    assert lines(caplog, "24 queries are scanned in main memory, which takes far longer: host: 24 queries") == 1
    assert engine.fault is None

    device.fail = lambda queries: None
    device.counts.clear()
    table.search(QUERIES, 10, [None] * 24)
    assert device.counts["scan_lut"] == 1
    table.close()


def test_a_lost_device_is_said_once_and_every_table_answers_from_main_memory(caplog: pytest.LogCaptureFixture) -> None:
    from host_device import Broken, fails_above

    engine, device = new_engine()
    store = Store(WIDTH)
    backed, plain = engine.table(WIDTH, store), engine.table(WIDTH)
    grow(backed, VECTORS, store)
    grow(plain, VECTORS[:500])
    device.fail = fails_above(0, Broken)
    device.counts.clear()

    for table, count in ((backed, ROWS), (plain, 500), (backed, ROWS)):
        mine = only(table, range(0, count, 2))
        found = table.search(QUERIES, 10, [None, mine] * 12)
        assert recall(found[::2], nearest_of(VECTORS[:count], QUERIES[::2], 10)) == 1.0
        assert recall(found[1::2], nearest_of(VECTORS[:count], QUERIES[1::2], 10, np.arange(0, count, 2))) == 1.0

    assert engine.fault is not None
    assert engine.fault.startswith("host does not answer")
    assert lines(caplog, "does not answer") == 1
    assert device.counts["scan_lut"] == 0
    new = grow(backed, QUERIES, store)
    assert [hits.rows[0] for hits in backed.search(QUERIES, 1, [None] * 24)] == list(new)
    backed.remove(range(1_000))
    backed.compact()
    assert backed.stats().state == "exact"
    assert backed.save() is None
    with pytest.raises(ValueError, match="empty table"):
        backed.restore(b"", 0)
    for table in (backed, plain):
        table.close()


def test_a_device_lost_while_codes_are_made_leaves_a_table_that_is_scanned(caplog: pytest.LogCaptureFixture) -> None:
    from host_device import Broken, fails_above

    engine, device = new_engine()
    device.fail = fails_above(0, Broken)
    table = engine.table(WIDTH)
    table.append(VECTORS[:600])
    with caplog.at_level(logging.CRITICAL), pytest.raises(RuntimeError, match="codes of the table"):
        settle(table)
    assert recall(table.search(QUERIES, 10, [None] * 24), nearest_of(VECTORS[:600], QUERIES, 10)) == 1.0
    assert engine.fault is not None
    table.close()
