"""The codes of a table that changes: made beside searches, caught up, squeezed, made again; and what may go wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Event, Thread
from threading import enumerate as threads
from typing import Any

import numpy as np
import pytest
from coded_tables import PATIENCE_S, clustered, coded, grow, nearest_of, only, recall, settle

from thread_kernels import blocks, coder_cpu, compression
from thread_kernels.codebook import Codebook
from thread_kernels.codes import Codes
from thread_kernels.compression import Compressed, Compression, CompressPolicy
from thread_kernels.engine_cpu import CpuTable

WIDTH = 48
VECTORS = clustered(3_200, WIDTH)
QUERIES = clustered(100, WIDTH, seed=2)


def state_of(table: CpuTable) -> Compressed:
    assert table.compression.current is not None
    return table.compression.current


def assert_right(table: CpuTable, vectors: np.ndarray, least: float, rows: np.ndarray | None = None) -> None:
    for k in (10, 100):
        found = table.search(QUERIES, k, [None] * len(QUERIES))
        assert recall(found, nearest_of(vectors, QUERIES, k, rows)) >= least


@pytest.fixture
def held_training(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Event, Event]]:
    """Training begins by setting the first event, and goes on when the second is set."""
    started, finish = Event(), Event()
    original = coder_cpu.plain

    def held(sample: np.ndarray, **given: int) -> Codebook:
        started.set()
        assert finish.wait(PATIENCE_S)
        return original(sample, **given)

    monkeypatch.setattr(coder_cpu, "plain", held)
    yield started, finish
    finish.set()


@pytest.mark.parametrize(("strong", "kind"), [(WIDTH // 4, "principal"), (WIDTH, "plain")])
def test_the_kind_of_codebook_that_wins_a_short_trial_is_trained_in_full(
    strong: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    directions, _ = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))
    vectors = (random.standard_normal((2_000, strong)) @ directions[:strong]).astype(np.float32)
    made: list[tuple[str, int]] = []
    for name in ("plain", "principal"):
        original = getattr(coder_cpu, name)

        def noting(sample: np.ndarray, *, name: str = name, original: Any = original, **given: int) -> Codebook:
            codebook: Codebook = original(sample, **given)
            made.append((name, codebook.index.pq.cp.niter))
            return codebook

        monkeypatch.setattr(coder_cpu, name, noting)
    coded(vectors)
    assert made == [("plain", 5), ("principal", 5), (kind, 25)]


def test_searches_and_changes_go_on_exactly_while_the_codebook_is_trained(held_training: tuple[Event, Event]) -> None:
    started, finish = held_training
    table = CpuTable(WIDTH, CompressPolicy(250, 8))
    table.append(VECTORS[:1_900])
    assert started.wait(PATIENCE_S)
    assert not table.compression.wait(timeout_s=0)
    table.append(VECTORS[1_900:2_000])
    table.remove(range(100))

    assert table.stats().state == "training"
    assert_right(table, VECTORS, 1.0, np.arange(100, 2_000))
    assert table.stats().by_code == 0
    assert table.save() is None

    finish.set()
    settle(table)
    assert (table.stats().state, table.stats().trained_rows) == ("coded", 1_900)
    assert_right(table, VECTORS, 0.97, np.arange(100, 2_000))
    table.close()


def test_new_rows_are_found_before_and_after_they_have_codes() -> None:
    table = coded(VECTORS[:1_000])
    first = state_of(table)
    new = grow(table, QUERIES[:50])
    assert state_of(table) is first, "50 rows are scanned exactly"

    for _ in range(2):
        found = table.search(QUERIES[:50], 10, [None] * 50)
        assert [hits.rows[0] for hits in found] == list(new)
        assert not any(hits.distances[0] for hits in found)
        [hits] = table.search(QUERIES[:1], 10, [only(table, [*new[:3], *range(50)])])
        assert hits.rows[0] == new[0]
        assert np.isin(hits.rows, [*new[:3], *range(50)]).all()
        assert new[0] in table.candidates(QUERIES[:1], 1, [None])[0]
        grow(table, VECTORS[1_000:1_200])

    codes = state_of(table).codes
    assert (codes.base_rows, codes.fresh_rows, codes.rows) == (1_000, 450, 1_450)
    assert codes.base is first.codes.base, "what has codes is not coded again"
    assert (first.codes.fresh_rows, first.codes.rows) == (0, 1_000), "a search that began before keeps what it had"
    table.remove(new[:25])
    assert not any(np.isin(hits.rows, new[:25]).any() for hits in table.search(QUERIES, 10, [None] * 100))
    table.close()


def test_many_fresh_codes_are_merged_into_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_FRESH_ROWS", 500)
    table = coded(VECTORS[:2_000])
    codebook = state_of(table).codes.codebook
    fresh = []
    for stop in (2_300, 2_600, 2_900):
        grow(table, VECTORS[table.row_count : stop])
        table.remove([stop - 1])
        fresh.append((state_of(table).codes.base_rows, state_of(table).codes.fresh_rows))
    assert fresh == [(2_000, 300), (2_600, 0), (2_600, 300)]
    codes = state_of(table).codes
    assert codes.codebook is codebook
    np.testing.assert_array_equal(codes.all_rows(), np.setdiff1d(np.arange(2_900), [2_299]))
    assert_right(table, VECTORS, 0.95, np.setdiff1d(np.arange(2_900), [2_299, 2_599, 2_899]))
    table.close()


def test_a_growing_table_is_calibrated_at_2_times_and_trained_at_4_times_the_rows() -> None:
    table = coded(VECTORS[:400])
    first = state_of(table)
    assert (first.trained_rows, first.calibrated_rows) == (400, 400)

    grow(table, VECTORS[400:700])
    assert (state_of(table).calibrated_rows, state_of(table).whole) == (400, first.whole)
    assert_right(table, VECTORS[:700], 0.97)
    grow(table, VECTORS[700:1_000])
    second = state_of(table)
    assert second.codes.codebook is first.codes.codebook
    assert (second.trained_rows, second.calibrated_rows) == (400, 1_000)
    assert second.whole != first.whole
    assert_right(table, VECTORS[:1_000], 0.97)

    grow(table, VECTORS[1_000:3_200])
    third = state_of(table)
    assert third.codes.codebook is not first.codes.codebook
    assert (third.trained_rows, third.calibrated_rows, third.codes.rows) == (3_200, 3_200, 3_200)
    assert_right(table, VECTORS, 0.97)
    assert table.stats().scanned == table.stats().gathered == 0
    table.close()


def test_a_table_that_is_being_filled_is_first_trained_at_four_times_the_rows_of_one_at_rest(
    monkeypatch: pytest.MonkeyPatch, held_training: tuple[Event, Event]
) -> None:
    started, finish = held_training
    finish.set()
    monkeypatch.setattr(compression, "SETTLING_SECONDS", 3_600)
    filling = CpuTable(WIDTH, CompressPolicy(500, 8))
    grow(filling, VECTORS[:2_000])
    assert (filling.stats().state, started.is_set()) == ("exact", False)
    assert_right(filling, VECTORS[:2_000], 1.0)
    grow(filling, VECTORS[2_000:2_001])
    assert (filling.stats().state, filling.stats().trained_rows) == ("coded", 2_001)
    filling.close()

    started.clear()
    monkeypatch.setattr(compression, "SETTLING_SECONDS", 0.01)
    resting = CpuTable(WIDTH, CompressPolicy(500, 8))
    resting.append(VECTORS[:501])
    assert started.wait(PATIENCE_S)
    settle(resting)
    assert (resting.stats().state, resting.stats().trained_rows) == ("coded", 501)
    resting.close()


@pytest.mark.parametrize(("trickled", "waits"), [(5, 1), (6, 2)])
def test_a_table_that_grew_by_no_more_than_a_hundredth_counts_as_at_rest(
    trickled: int, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "SETTLING_SECONDS", 0.01)
    table = CpuTable(WIDTH, CompressPolicy(500, 8))
    condition = table.compression._condition
    wait_for = condition.wait_for
    waited: list[int] = []
    others = threads()

    def trickling(predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        waited.append(table.row_count)
        if len(waited) == 1:
            table.append(VECTORS[501 : 501 + trickled])
        return wait_for(predicate, timeout)

    monkeypatch.setattr(condition, "wait_for", trickling)
    table.append(VECTORS[:501])
    for thread in threads():
        if thread not in others:
            thread.join(PATIENCE_S)
    assert (table.stats().state, table.stats().trained_rows) == ("coded", 501 + trickled)
    assert waited == [501, 501 + trickled][:waits]
    table.close()


def test_a_table_at_rest_is_trained_on_all_its_rows_once_it_has_outgrown_its_codes_by_a_quarter(
    monkeypatch: pytest.MonkeyPatch, held_training: tuple[Event, Event]
) -> None:
    monkeypatch.setattr(compression, "SETTLING_SECONDS", 0.01)
    started, finish = held_training
    finish.set()
    table = coded(VECTORS[:1_000])
    first = state_of(table)
    started.clear()
    grow(table, VECTORS[1_000:1_240])
    assert state_of(table).codes.codebook is first.codes.codebook, "1.24 times the rows are not enough"

    table.append(VECTORS[1_240:1_300])
    assert started.wait(PATIENCE_S)
    settle(table)
    second = state_of(table)
    assert second.codes.codebook is not first.codes.codebook
    assert (second.trained_rows, second.calibrated_rows, second.codes.base_rows, second.codes.fresh_rows) == (
        1_300,
        1_300,
        1_300,
        0,
    )
    assert_right(table, VECTORS[:1_300], 0.97)
    table.close()


def test_a_table_that_waits_for_its_rest_takes_new_rows_and_closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "SETTLING_SECONDS", 3_600)
    table = coded(VECTORS[:1_000])
    grow(table, VECTORS[1_000:1_500])
    assert (table.stats().state, state_of(table).trained_rows, state_of(table).codes.rows) == ("coded", 1_000, 1_500)

    grow(table, VECTORS[1_500:1_700])
    assert (table.stats().state, state_of(table).trained_rows, state_of(table).codes.rows) == ("coded", 1_000, 1_700)
    table.remove(range(600))
    settle(table)
    assert (table.stats().dead_rows, state_of(table).codes.coded_rows) == (0, 1_100)
    table.append(VECTORS[1_700:])
    settle(table)
    assert (table.stats().state, table.stats().trained_rows) == ("coded", 1_000)
    table.close()
    assert not any(thread.name == "codes" for thread in threads())


def test_the_dead_are_squeezed_out_once_they_are_more_than_a_fifth_and_at_once_on_demand() -> None:
    table = coded(VECTORS[:1_500])
    kept = table.stats().vector_bytes
    table.remove(range(300))
    settle(table)
    assert (table.stats().dead_rows, table.stats().coded_rows) == (300, 1_500)
    table.remove([300])
    settle(table)
    stats = table.stats()
    assert (stats.dead_rows, stats.coded_rows, stats.rows) == (0, 1_199, 1_199)
    assert stats.vector_bytes == kept - 301 * WIDTH * 4

    table.remove([700, 1_499])
    assert table.stats().dead_rows == 2
    table.compact()
    table.compact()
    assert (table.stats().dead_rows, table.stats().coded_rows) == (0, 1_197)
    rows = np.setdiff1d(np.arange(301, 1_499), [700])
    np.testing.assert_array_equal(state_of(table).codes.all_rows(), rows)
    assert_right(table, VECTORS, 0.97, rows)
    assert np.isinf(table.rescore(QUERIES[0], [0, 700, 1_499]).distances).all()
    table.close()


def test_a_table_emptied_to_zero_and_filled_with_other_vectors_starts_anew() -> None:
    other = np.random.default_rng(5).standard_normal((1_200, WIDTH), dtype=np.float32) + 3
    queries = np.random.default_rng(6).standard_normal((100, WIDTH), dtype=np.float32) + 3
    table = coded(VECTORS[:1_000])
    table.remove(range(1_000))
    settle(table)
    stats = table.stats()
    assert (stats.state, stats.rows, stats.coded_rows, stats.vector_bytes, table.live_count) == ("exact", 0, 0, 0, 0)
    assert table.save() is None
    [hits] = table.search(QUERIES[:1], 10, [None])
    assert not len(hits.rows)

    assert grow(table, other) == range(1_000, 2_200)
    assert (table.stats().trained_rows, table.stats().rows) == (1_200, 1_200)
    truth = [rows + 1_000 for rows in nearest_of(other, queries, 10)]
    assert recall(table.search(queries, 10, [None] * 100), truth) >= 0.97
    table.close()


def test_a_table_that_lost_most_rows_is_calibrated_again_when_it_has_doubled() -> None:
    table = coded(VECTORS[:1_500])
    table.remove(range(1_000))
    settle(table)
    other = np.random.default_rng(5).standard_normal((700, WIDTH), dtype=np.float32)
    grow(table, other)
    assert (state_of(table).trained_rows, state_of(table).calibrated_rows) == (1_500, 1_200)
    queries = np.random.default_rng(6).standard_normal((100, WIDTH), dtype=np.float32)
    truth = nearest_of(np.concatenate([VECTORS[:1_500], other]), queries, 10, np.arange(1_000, 2_200))
    assert recall(table.search(queries, 10, [None] * 100), truth) >= 0.97
    table.close()


def failing(calls: list[int]) -> Callable[..., None]:
    def broken(*_: object, **__: object) -> None:
        calls.append(1)
        raise MemoryError("no room")

    return broken


def test_a_failed_training_is_reported_searches_stay_exact_and_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    table = CpuTable(WIDTH, CompressPolicy(0, 8))
    with monkeypatch.context() as patch:
        patch.setattr(coder_cpu, "plain", failing(calls))
        table.append(VECTORS[:200])
        with pytest.raises(RuntimeError, match="codes of the table"):
            settle(table)
        table.append(VECTORS[200:750])
        assert_right(table, VECTORS[:750], 1.0)
        assert (table.stats().state, len(calls)) == ("failed", 1)
    assert [record.message for record in caplog.records] == ["no codes for a table of 200 rows; it is scanned exactly"]

    grow(table, VECTORS[750:800])
    assert (table.stats().state, table.stats().trained_rows) == ("coded", 800)
    table.close()


def test_failed_squeezing_is_not_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    table = coded(VECTORS[:1_500])
    monkeypatch.setattr(blocks.Blocks, "squeeze", failing(calls))
    with caplog.at_level(logging.CRITICAL):
        table.remove(range(400))
        with pytest.raises(RuntimeError, match="codes of the table"):
            settle(table)
        table.remove(range(400, 500))
        assert len(calls) == 1
    with pytest.raises(MemoryError):
        table.compact()
    assert_right(table, VECTORS[:1_500], 0.97, np.arange(500, 1_500))
    table.close()


def test_closing_ends_the_training_and_the_table_can_still_be_read_and_written(
    held_training: tuple[Event, Event],
) -> None:
    started, finish = held_training
    table = CpuTable(WIDTH, CompressPolicy(250, 8))
    table.append(VECTORS[:1_500])
    assert started.wait(PATIENCE_S)
    closer = Thread(target=table.close)
    closer.start()
    finish.set()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()

    table.close()
    table.append(VECTORS[1_500:2_000])
    table.remove(range(1_000))
    table.compact()
    assert table.compression.wait(timeout_s=0)
    assert (table.stats().state, table.stats().dead_rows) == ("exact", 1_000)
    assert_right(table, VECTORS[:2_000], 1.0, np.arange(1_000, 2_000))


def test_codes_stay_and_new_rows_get_theirs_when_a_table_at_rest_cannot_be_trained_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compression, "SETTLING_SECONDS", 0.01)
    calls: list[int] = []
    table = coded(VECTORS[:600])
    codebook = state_of(table).codes.codebook
    monkeypatch.setattr(coder_cpu, "plain", failing(calls))
    for stop in (800, 900, 1_000):
        grow(table, VECTORS[table.row_count : stop])
        while any(thread.name == "codes" for thread in threads()):  # until it neither works nor waits for a rest
            settle(table)
    assert len(calls) == 1
    assert [record.message for record in caplog.records] == ["a table of 800 rows keeps the codes it has"]
    assert (table.stats().state, state_of(table).codes.rows) == ("coded", 1_000)
    assert state_of(table).codes.codebook is codebook
    assert_right(table, VECTORS[:1_000], 0.97)
    table.close()


def test_rows_whose_codes_failed_get_them_with_later_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compression, "_FRESH_ROWS", 100)
    calls: list[int] = []
    table = coded(VECTORS[:1_000])
    with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
        patch.setattr(Codes, "grown", failing(calls))
        patch.setattr(Codes, "merged", failing(calls))
        table.append(VECTORS[1_000:1_100])
        with pytest.raises(RuntimeError, match="codes of the table"):
            settle(table)
        table.append(VECTORS[1_100:1_200])
        assert (table.stats().state, table.stats().coded_rows, len(calls)) == ("failed", 1_000, 1)
        assert_right(table, VECTORS[:1_200], 0.97)
    grow(table, VECTORS[1_200:1_300])
    assert (table.stats().state, table.stats().coded_rows) == ("coded", 1_300)
    table.close()


@pytest.mark.parametrize("growth", [1, 2])
def test_rows_that_come_while_the_reach_is_measured_do_not_make_codes_useless(
    growth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`growth`: whether the codes are trained (1) or caught up with and measured again (2)."""
    original, late = Compression._calibrated, [True]

    def calibrated(self: Compression, *of: Any) -> Any:
        if late[0] and table.row_count >= growth * 500:
            late[0] = False
            table.append(QUERIES)
        return original(self, *of)

    monkeypatch.setattr(Compression, "_calibrated", calibrated)
    table = CpuTable(WIDTH, CompressPolicy(0, 8))
    for start in range(0, growth * 500, 500):
        grow(table, VECTORS[start : start + 500])
    assert not late[0]
    assert state_of(table).whole.of(10, table.row_count) is not None
    rows = np.concatenate([VECTORS[: growth * 500], QUERIES])
    assert_right(table, rows, 0.97)
    table.close()
