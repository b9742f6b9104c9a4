"""Search by codes: its recall with every kind of filter, with a single list and with inverted lists, and its plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from coded_tables import clustered, coded, grow, nearest_of, only, recall, settle

from thread_kernels import Hits, codebook, coded_table, create_engine
from thread_kernels.costs import RowCosts
from thread_kernels.engine_cpu import CpuTable
from thread_kernels.reach import Reach

WIDTH, ROWS = 64, 3_000
VECTORS = clustered(ROWS, WIDTH)
QUERIES = clustered(100, WIDTH, seed=2)
STRONGEST = np.linalg.eigh(VECTORS.T @ VECTORS)[1][:, -1]
SIDE = VECTORS @ STRONGEST
PICKED = np.random.default_rng(3).permutation(ROWS)

FILTERS = {
    "half": np.arange(0, ROWS, 2),
    "one side": np.sort(np.argsort(SIDE)[: ROWS // 4]),
    "one cluster": np.sort(np.argsort(-VECTORS @ VECTORS[7])[: ROWS // 5]),
    "10 %": np.sort(PICKED[: ROWS // 10]),
    "1 %": np.sort(PICKED[: ROWS // 100]),
    "1 % in one cluster": np.sort(np.argsort(-VECTORS @ VECTORS[7])[: ROWS // 100]),
    "0.1 %": np.sort(PICKED[: ROWS // 1_000]),
}


@pytest.fixture(scope="module", params=[1, 64], ids=["one list", "64 lists"])
def table(request: pytest.FixtureRequest) -> Iterator[CpuTable]:
    """A table that answers by codes whatever it costs."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param > 1:
            patch.setattr(codebook, "_ROWS_A_LIST", ROWS // request.param)
        made = coded(VECTORS)
        assert made.compression.current is not None
        assert made.compression.current.codes.codebook.lists == request.param
        yield made
        made.close()


def plans(table: CpuTable) -> tuple[int, int, int]:
    stats = table.stats()
    return stats.gathered, stats.scanned, stats.by_code


@pytest.mark.parametrize("k", [1, 10, 100, 400])
def test_recall_without_a_filter(table: CpuTable, k: int) -> None:
    gathered, scanned, by_code = plans(table)
    found = table.search(QUERIES, k, [None] * len(QUERIES))
    assert recall(found, nearest_of(VECTORS, QUERIES, k)) >= 0.97
    assert all(len(hits.rows) == k for hits in found)
    assert plans(table) == (gathered, scanned, by_code + len(QUERIES))


@pytest.mark.parametrize("k", [1, 10, 100, 400])
@pytest.mark.parametrize("passing", FILTERS)
def test_recall_with_a_filter(table: CpuTable, k: int, passing: str) -> None:
    rows = FILTERS[passing]
    queries = QUERIES[QUERIES @ STRONGEST > 0] if passing == "one side" else QUERIES  # all of them far from the rows
    gathered, scanned, by_code = plans(table)

    found = table.search(queries, k, [only(table, rows)] * len(queries))

    assert recall(found, nearest_of(VECTORS, queries, k, rows)) >= 0.95
    assert all(np.isin(hits.rows, rows).all() for hits in found)
    assert all(len(hits.rows) == min(k, len(rows)) for hits in found)
    assert plans(table) == (gathered, scanned, by_code + len(queries))


def test_every_row_that_passes_is_found_when_few_enough_pass(table: CpuTable) -> None:
    rows = FILTERS["1 %"]
    [hits] = table.search(QUERIES[:1], len(rows), [only(table, rows)])
    assert sorted(hits.rows.tolist()) == rows.tolist()


def test_fewer_than_k_mean_that_no_more_pass_however_few_lists_are_visited() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codebook, "_ROWS_A_LIST", 16)
        table = coded(VECTORS[:1_100])
    table.close()
    current = table.compression.current
    assert current is not None
    assert current.codes.codebook.lists == 64
    narrow = Reach(((10, 10, 0.02), (100, 100, 0.02), (1_000, 1_000, 0.02)), 1)
    table.compression.current = replace(current, whole=narrow, even=narrow, apart=narrow)
    rows = np.arange(0, 1_100, 20)
    for k in (10, 54, 55, 56):
        for ask in (table.search, table.candidates):
            [found] = ask(QUERIES[:1], k, [only(table, rows)])
            listed = found.rows if isinstance(found, Hits) else found
            assert len(listed) >= min(k, len(rows))
            assert np.isin(listed, rows).all()


def test_distances_are_exact_and_ascend(table: CpuTable) -> None:
    for hits, query in zip(table.search(QUERIES, 50, [None] * len(QUERIES)), QUERIES, strict=True):
        expected = ((VECTORS[hits.rows].astype(np.float64) - query) ** 2).sum(axis=1)
        np.testing.assert_allclose(hits.distances, expected, rtol=1e-6)
        assert (np.diff(hits.distances) >= 0).all()


