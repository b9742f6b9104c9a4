"""Searches while a table trains on the same device: they come between the pieces of its work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from coded_tables import PATIENCE_S, clustered, grow, nearest_of, recall, settle

WIDTH, ROWS = 48, 1_500
VECTORS = clustered(ROWS, WIDTH)
QUERIES = clustered(24, WIDTH, seed=2)

pytestmark = pytest.mark.usefixtures("host_kernels")


def test_a_search_is_answered_by_codes_in_the_middle_of_a_training() -> None:
    from host_device import host_device

    from thread_kernels.engine_cuda import CudaEngine

    device = host_device()
    engine = CudaEngine(device, "always")
    searched, trained = engine.table(WIDTH), engine.table(WIDTH)
    grow(searched, VECTORS)
    device.counts.clear()
    is_training, may_go_on = Event(), Event()
    pieces = 0

    def wait() -> None:
        nonlocal pieces
        pieces += 1
        if pieces == 20:  # past the upload and the first iterations
            is_training.set()
            assert may_go_on.wait(PATIENCE_S)

    device.waiting = wait
    with ThreadPoolExecutor(1) as pool:
        try:
            trained.append(VECTORS[::-1])
            assert is_training.wait(PATIENCE_S)
            found = pool.submit(searched.search, QUERIES, 10, [None] * 24).result(PATIENCE_S)
            assert trained.compression.is_working
            assert trained.compression.current is None
            assert device.counts["scan_lut"] == 1
        finally:
            may_go_on.set()
    assert recall(found, nearest_of(VECTORS, QUERIES, 10)) >= 0.95
    settle(trained)
    assert pieces > 75, "each of 25 iterations is waited for, piece by piece"
    turned = trained.search(QUERIES, 10, [None] * 24)
    assert recall([ROWS - 1 - hits.rows for hits in turned], nearest_of(VECTORS, QUERIES, 10)) >= 0.95
    for table in (searched, trained):
        table.close()


def test_a_device_lost_while_a_piece_is_waited_for_is_lost_to_all() -> None:
    from host_device import Broken, host_device

    from thread_kernels.device import DeviceLost, Residence

    device = host_device()
    residence = Residence(device)

    def wait() -> None:
        raise Broken("illegal address")

    device.waiting = wait
    with pytest.raises(DeviceLost, match="illegal address"), residence.using_for_a_piece():
        pass
    with pytest.raises(DeviceLost), residence.using():
        raise AssertionError("nobody uses it now")
