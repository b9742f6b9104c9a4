"""A table with a store behind it: forgets the vectors that have codes, and reads those it measures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coded_tables import Store, clustered, coded, grow, nearest_of, only, recall, settle

from thread_kernels import coded_table
from thread_kernels.compression import CompressPolicy
from thread_kernels.costs import RowCosts
from thread_kernels.engine_cpu import CpuTable

WIDTH, ROWS = 48, 900
VECTORS = clustered(ROWS, WIDTH)
QUERIES = clustered(100, WIDTH, seed=2)


@pytest.fixture
def store() -> Store:
    return Store(WIDTH)


def test_vectors_are_forgotten_once_they_have_codes(store: Store) -> None:
    table = CpuTable(WIDTH, CompressPolicy(125, 8), store)
    grow(table, VECTORS[:500], store)
    assert table.stats().vector_bytes == 500 * WIDTH * 4
    grow(table, VECTORS[500:501], store)
    assert (table.stats().coded_rows, table.stats().vector_bytes) == (501, 0)

    grow(table, VECTORS[501:560], store)
    assert table.stats().vector_bytes == 59 * WIDTH * 4, "a few wait for their codes"
    grow(table, VECTORS[560:], store)
    assert (table.stats().coded_rows, table.stats().vector_bytes) == (ROWS, 0)
    store.read = 0
    assert recall(table.search(QUERIES, 10, [None] * 100), nearest_of(VECTORS, QUERIES, 10)) >= 0.97
    assert store.read > 0
    table.close()


def test_the_answers_are_those_of_a_table_that_keeps_its_vectors(store: Store) -> None:
    backed, keeping = coded(VECTORS, store=store), coded(VECTORS)
    for table, each in ((backed, store), (keeping, None)):
        grow(table, QUERIES, each)
        table.remove(range(0, ROWS, 3))
        settle(table)
    assert (backed.stats().dead_rows, keeping.stats().dead_rows) == (0, 0)

    for rows in (None, range(500), range(0, ROWS, 61)):
        filters = [[None if rows is None else only(table, rows)] * 100 for table in (backed, keeping)]
        truth = nearest_of(
            np.concatenate([VECTORS, QUERIES]),
            QUERIES,
            10,
            np.setdiff1d(np.arange(ROWS + 100) if rows is None else rows, np.arange(0, ROWS, 3)),
        )
        for table, each in zip((backed, keeping), filters, strict=True):
            found = table.search(QUERIES, 10, each)
            assert recall(found, truth) >= 0.97
            for hits, query in zip(found, QUERIES, strict=True):
                vectors = np.concatenate([VECTORS, QUERIES])[hits.rows].astype(np.float64)
                np.testing.assert_allclose(hits.distances, ((vectors - query) ** 2).sum(axis=1), rtol=1e-6, atol=1e-12)
    rows = [5, ROWS + 1, 5, ROWS - 1, 1]
    one, other = (table.rescore(QUERIES[0], rows) for table in (backed, keeping))
    np.testing.assert_array_equal(one.distances, other.distances)
    np.testing.assert_array_equal(one.cosines, other.cosines)
    backed.close()
    keeping.close()


def test_a_search_by_code_reads_only_the_rows_it_measures(store: Store) -> None:
    table = coded(VECTORS, store=store)
    store.read = 0
    table.search(QUERIES[:1], 10, [None])
    look = table.compression.current.whole.of(10, ROWS) if table.compression.current else None
    assert look is not None
    assert store.read == look.depth < ROWS / 3

    store.read = 0
    table.candidates(QUERIES[:1], 10, [None])
    assert store.read == 0
    table.rescore(QUERIES[0], [1, 2, 3])
    assert store.read == 3
    table.close()


def test_an_exact_scan_of_a_store_is_reckoned_with_what_reading_it_costs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = coded(VECTORS, above=125, store=store)
    table.close()
    current = table.compression.current
    assert current is not None
    table.compression.current = replace(current, coded_cost=1e-9, gathered_cost=1e-6)
    monkeypatch.setattr(coded_table, "row_costs", lambda width: RowCosts(scanned=1e-12, gathered=1e-12))
    table.search(QUERIES, 10, [None] * 100)
    assert table.stats().by_code == 100


def test_rows_gone_from_the_store_are_never_found(store: Store) -> None:
    """A row may be deleted from the store before the table is told."""
    table = coded(VECTORS, store=store)
    gone, left = np.arange(0, ROWS, 2), np.arange(1, ROWS, 2)
    store.delete(gone)
    few = only(table, range(100))

    for filter, rows in ((None, left), (few, np.arange(1, 100, 2))):
        for hits in table.search(QUERIES, 10, [filter] * 100):
            assert np.isin(hits.rows, rows).all()
            assert np.isfinite(hits.distances).all()
    assert table.search(VECTORS[1:2], 1, [None])[0].rows.tolist() == [1]
    scores = table.rescore(VECTORS[1], [0, 1, 2])
    assert np.isinf(scores.distances).tolist() == [True, False, True]
    np.testing.assert_allclose(scores.cosines, [0, 1, 0], rtol=1e-6)
    table.close()


@pytest.mark.parametrize("above", [0, None], ids=["by code", "exactly"])
def test_what_is_left_is_found_when_nearly_everything_is_gone_from_the_store(store: Store, above: int | None) -> None:
    table = coded(VECTORS, store=store)
    if above is None:
        table.compression.current = None
    store.delete(range(3, ROWS))
    [everything, mine] = table.search(VECTORS[[2, 2]], [10, 290], [None, only(table, range(300))])
    assert everything.rows[0] == 2
    assert set(everything.rows) <= {0, 1, 2}
    assert sorted(mine.rows.tolist()) == [0, 1, 2]
    table.close()


def test_a_table_that_is_not_coded_reads_nothing(store: Store) -> None:
    table = coded(VECTORS, above=ROWS, store=store)
    found = table.search(QUERIES, 10, [None] * 100)
    table.rescore(QUERIES[0], range(ROWS))
    assert recall(found, nearest_of(VECTORS, QUERIES, 10)) == 1.0
    assert store.read == 0
    table.close()


def test_codes_are_made_although_rows_are_gone_from_the_store(store: Store) -> None:
    """Training again reads what was forgotten."""
    table = coded(VECTORS[:110], store=store)
    store.delete(range(100))
    grow(table, VECTORS[110:], store)
    assert (table.stats().state, table.stats().trained_rows) == ("coded", ROWS)
    assert table.stats().coded_rows == ROWS - 100
    found = table.search(QUERIES, 10, [None] * 100)
    assert recall(found, nearest_of(VECTORS, QUERIES, 10, np.arange(100, ROWS))) >= 0.97
    table.close()
