"""What every engine owes its callers over time: rows come and go, codes are saved, memory is given back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coded_tables import Store
from engines import TestedEngine, normals, settle

from thread_kernels import DamagedCodes, Filter, Table
from thread_kernels.reference import ReferenceEngine


def test_removed_rows_never_come_back(engine: TestedEngine) -> None:
    vectors = normals(200, 17)
    table, _ = engine.beside_truth(17, vectors)
    everything = table.row_set()
    everything.add(range(200))

    table.remove(range(50, 150))
    table.remove([60, 60, 199])
    table.compact()

    assert (table.row_count, table.live_count) == (200, 99)
    assert table.count(Filter.any_of(everything)) == 99
    for each in (None, Filter.any_of(everything)):
        [hits] = table.search(vectors[60:61], 200, [each])
        [listed] = table.candidates(vectors[60:61], 200, [each])
        assert sorted(hits.rows) == sorted(listed) == [*range(50), *range(150, 199)]
    everything.add(60)
    assert table.append(vectors[60:61]) == range(200, 201)
    [hits] = table.search(vectors[60:61], 1, [None])
    assert hits.rows.tolist() == [200]

    table.remove(range(201))
    assert table.live_count == 0
    assert len(table.search(vectors[:1], 5, [None])[0].rows) == 0
    assert len(table.candidates(vectors[:1], 5, [None])[0]) == 0


def test_a_removed_row_may_be_gone_when_it_is_rescored(engine: TestedEngine) -> None:
    table, truth = engine.beside_truth(17, normals(600, 17))
    table.remove(range(0, 600, 2))
    settle(table)
    table.compact()
    expected = truth.rescore(normals(1, 17)[0], range(600))
    scores = table.rescore(normals(1, 17)[0], range(600))
    np.testing.assert_allclose(scores.distances[1::2], expected.distances[1::2], rtol=1e-5)
    np.testing.assert_allclose(scores.cosines[1::2], expected.cosines[1::2], atol=1e-5)
    gone = np.isinf(scores.distances)
    assert not scores.cosines[gone].any()
    np.testing.assert_allclose(scores.distances[~gone], expected.distances[~gone], rtol=1e-5)


def test_a_table_may_be_emptied_to_zero_and_filled_again(engine: TestedEngine) -> None:
    table, _ = engine.beside_truth(17, normals(700, 17))
    table.remove(range(700))
    settle(table)
    assert (table.live_count, table.row_count, table.stats().coded_rows) == (0, 700, 0)
    assert table.append(normals(600, 17, seed=1) + 5) == range(700, 1300)
    settle(table)
    truth = ReferenceEngine().table(17)
    truth.append(normals(600, 17, seed=1) + 5)
    queries = normals(5, 17, seed=2) + 5
    found, expected = (each.search(queries, 20, [None] * 5) for each in (table, truth))
    engine.agree([replace(hits, rows=hits.rows - 700) for hits in found], expected)
    assert all((hits.rows >= 700).all() for hits in found)


def test_compacting_changes_no_answer(engine: TestedEngine) -> None:
    table, truth = engine.beside_truth(17, normals(1500, 17), normals(300, 17, seed=1))
    mine = []
    for each in (table, truth):
        each.remove([*range(0, 1800, 9), 1799])
        some = each.row_set()
        some.add(range(0, 1800, 4))
        mine.append(Filter.any_of(some))
    queries = normals(9, 17, seed=2)
    expected = truth.search(queries, 20, [None] * 5 + [mine[1]] * 4)
    for _ in range(3):
        engine.agree(table.search(queries, 20, [None] * 5 + [mine[0]] * 4), expected)
        assert (table.row_count, table.live_count) == (1800, 1599)
        assert table.count(mine[0]) == truth.count(mine[1])
        table.compact()
    assert table.append(normals(1, 17)) == range(1800, 1801)


def test_compacting_an_empty_table_is_harmless(engine: TestedEngine) -> None:
    table = engine.table(3)
    table.compact()
    assert (table.append(normals(2, 3)), table.live_count) == (range(2), 2)


def test_a_table_with_a_store_answers_like_one_without(engine: TestedEngine) -> None:
    store = Store(17)
    table, truth = engine.table(17, store), ReferenceEngine().table(17)
    for seed in range(3):
        vectors = normals(400, 17, seed=seed)
        assert table.append(store.put(vectors)) == truth.append(vectors)
        settle(table)
    for each in (table, truth):
        each.remove(range(0, 1200, 3))
    settle(table)
    queries = normals(9, 17, seed=5)
    engine.agree(table.search(queries, 20, [None] * 9), truth.search(queries, 20, [None] * 9))
    rows = [1, 1199, 7, 400]
    scores, expected = table.rescore(queries[0], rows), truth.rescore(queries[0], rows)
    np.testing.assert_allclose(scores.distances, expected.distances, rtol=1e-5)
    np.testing.assert_array_equal(store.vectors, np.concatenate([normals(400, 17, seed=seed) for seed in range(3)]))


def test_saved_codes_are_restored_as_the_rows_they_were_or_there_are_none(engine: TestedEngine) -> None:
    store = Store(17)
    table = engine.table(17, store)
    assert table.save() is None
    table.append(store.put(normals(900, 17)))
    settle(table)
    table.remove(range(0, 900, 10))
    kept = table.save()
    assert (kept is None) == (table.stats().coded_rows == 0)
    if kept is None:
        assert engine.is_exact
        return
    np.testing.assert_array_equal(kept.rows, np.setdiff1d(np.arange(900), np.arange(0, 900, 10)))

    anew, truth = Store(17), ReferenceEngine().table(17)
    truth.append(anew.put(store.vectors[kept.rows]))
    other = engine.table(17, anew)
    assert other.restore(kept.data, 810) == range(810)
    queries = normals(9, 17, seed=5)
    engine.agree(other.search(queries, 20, [None] * 9), truth.search(queries, 20, [None] * 9))
    assert (other.row_count, other.live_count, other.stats().coded_rows) == (810, 810, 810)
    assert other.append(anew.put(normals(1, 17))) == range(810, 811)
    for count, data in ((809, kept.data), (811, kept.data), (810, kept.data[:-1])):
        with pytest.raises(DamagedCodes):
            engine.table(17, anew).restore(data, count)
    with pytest.raises(DamagedCodes):
        engine.table(16, Store(16)).restore(kept.data, 810)


def test_what_cannot_be_restored_is_refused(engine: TestedEngine) -> None:
    def refused(table: Table, error: type[Exception], data: bytes) -> None:
        before = table.row_count
        with pytest.raises(error):
            table.restore(data, 5)
        assert (table.row_count, table.stats().coded_rows) == (before, 0)

    store = Store(3)
    for data in (b"", b"\x00", b"codes", bytes(1000), "\U0001f9f5".encode() * 100):
        refused(engine.table(3, store), DamagedCodes, data)
        refused(engine.table(3), ValueError, data)
    used = engine.table(3, store)
    used.append(store.put(normals(1, 3)))
    used.close()
    used.remove([0])
    with pytest.raises(ValueError):  # noqa: PT011 -- engines differ in what they find fault with first
        used.restore(b"codes", 5)
    assert used.row_count == 1


def test_stats_add_up(engine: TestedEngine) -> None:
    table = engine.table(17)
    empty = table.stats()
    assert (empty.rows, empty.dead_rows, empty.coded_rows, empty.code_bytes, empty.depth) == (0, 0, 0, 0, 0)
    assert (empty.trained_rows, empty.training_seconds, empty.state) == (0, 0.0, "exact")
    table.append(normals(700, 17))
    settle(table)
    table.remove(range(100))
    table.search(normals(3, 17), 10, [None] * 3)
    table.candidates(normals(2, 17), 10, [None] * 2)
    stats = table.stats()

    assert stats.rows == 700
    assert stats.dead_rows == 100
    assert stats.vector_bytes >= 600 * 17 * 4
    assert stats.crossover_rows >= 0
    assert stats.gathered + stats.scanned + stats.by_code in (0, 5)
    is_coded = stats.state == "coded"
    assert is_coded != engine.is_exact
    assert (stats.coded_rows, stats.trained_rows) == ((700, 700) if is_coded else (0, 0))
    assert (stats.code_bytes > 0, stats.training_seconds > 0) == (is_coded, is_coded)
    assert stats.by_code == (5 if is_coded else 0)
    table.compact()
    assert table.stats().rows - table.stats().dead_rows == table.live_count == 600


def test_a_closed_table_can_still_be_read_and_written(engine: TestedEngine) -> None:
    table, truth = engine.beside_truth(17, normals(300, 17))
    table.close()
    for each in (table, truth):
        assert each.append(normals(300, 17, seed=1)) == range(300, 600)
        each.remove(range(0, 600, 2))
    table.compact()
    table.close()
    queries = normals(5, 17, seed=2)
    engine.agree(table.search(queries, 10, [None] * 5), truth.search(queries, 10, [None] * 5))
    assert table.stats().state != "training"