@pytest.mark.parametrize("passing", [None, "half", "1 %"])
def test_candidates_hold_the_best_by_block_distance(table: CpuTable, passing: str | None) -> None:
    rows = np.arange(ROWS) if passing is None else FILTERS[passing]
    filter = None if passing is None else only(table, rows)
    queries = QUERIES[:60]
    best = [rows[np.argsort(table.rescore(query, rows).distances)[:10]] for query in queries]
    by_code = table.stats().by_code

    listed = table.candidates(queries, [10] * 59 + [0], [filter] * 60)

    assert recall(listed[:59], best[:59]) >= 0.97
    assert not len(listed[59])
    assert all(len(np.unique(each)) == len(each) and np.isin(each, rows).all() for each in listed)
    assert table.stats().by_code == by_code + 60


@pytest.mark.parametrize("lists", [1, 64])
def test_recall_after_a_third_of_the_rows_was_removed(lists: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, count = VECTORS[:2_000], 2_000
    monkeypatch.setattr(codebook, "_ROWS_A_LIST", count // lists)
    table = coded(vectors)
    for removed, still_coded in ((380, count), (660, count - 660)):  # more than a fifth are dropped from the codes
        gone, left = np.split(PICKED[count > PICKED], [removed])
        table.remove(gone)
        settle(table)

        assert table.stats().coded_rows == still_coded
        for rows, filter, target in ((left, None, 0.97), (left[left % 2 == 0], only(table, range(0, count, 2)), 0.95)):
            for k in (10, 100):
                found = table.search(QUERIES, k, [filter] * len(QUERIES))
                assert recall(found, nearest_of(vectors, QUERIES, k, np.sort(rows))) >= target
                assert not any(np.isin(hits.rows, gone).any() for hits in found)
    table.close()


def test_each_query_has_its_own_k_and_filter_by_code_too(table: CpuTable) -> None:
    even = only(table, FILTERS["half"])
    hits = table.search(QUERIES[[0, 1, 0, 1]], [3, 500, 0, 10], [None, even, even, None])
    assert [len(each.rows) for each in hits] == [3, 500, 0, 10]
    assert not (hits[1].rows % 2).any()


def test_the_cheapest_plan_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = VECTORS[:2_000]
    table = coded(vectors, above=250)
    table.close()
    current = table.compression.current
    assert current is not None
    few, half, every = np.arange(0, 2_000, 100), np.arange(0, 2_000, 2), np.arange(2_000)

    def plan(rows: np.ndarray, coded_row: float, gathered_row: float, scanned_row: float) -> str:
        """Which one is taken for the rows that pass, given what a row costs in each."""
        monkeypatch.setattr(coded_table, "row_costs", lambda width: RowCosts(scanned_row, gathered_row))
        table.compression.current = replace(current, coded_cost=coded_row, gathered_cost=gathered_row)
        before = plans(table)
        found = table.search(QUERIES, 10, [only(table, rows)] * len(QUERIES))
        [(name, count)] = [
            (name, now - then)
            for name, now, then in zip(("gather", "scan", "codes"), plans(table), before, strict=True)
            if now != then
        ]
        assert count == len(QUERIES)
        assert recall(found, nearest_of(vectors, QUERIES, 10, rows)) >= (0.97 if name == "codes" else 1.0)
        return name

    assert plan(every, 1e-9, 1e-6, 1e-6) == "codes"
    assert plan(half, 1e-9, 1e-6, 1e-6) == "codes"
    assert plan(few, 1e-9, 1e-6, 1e-6) == "gather"
    assert plan(every, 1e-6, 1e-6, 1e-7) == "scan"
    assert plan(half, 1e-6, 1e-6, 1e-7) == "scan"
    assert plan(half, 1e-6, 1e-8, 1e-7) == "gather"


@pytest.mark.parametrize(
    ("width", "rows", "state"), [(31, 17_000, "exact"), (32, 16_384, "exact"), (32, 16_385, "coded")]
)
def test_only_a_large_table_of_wide_vectors_is_coded_by_itself(width: int, rows: int, state: str) -> None:
    table = create_engine("cpu").table(width)
    assert isinstance(table, CpuTable)
    grow(table, clustered(rows, width))
    stats = table.stats()
    assert (stats.state, stats.coded_rows) == (state, rows if state == "coded" else 0)
    assert (stats.rows, stats.vector_bytes) == (rows, rows * width * 4)
    table.close()


@pytest.mark.parametrize(
    "vectors",
    [np.random.default_rng(0).standard_normal((2_000, WIDTH), dtype=np.float32), np.ones((2_000, WIDTH), np.float32)],
    ids=["noise", "all equal"],
)
def test_vectors_that_codes_cannot_tell_apart_are_still_found(vectors: np.ndarray) -> None:
    table = coded(vectors, above=250)
    queries = np.random.default_rng(1).standard_normal((100, WIDTH), dtype=np.float32)

    found = table.search(queries, 10, [None] * 100)

    if vectors.std():
        assert recall(found, nearest_of(vectors, queries, 10)) >= 0.97
    else:
        expected = ((queries - 1.0) ** 2).sum(axis=1)
        np.testing.assert_allclose([hits.distances for hits in found], np.repeat(expected[:, None], 10, 1), rtol=1e-5)
    table.close()
