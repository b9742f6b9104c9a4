"""What every engine owes its callers: the same rows and the same numbers as the reference, for every exact search."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thread_kernels import MAX_SQUARED_NORM, Engine, Filter, Hits, Table, create_engine
from thread_kernels.reference import ReferenceEngine

WIDTHS = [1, 17, 384, 1024]
SIZES = [0, 1, 31, 1000]


@pytest.fixture(params=[ReferenceEngine, create_engine], ids=["reference", "cpu"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.param()


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def assert_same(found: list[Hits], expected: list[Hits]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.rows.dtype == np.int64
        assert one.distances.dtype == np.float32
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_allclose(one.distances, other.distances, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("width", WIDTHS)
def test_search_finds_what_the_reference_finds(engine: Engine, width: int, size: int) -> None:
    table, truth = engine.table(width), ReferenceEngine().table(width)
    for each in (table, truth):
        assert each.append(normals(size, width)) == range(size)
    queries = np.concatenate([normals(5, width, seed=1), normals(size, width)[:2]])

    for k in (0, 1, 10, size, size + 7):
        found = table.search(queries, k, [None] * len(queries))
        assert_same(found, truth.search(queries, k, [None] * len(queries)))
        assert all(len(hits.rows) == min(k, size) for hits in found)
    for query in queries:
        assert_same(table.search(query[None], 10, [None]), truth.search(query[None], 10, [None]))


def test_rows_beyond_one_block_of_memory_are_found() -> None:
    table, truth = create_engine("cpu").table(8), ReferenceEngine().table(8)
    vectors = normals(40_000, 8)
    for each in (table, truth):
        for start in range(0, 40_000, 7_001):
            each.append(vectors[start : start + 7_001])
    rows = [39_999, 16_383, 16_384, 0, 16_384, 32_768]

    assert_same(table.search(vectors[rows], 50, [None] * 6), truth.search(vectors[rows], 50, [None] * 6))
    np.testing.assert_allclose(
        table.rescore(vectors[5], rows).distances, truth.rescore(vectors[5], rows).distances, rtol=1e-5
    )


def test_each_query_has_its_own_k_and_filter(engine: Engine) -> None:
    table = engine.table(17)
    table.append(normals(100, 17))
    even, none = table.row_set(), Filter.any_of()
    even.add(range(0, 100, 2))
    filters = [None, Filter.any_of(even), none, Filter.any_of(even)]

    hits = table.search(normals(4, 17, seed=1), [3, 5, 7, 60], filters)

    assert [len(each.rows) for each in hits] == [3, 5, 0, 50]
    assert not (hits[1].rows % 2).any()
    assert table.search(np.empty((0, 17)), 10, []) == []


def test_equal_distances_are_ordered_by_row_number(engine: Engine) -> None:
    table = engine.table(384)
    vector, other = normals(1, 384), normals(1, 384, seed=1)
    table.append(np.repeat(other, 500, axis=0))
    table.append(np.repeat(vector, 1500, axis=0))
    table.append(np.repeat(other, 500, axis=0))

    [hits] = table.search(vector, 20, [None])
    np.testing.assert_array_equal(hits.rows, np.arange(500, 520))
    assert not hits.distances.any()
    [hits] = table.search(other, 1000, [None])
    np.testing.assert_array_equal(hits.rows, np.r_[0:500, 2000:2500])


def test_near_rows_of_large_vectors_keep_their_order(engine: Engine) -> None:
    """The rows differ in the last bits of large numbers, where |q|² + |x|² − 2 q·x in float32 is noise."""
    table = engine.table(64)
    base = normals(1, 64) * 1000
    table.append(np.concatenate([base + np.float32(step) for step in (0.5, 0.25, 0.125, 0.0, 1.0)]))

    [hits] = table.search(base, 5, [None])

    assert hits.rows.tolist() == [3, 2, 1, 0, 4]
    np.testing.assert_allclose(hits.distances, [0, 1, 4, 16, 64], rtol=1e-3)


def test_one_huge_row_does_not_blur_the_others(engine: Engine) -> None:
    table, truth = engine.table(17), ReferenceEngine().table(17)
    vectors = normals(1000, 17)
    vectors[500] *= 1e15
    for each in (table, truth):
        each.append(vectors)
    assert_same(table.search(vectors[:9], 10, [None] * 9), truth.search(vectors[:9], 10, [None] * 9))


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 3e-22, 1e-19])
def test_tiny_vectors_are_answered_with_finite_numbers(engine: Engine, scale: float) -> None:
    table, truth = engine.table(17), ReferenceEngine().table(17)
    vectors = normals(1000, 17) * np.float32(scale)
    for each in (table, truth):
        each.append(vectors)

    assert_same(table.search(vectors[:9], 90, [None] * 9), truth.search(vectors[:9], 90, [None] * 9))
    scores = table.rescore(vectors[0], range(1000))
    assert np.isfinite(scores.distances).all()
    if scale in (0.0, 1e-30):
        np.testing.assert_allclose(scores.cosines, truth.rescore(vectors[0], range(1000)).cosines, atol=1e-5)


def test_vectors_at_the_bound_give_finite_distances(engine: Engine) -> None:
    table = engine.table(2)
    edge = np.float32(np.sqrt(MAX_SQUARED_NORM) * 0.999)
    vectors = np.array([[edge, 0], [-edge, 0], [0, 0]], dtype=np.float32)
    table.append(vectors)

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
    engine: Engine, value: float, message: str
) -> None:
    table = engine.table(17)
    bad = normals(3, 17)
    bad[1, 4] = value

    with pytest.raises(ValueError, match=message):
        table.append(bad)
    with pytest.raises(ValueError, match=message.replace("row", "query")):
        table.search(bad, 1, [None] * 3)
    with pytest.raises(ValueError, match="query 0"):
        table.rescore(bad[1], [])
    assert table.row_count == 0


def test_what_does_not_fit_the_table_is_refused(engine: Engine) -> None:
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
        (lambda: table.count(Filter.any_of(stranger)), "another table"),
        (lambda: table.remove(5), "row 5 was never appended"),
        (lambda: table.remove([0, -1]), "row -1 was never appended"),
        (lambda: table.rescore(query[0], [1.5]), "integers"),
        (lambda: mine.add(range(3, 6)), "row 5 was never appended"),
        (lambda: mine.discard([7]), "row 7 was never appended"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
    assert table.live_count == 5
    assert len(mine) == 0


def test_removed_rows_never_come_back(engine: Engine) -> None:
    table = engine.table(17)
    vectors = normals(200, 17)
    table.append(vectors)
    everything = table.row_set()
    everything.add(range(200))

    table.remove(range(50, 150))
    table.remove([60, 60, 199])

    assert (table.row_count, table.live_count) == (200, 99)
    assert table.count(Filter.any_of(everything)) == 99
    for each in (None, Filter.any_of(everything)):
        [hits] = table.search(vectors[60:61], 200, [each])
        assert sorted(hits.rows) == [*range(50), *range(150, 199)]
    everything.add(60)
    assert table.append(vectors[60:61]) == range(200, 201)
    [hits] = table.search(vectors[60:61], 1, [None])
    assert hits.rows.tolist() == [200]

    table.remove(range(201))
    assert table.live_count == 0
    assert len(table.search(vectors[:1], 5, [None])[0].rows) == 0


def test_a_filter_is_a_conjunction_of_unions(engine: Engine) -> None:
    table = engine.table(17)
    table.append(normals(60, 17))
    two, three, five = (table.row_set() for _ in range(3))
    for step, each in ((2, two), (3, three), (5, five)):
        each.add(range(0, 60, step))

    def passing(filter: Filter) -> list[int]:
        [hits] = table.search(np.zeros((1, 17)), 60, [filter])
        assert table.count(filter) == len(hits.rows)
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
def test_rescoring_gives_block_distances_and_cosines_in_the_given_order(engine: Engine, width: int) -> None:
    table, truth = engine.table(width), ReferenceEngine().table(width)
    vectors = normals(100, width)
    vectors[7] = 0
    for each in (table, truth):
        each.append(vectors)
    table.remove([3])
    rows = [50, 3, 7, 3, 99, 0]

    for query in (vectors[50], np.zeros(width, dtype=np.float32)):
        scores, expected = table.rescore(query, rows), truth.rescore(query, rows)
        assert scores.distances.dtype == scores.cosines.dtype == np.float32
        np.testing.assert_allclose(scores.distances, expected.distances, rtol=1e-5)
        np.testing.assert_allclose(scores.cosines, expected.cosines, atol=1e-5)
        assert scores.cosines[2] == 0
    assert table.rescore(vectors[50], rows).distances[0] == 0
    assert len(table.rescore(vectors[0], []).distances) == 0


def test_the_block_distance_is_the_sum_of_the_distances_inside_16_blocks(engine: Engine) -> None:
    table = engine.table(32)
    table.append(np.ones((1, 32)))
    scores = table.rescore(np.zeros(32), [0])
    np.testing.assert_allclose(scores.distances, [16 * np.sqrt(2)], rtol=1e-6)


def test_candidates_hold_the_best_by_block_distance(engine: Engine) -> None:
    table = engine.table(64)
    vectors = normals(2000, 64)
    table.append(vectors)
    few = table.row_set()
    few.add(range(0, 2000, 100))
    for query in normals(5, 64, seed=1):
        best = np.argsort(table.rescore(query, range(2000)).distances)[:10]
        some, none, mine = table.candidates(
            np.repeat(query[None], 3, axis=0), [10, 0, 10], [None, None, Filter.any_of(few)]
        )
        assert np.isin(best, some).all()
        assert len(np.unique(some)) == len(some)
        assert len(none) == 0
        assert sorted(mine) == list(range(0, 2000, 100))
    assert len(table.candidates(vectors[:1], 1000, [None])[0]) >= 1000


small_vectors = st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), max_size=6)
row_picks = st.lists(st.integers(0, 40), max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), small_vectors),
        st.tuples(st.just("remove"), row_picks),
        st.tuples(st.sampled_from(["add 0", "add 1", "discard 0", "discard 1"]), row_picks),
        st.tuples(st.just("search"), small_vectors),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps, k=st.integers(0, 8))
def test_any_history_gives_the_answers_of_the_reference(steps: list[tuple[str, list]], k: int) -> None:
    tables: list[Table] = [create_engine("cpu").table(3), ReferenceEngine().table(3)]
    sets = [[table.row_set(), table.row_set()] for table in tables]
    for action, values in steps:
        vectors = np.array(values, dtype=np.float32).reshape(-1, 3) if action in ("append", "search") else None
        answers = []
        for table, (first, second) in zip(tables, sets, strict=True):
            rows = [row for row in values if vectors is None and row < table.row_count]
            if action == "append":
                table.append(vectors)
            elif action == "remove":
                table.remove(rows)
            elif action == "search":
                filters = [
                    None,
                    Filter.any_of(first),
                    Filter.any_of(first, second),
                    Filter.any_of(first) & Filter.any_of(second),
                ]
                queries = np.repeat(vectors, 4, axis=0)
                answers.append(table.search(queries, k, filters * len(vectors)))
                assert table.count(filters[3]) == len(table.search(np.zeros((1, 3)), 100, [filters[3]])[0].rows)
            else:
                getattr((first, second)[int(action[-1])], action.split()[0])(rows)
        if answers:
            assert_same(*answers)
        assert tables[0].live_count == tables[1].live_count


def test_searches_beside_appends_and_removals_see_a_true_state() -> None:
    """Row n is (n, 0, 0, …), so the nearest rows of any query are known.

    Rows below `removed` are gone, rows below `removing` may be.
    """
    table = create_engine("cpu").table(17)
    owned = table.row_set()
    mine = Filter.any_of(owned)
    removing, removed, done, errors = [0], [0], Event(), []

    def write() -> None:
        try:
            for first in range(0, 30_000, 100):
                vectors = np.zeros((100, 17), dtype=np.float32)
                vectors[:, 0] = np.arange(first, first + 100)
                owned.add(table.append(vectors))
                if first >= 1000:
                    removing[0] = first - 900
                    table.remove(range(first - 1000, first - 900))
                    removed[0] = first - 900
        finally:
            done.set()

    def read(filter: Filter | None) -> None:
        try:
            while not done.is_set():
                gone, count = removed[0], len(owned)
                if not count:
                    continue
                query = np.zeros((1, 17), dtype=np.float32)
                query[0, 0] = count - 1
                [hits] = table.search(query, 5, [filter])
                assert count - 1 in hits.rows[:1] or removing[0] >= count
                assert hits.rows.min(initial=gone) >= gone
                np.testing.assert_allclose(hits.distances, (hits.rows - np.float32(count - 1)) ** 2, rtol=1e-6)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=write), *(Thread(target=read, args=(each,)) for each in (None, mine, mine))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors, errors[0]
    assert done.is_set()
    assert (table.row_count, table.live_count) == (30_000, 1_000)
