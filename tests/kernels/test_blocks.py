"""Blocks of rows against a plain array: whatever happens to them, a view shows what was written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from coded_tables import Store
from hypothesis import given, settings
from hypothesis import strategies as st

from thread_kernels import blocks
from thread_kernels.blocks import Blocks, View
from thread_kernels.exact import Piece, floors_of

WIDTH = 3


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_SMALLEST_PIECE", 4)
        patch.setattr(blocks, "_LARGEST_PIECE", 16)
        patch.setattr(blocks, "_GATHERED_ROWS", 5)
        yield


def numbered(first: int, count: int) -> np.ndarray:
    """Row n is (n, n + ¼, n + ½): no two alike."""
    return (np.arange(first, first + count)[:, None] + np.arange(WIDTH) / 4).astype(np.float32)


class Histories:
    """Blocks, a plain array of the same rows, and which of them may be gone."""

    def __init__(self, is_backed: bool) -> None:
        self.store = Store(WIDTH) if is_backed else None
        self.blocks = Blocks(WIDTH, self.store)
        self.rows = numbered(0, 0)
        self.removed: set[int] = set()
        self.gone: set[int] = set()

    def write(self, count: int) -> None:
        vectors = numbered(len(self.rows), count)
        if self.store is not None:
            self.store.put(vectors)
        self.rows = np.concatenate([self.rows, vectors])
        self.blocks.write(vectors, (vectors.astype(np.float64) ** 2).sum(axis=1))

    def squeeze(self, picks: list[int]) -> None:
        self.removed |= {row for row in picks if row < len(self.rows)}
        removed = np.array(sorted(self.removed), dtype=np.int64)
        before = self.blocks.kept_bytes
        untouched = self.blocks.squeeze(removed)
        dropped = {row for row in self.removed if row < untouched}
        assert before - self.blocks.kept_bytes == len(dropped - self.gone - self.in_store()) * WIDTH * 4
        self.gone |= dropped
        assert len(self.rows) - untouched <= 16

    def in_store(self) -> set[int]:
        return set(range(self.blocks.view.kept_from)) if self.store is not None else set()

    def release(self, row: int) -> None:
        before = self.blocks.view.kept_from
        self.blocks.release(min(row, len(self.rows)))
        assert before <= self.blocks.view.kept_from <= (min(max(row, before), len(self.rows)) if self.store else 0)

    def check(self, view: View, count: int, picks: list[int], start: int, stop: int) -> None:
        """`count`: rows when `view` was taken; those removed since may be gone from newer views only."""
        rows = np.array(sorted({pick for pick in picks if pick < count}), dtype=np.int64)
        vectors = view.vectors(rows)
        for row, vector in zip(rows.tolist(), vectors, strict=True):
            if row in self.removed and np.isnan(vector).all():
                continue
            np.testing.assert_array_equal(vector, self.rows[row])

        live = [row for row in rows.tolist() if row not in self.removed]
        seen = self.seen(view.gather(rows))
        assert set(live) <= set(seen) <= set(rows.tolist())

        start, stop = sorted((min(start, count), min(stop, count)))
        mask = np.zeros(count, dtype=np.bool_)
        mask[rows] = True
        everything = set(range(start, stop))
        for masked, wanted in ((None, everything), (mask, everything & set(rows.tolist()))):
            seen = self.seen(view.scan(start, stop, masked))
            assert wanted - self.removed <= set(seen) <= wanted
            assert seen == sorted(set(seen)), "every row once, ascending"

    def seen(self, pieces: Iterator[Piece]) -> list[int]:
        """The rows of pieces, whose numbers, norms and bounds are checked; those that are gone are NaN."""
        found: list[int] = []
        for piece in pieces:
            assert len(piece.rows) == len(piece.vectors) == len(piece.squares) == len(piece.floors)
            passing = np.ones(len(piece.rows), dtype=np.bool_) if piece.mask is None else piece.mask
            passing = passing & ~np.isnan(piece.squares)
            rows, vectors = piece.rows[passing], piece.vectors[passing]
            np.testing.assert_array_equal(vectors, self.rows[rows])
            np.testing.assert_allclose(piece.squares[passing], (vectors**2).sum(axis=1), rtol=1e-6)
            np.testing.assert_array_equal(piece.floors[passing], floors_of(piece.squares[passing], WIDTH))
            found.extend(rows.tolist())
        return found


picks = st.lists(st.integers(0, 120), max_size=40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 45)),
        st.tuples(st.just("squeeze"), picks),
        st.tuples(st.just("release"), st.integers(0, 120)),
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(steps=steps, is_backed=st.booleans(), picks=picks, start=st.integers(0, 120), stop=st.integers(0, 120))
def test_any_history_shows_what_was_written(
    steps: list[tuple[str, int | list[int]]], is_backed: bool, picks: list[int], start: int, stop: int
) -> None:
    history = Histories(is_backed)
    views = [(history.blocks.view, 0)]
    for action, value in [*steps, ("write", 2)]:
        getattr(history, action)(value)
        views.append((history.blocks.view, len(history.rows)))
        history.check(*views[-1], picks, start, stop)
    for view, count in views:  # an old view still reads every row that existed then
        history.check(view, count, picks, start, stop)


@pytest.mark.parametrize("is_backed", [False, True])
def test_rows_removed_from_full_pieces_take_no_memory(is_backed: bool) -> None:
    history = Histories(is_backed)
    for _ in range(4):
        history.write(20)
    history.squeeze(list(range(0, 70, 2)))
    assert history.blocks.kept_bytes == (80 - len(history.gone)) * WIDTH * 4
    assert len(history.gone) >= 30
    assert np.isnan(history.blocks.view.vectors(np.array(sorted(history.gone)))).all() or is_backed
    history.squeeze(list(range(80)))
    history.write(20)
    rows = np.arange(80, 100)
    np.testing.assert_array_equal(history.blocks.view.vectors(rows), history.rows[rows])
    assert list(history.seen(history.blocks.view.scan(80, 100))) == rows.tolist()


def test_released_rows_are_read_from_the_store() -> None:
    history = Histories(True)
    assert history.store is not None
    history.write(40)
    assert (history.blocks.kept_bytes, history.store.read) == (40 * WIDTH * 4, 0)
    history.blocks.release(40)
    assert (history.blocks.kept_bytes, history.blocks.view.kept_from) == (0, 40)
    history.write(3)
    vectors = history.blocks.view.vectors(np.array([0, 39, 40, 42]))
    np.testing.assert_array_equal(vectors, history.rows[[0, 39, 40, 42]])
    assert history.store.read == 2
    assert history.blocks.kept_bytes == 3 * WIDTH * 4


def test_without_a_store_nothing_is_released() -> None:
    history = Histories(False)
    history.write(40)
    history.blocks.release(40)
    assert (history.blocks.kept_bytes, history.blocks.view.kept_from) == (40 * WIDTH * 4, 0)


def test_blocks_may_begin_with_rows_in_the_store() -> None:
    history = Histories(True)
    assert history.store is not None
    history.rows = history.store.put(numbered(0, 30))
    history.blocks.skip(30)
    history.write(5)
    history.check(history.blocks.view, 35, list(range(35)), 0, 35)
    assert history.blocks.kept_bytes == 5 * WIDTH * 4
    history.squeeze([3, 31])
    history.check(history.blocks.view, 35, list(range(35)), 0, 35)
