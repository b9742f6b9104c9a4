"""What every engine owes its callers in any order and at the same time: a true state of the table."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import numpy as np
from engines import PATIENCE_S, TestedEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thread_kernels import Filter, Table
from thread_kernels.reference import ReferenceEngine

small_vectors = st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), max_size=6)
row_picks = st.lists(st.integers(0, 40), max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), small_vectors),
        st.tuples(st.just("remove"), row_picks),
        st.tuples(st.just("compact"), st.just([])),
        st.tuples(st.sampled_from(["add 0", "add 1", "discard 0", "discard 1"]), row_picks),
        st.tuples(st.just("search"), small_vectors),
    ),
    max_size=25,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, k=st.integers(0, 8))
def test_any_history_gives_the_answers_of_the_reference(
    engine: TestedEngine, steps: list[tuple[str, list]], k: int
) -> None:
    tables: list[Table] = [engine.table(3), ReferenceEngine().table(3)]
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
            elif action == "compact":
                table.compact()
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
            engine.agree(*answers, missed=1.0)
        assert tables[0].live_count == tables[1].live_count


def test_searches_beside_changes_see_a_true_state(engine: TestedEngine) -> None:
    """Row n is (n, 0, 0, …), so the nearest rows of any query are known.

    Rows below `removed` are gone, rows below `removing` may be.
    """
    table = engine.table(17)
    owned = table.row_set()
    mine = Filter.any_of(owned)
    removing, removed, done, errors = [0], [0], Event(), []

    def write() -> None:
        for first in range(0, 20_000, 100):
            vectors = np.zeros((100, 17), dtype=np.float32)
            vectors[:, 0] = np.arange(first, first + 100)
            owned.add(table.append(vectors))
            if first >= 1000:
                removing[0] = first - 900
                table.remove(range(first - 1000, first - 900))
                removed[0] = first - 900

    def compact() -> None:
        while not done.wait(0.01):
            table.compact()
            stats = table.stats()
            assert 0 <= stats.dead_rows <= stats.rows <= 20_000

    def read(filter: Filter | None) -> None:
        while not done.is_set():
            gone, count = removed[0], len(owned)
            if not count:
                continue
            query = np.zeros((1, 17), dtype=np.float32)
            query[0, 0] = count - 1
            [hits] = table.search(query, 5, [filter])
            assert count - 1 in hits.rows[:1] or removing[0] >= count or not engine.is_exact
            assert hits.rows.min(initial=gone) >= gone
            np.testing.assert_allclose(hits.distances, (hits.rows - np.float32(count - 1)) ** 2, rtol=1e-6)

    def watched(work: Callable[..., None], *given: object) -> Thread:
        def run() -> None:
            try:
                work(*given)
            except BaseException as error:
                errors.append(error)
            finally:
                if work is write:
                    done.set()

        return Thread(target=run)

    threads = [watched(write), watched(compact), *(watched(read, each) for each in (None, mine, mine))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not errors, errors[0]
    assert done.is_set()
    assert (table.row_count, table.live_count) == (20_000, 1_000)
