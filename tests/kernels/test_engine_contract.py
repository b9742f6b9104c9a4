"""What every engine owes its callers: the rows and the numbers of the reference, and refusals in the same words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engines import TestedEngine, normals, settle

from thread_kernels import MAX_SQUARED_NORM, Filter, Hits

WIDTHS = [1, 17, 384, 1024]
SIZES = [0, 1, 31, 1000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("width", WIDTHS)
def test_search_finds_what_the_reference_finds(engine: TestedEngine, width: int, size: int) -> None:
    if not engine.is_exact:
        size = min(size, 200_000 // width)  # training on many wide vectors takes long
    vectors = normals(size, width)
    table, truth = engine.beside_truth(width, vectors)
    queries = np.concatenate([normals(5, width, seed=1), vectors[:2]])

    ordered = truth.search(queries, size, [None] * len(queries))

    for k in (0, 1, 10, size, size + 7):
        found = table.search(queries, k, [None] * len(queries))
        engine.agree(found, [Hits(hits.rows[:k], hits.distances[:k]) for hits in ordered])
        assert all(len(hits.rows) == min(k, size) for hits in found)
        for hits, query in zip(found, queries, strict=True):
            exact = ((vectors[hits.rows].astype(np.float64) - query) ** 2).sum(axis=1)
            np.testing.assert_allclose(hits.distances, exact, rtol=1e-6)
    for query, hits in zip(queries, ordered, strict=True):
        one_by_one = table.search(query[None], 10, [None])
        engine.agree(one_by_one, [Hits(hits.rows[:10], hits.distances[:10])], missed=0.4)


def test_rows_beyond_one_block_of_memory_are_found(engine: TestedEngine) -> None:
    vectors = normals(70_000 if engine.is_exact else 2_000, 8)
    table, truth = engine.beside_truth(8, *np.array_split(vectors, 6))
    rows = [len(vectors) - 1, 0, len(vectors) // 2, len(vectors) // 2, 255, 256, 1_023, 1_024]

    engine.agree(table.search(vectors[rows], 50, [None] * 8), truth.search(vectors[rows], 50, [None] * 8))
    np.testing.assert_allclose(
        table.rescore(vectors[5], rows).distances, truth.rescore(vectors[5], rows).distances, rtol=1e-5
    )


def test_each_query_has_its_own_k_and_filter(engine: TestedEngine) -> None:
    table = engine.table(17)
    table.append(normals(100, 17))
    even, none = table.row_set(), Filter.any_of()
    even.add(range(0, 100, 2))
    filters = [None, Filter.any_of(even), none, Filter.any_of(even)]

    hits = table.search(normals(4, 17, seed=1), [3, 5, 7, 60], filters)

    assert [len(each.rows) for each in hits] == [3, 5, 0, 50]
    assert not (hits[1].rows % 2).any()
    assert table.search(np.empty((0, 17)), 10, []) == []
    assert table.candidates(np.empty((0, 17)), 10, []) == []


def test_equal_distances_are_ordered_by_row_number(engine: TestedEngine) -> None:
    vector, other = normals(1, 384), normals(1, 384, seed=1)
    table, _ = engine.beside_truth(384, np.repeat(other, 300, 0), np.repeat(vector, 700, 0), np.repeat(other, 300, 0))

    for query, k, duplicates in ((vector, 20, np.arange(300, 1000)), (other, 600, np.r_[0:300, 1000:1300])):
        [hits] = table.search(query, k, [None])
        assert not hits.distances.any()
        assert len(hits.rows) == k
        assert (np.diff(hits.rows) > 0).all()
        assert np.isin(hits.rows, duplicates).all()
        if engine.is_exact:
            np.testing.assert_array_equal(hits.rows, duplicates[:k])


def test_near_rows_of_large_vectors_keep_their_order(engine: TestedEngine) -> None:
    """The rows differ in the last bits of large numbers, where |q|² + |x|² − 2 q·x in float32 is noise."""
    base = normals(1, 64) * 1000
    table, _ = engine.beside_truth(64, np.concatenate([base + np.float32(step) for step in (0.5, 0.25, 0.125, 0.0, 1)]))

    [hits] = table.search(base, 5, [None])

    assert hits.rows.tolist() == [3, 2, 1, 0, 4]
    np.testing.assert_allclose(hits.distances, [0, 1, 4, 16, 64], rtol=1e-3)


def test_one_huge_row_does_not_blur_the_others(engine: TestedEngine) -> None:
    vectors = normals(1000, 17)
    vectors[500] *= 1e15
    table, truth = engine.beside_truth(17, vectors)
    engine.agree(table.search(vectors[:9], 10, [None] * 9), truth.search(vectors[:9], 10, [None] * 9))


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 3e-22, 1e-19])
def test_tiny_vectors_are_answered_with_finite_numbers(engine: TestedEngine, scale: float) -> None:
    vectors = normals(400, 17) * np.float32(scale)
    table, truth = engine.beside_truth(17, vectors)

    engine.agree(table.search(vectors[:9], 90, [None] * 9), truth.search(vectors[:9], 90, [None] * 9))
    scores = table.rescore(vectors[0], range(400))
    assert np.isfinite(scores.distances).all()
    if scale in (0.0, 1e-30):
        np.testing.assert_allclose(scores.cosines, truth.rescore(vectors[0], range(400)).cosines, atol=1e-5)


def test_vectors_at_the_bound_give_finite_distances(engine: TestedEngine) -> None:
    edge = np.float32(np.sqrt(MAX_SQUARED_NORM) * 0.999)
    vectors = np.array([[edge, 0], [-edge, 0], [0, 0]], dtype=np.float32)
    table, _ = engine.beside_truth(2, vectors)

    [hits] = table.search(vectors[:1], 3, [None])
    scores = table.rescore(vectors[0], [1, 2])

    assert hits.rows.tolist() == [0, 2, 1]
    assert np.isfinite(hits.distances).all()
    np.testing.assert_allclose(scores.distances, [2 * edge, edge], rtol=1e-5)
    np.testing.assert_allclose(scores.cosines, [-1, 0])


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.nan, "row 1: NaN"), (np.inf, "row 1: NaN"), (-np.inf, "row 1: NaN"), (1e30, "row 1: the sq")],
)
def test_a_vector_without_a_distance_is_refused_and_nothing_is_added(
    engine: TestedEngine, value: float, message: str
) -> None:
    table = engine.table(17)
    bad = normals(3, 17)
    bad[1, 4] = value

    with pytest.raises(ValueError, match=message):
        table.append(bad)
    for ask in (table.search, table.candidates):
        with pytest.raises(ValueError, match=message.replace("row", "query")):
            ask(bad, 1, [None] * 3)
    with pytest.raises(ValueError, match="query 0"):
        table.rescore(bad[1], [])
    assert table.row_count == 0


def test_what_does_not_fit_the_table_is_refused(engine: TestedEngine) -> None:
    table, stranger = engine.table(17), engine.table(17).row_set()
    table.append(normals(5, 17))
    query = normals(1, 17)
    mine = table.row_set()

    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: engine.table(0), "at least 1"),
        (lambda: table.append(normals(2, 16)), r"\[n, 17\], got \[2, 16\]"),
        (lambda: table.append(np.full((1, 17), 1e300)), "row 0"),
        (lambda: table.search(query[0], 1, [None]), r"\[n, 17\]"),
        (lambda: table.search(query, 1, []), "as many"),
        (lambda: table.search(query, [1, 2], [None]), "as many"),
        (lambda: table.search(query, -1, [None]), "at least 0"),
        (lambda: table.search(query, 1, [Filter.any_of(mine, stranger)]), "another table"),
        (lambda: table.candidates(query, 1, []), "as many"),
        (lambda: table.candidates(query, -1, [None]), "at least 0"),
        (lambda: table.candidates(query, 1, [Filter.any_of(stranger)]), "another table"),
        (lambda: table.count(Filter.any_of(stranger)), "another table"),
        (lambda: table.remove(5), "row 5 was never appended"),
        (lambda: table.remove([0, -1]), "row -1 was never appended"),
        (lambda: table.rescore(query[0], [1.5]), "integers"),
        (lambda: table.rescore(query[0], [5]), "row 5 was never appended"),
        (lambda: mine.add(range(3, 6)), "row 5 was never appended"),
        (lambda: mine.discard([7]), "row 7 was never appended"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
    assert table.live_count == 5
    assert len(mine) == 0


def test_a_filter_is_a_conjunction_of_unions(engine: TestedEngine) -> None:
    table, _ = engine.beside_truth(17, normals(60, 17))
    two, three, five = (table.row_set() for _ in range(3))
    for step, each in ((2, two), (3, three), (5, five)):
        each.add(range(0, 60, step))

    def passing(filter: Filter) -> list[int]:
        [hits] = table.search(np.zeros((1, 17)), 60, [filter])
        [listed] = table.candidates(np.zeros((1, 17)), 60, [filter])
        assert table.count(filter) == len(hits.rows)
        assert sorted(listed.tolist()) == sorted(hits.rows.tolist())
        return sorted(hits.rows.tolist())

    assert passing(Filter.any_of(two)) == list(range(0, 60, 2))
    assert passing(Filter.any_of(two, three)) == [row for row in range(60) if row % 2 == 0 or row % 3 == 0]
    assert passing(Filter.any_of(two) & Filter.any_of(three, five)) == [
        row for row in range(60) if row % 2 == 0 and (row % 3 == 0 or row % 5 == 0)
    ]
    assert passing(Filter.any_of(two) & Filter.any_of(three) & Filter.any_of(five)) == [0, 30]
    assert passing(Filter.any_of(two) & Filter.any_of()) == []
    assert passing(Filter(())) == list(range(60))

    mine = Filter.any_of(five)
    five.discard([0, 5, 10, 11])
    assert passing(mine) == list(range(15, 60, 5))
    assert 15 in five
    assert 10 not in five
    assert -1 not in five
    assert "15" not in five
    assert len(five) == 9


@pytest.mark.parametrize("width", [*WIDTHS, 48])
def test_rescoring_gives_block_distances_and_cosines_in_the_given_order(engine: TestedEngine, width: int) -> None:
    vectors = normals(100, width)
    vectors[7] = 0
    table, truth = engine.beside_truth(width, vectors)
    rows = [50, 3, 7, 3, 99, 0]

    for query in (vectors[50], np.zeros(width, dtype=np.float32)):
        scores, expected = table.rescore(query, rows), truth.rescore(query, rows)
        assert scores.distances.dtype == scores.cosines.dtype == np.float32
        np.testing.assert_allclose(scores.distances, expected.distances, rtol=1e-5)
        np.testing.assert_allclose(scores.cosines, expected.cosines, atol=1e-5)
        assert scores.cosines[2] == 0
    assert table.rescore(vectors[50], rows).distances[0] == 0
    assert len(table.rescore(vectors[0], []).distances) == 0
    np.testing.assert_array_equal(vectors[50], normals(100, width)[50], "what is given is left as it is")


def test_the_block_distance_is_the_sum_of_the_distances_inside_16_blocks(engine: TestedEngine) -> None:
    table = engine.table(32)
    table.append(np.ones((1, 32)))
    scores = table.rescore(np.zeros(32), [0])
    np.testing.assert_allclose(scores.distances, [16 * np.sqrt(2)], rtol=1e-6)


def test_candidates_hold_the_best_by_block_distance(engine: TestedEngine) -> None:
    vectors = normals(1000, 64)
    table = engine.table(64)
    table.append(vectors)
    settle(table)
    few = table.row_set()
    few.add(range(0, 1000, 100))
    held = []
    for query in normals(5, 64, seed=1):
        best = np.argsort(table.rescore(query, range(1000)).distances)[:10]
        some, none, mine = table.candidates(
            np.repeat(query[None], 3, axis=0), [10, 0, 10], [None, None, Filter.any_of(few)]
        )
        held.append(np.isin(best, some))
        assert some.dtype == np.int64
        assert len(np.unique(some)) == len(some)
        assert len(none) == 0
        assert sorted(mine) == list(range(0, 1000, 100))
    assert np.mean(held) >= (1.0 if engine.is_exact else 0.95)
    assert len(table.candidates(vectors[:1], 900, [None])[0]) >= 900
