"""Scores of given rows on the device against the reference: in Triton's interpreter, or on a GPU with `-m gpu`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_errors import TOLERANCES, error, real_size

from thread_kernels import reference


@pytest.fixture
def rescore(device: str) -> ModuleType:
    from thread_kernels import rescore

    return rescore


class Scorer:
    """`block_scores` of NumPy arrays."""

    def __init__(self, rescore: ModuleType, torch: ModuleType, device: str) -> None:
        self._rescore, self._torch, self._device = rescore, torch, device

    def __call__(self, queries: Any, vectors: Any, rows: Any) -> tuple[Any, Any]:
        moved = (self._torch.tensor(each, device=self._device) for each in (queries, vectors, rows))
        distances, cosines = self._rescore.block_scores(*moved)
        assert distances.dtype == cosines.dtype == self._torch.float32
        assert tuple(distances.shape) == tuple(cosines.shape) == rows.shape
        return distances.cpu().numpy(), cosines.cpu().numpy()

    def check(self, queries: Any, vectors: Any, rows: Any) -> None:
        distances, cosines = self(queries, vectors, rows)
        there = rows >= 0
        expected = [reference.block_scores(query, vectors[listed]) for query, listed in zip(queries, rows, strict=True)]
        true_distances, true_cosines = (np.array(each) for each in zip(*expected, strict=True))
        if there.any():
            assert error(distances[there], true_distances[there]) < TOLERANCES["float32"]
            assert error(cosines[there], true_cosines[there]) < TOLERANCES["float32"]
        assert (distances[~there] == np.inf).all()
        assert (cosines[~there] == 0).all()


@pytest.fixture
def scores(rescore: ModuleType, torch: ModuleType, device: str) -> Scorer:
    return Scorer(rescore, torch, device)


def sample(queries: int, rows: int, width: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(width)
    return (
        rng.standard_normal((queries, width), dtype=np.float32),
        rng.standard_normal((rows, width), dtype=np.float32),
    )


@pytest.mark.parametrize(("queries", "rows", "width"), [(3, 1, 1), (2, 31, 7), (1, 17, 130), (2, 16, 101)])
def test_distances_and_cosines_are_those_of_the_reference(scores: Scorer, queries: int, rows: int, width: int) -> None:
    listed = np.random.default_rng(0).integers(-1, 50, (queries, rows))
    scores.check(*sample(queries, 50, width), listed)


@real_size
@pytest.mark.parametrize("width", [384, 1024])
def test_distances_and_cosines_at_real_size(scores: Scorer, width: int) -> None:
    listed = np.random.default_rng(0).integers(-1, 100_000, (64, 500))
    scores.check(*sample(64, 100_000, width), listed)


def test_rows_in_float16_are_measured_as_they_are(scores: Scorer) -> None:
    queries, vectors = sample(2, 20, 24)
    scores.check(queries, vectors.astype(np.float16), np.arange(20).repeat(2).reshape(2, 20))


def test_equal_rows_score_alike_and_the_query_itself_is_at_zero(scores: Scorer) -> None:
    queries, vectors = sample(1, 20, 12)
    vectors[[3, 19]] = queries[0]
    distances, cosines = scores(queries, vectors, np.array([[19, 4, 3, 4, 19]]))
    assert distances[0, [0, 2, 4]].tolist() == [0, 0, 0]
    np.testing.assert_allclose(cosines[0, [0, 2, 4]], 1, rtol=1e-6)
    assert distances[0, 1] == distances[0, 3] > 0
    assert cosines.max() <= 1


def test_rows_that_are_gone_are_infinitely_far(scores: Scorer) -> None:
    queries, vectors = sample(2, 5, 12)
    vectors[1], vectors[3, 7] = np.nan, np.nan
    distances, cosines = scores(queries, vectors, np.array([[0, 1, 3], [-1, 3, 4]]))
    assert np.isinf(distances).tolist() == [[False, True, True], [True, True, False]]
    assert (cosines[np.isinf(distances)] == 0).all()


@pytest.mark.parametrize("length", [1e-36, 1e-20, 1e15])
def test_the_cosine_does_not_depend_on_the_length_of_the_vectors(scores: Scorer, length: float) -> None:
    queries, vectors = sample(1, 10, 24)
    rows = np.arange(10)[None]
    _, expected = scores(queries, vectors, rows)
    _, cosines = scores(queries, vectors * np.float32(length), rows)
    np.testing.assert_allclose(cosines, expected, atol=1e-6)
    _, cosines = scores(queries * np.float32(length), vectors, rows)
    np.testing.assert_allclose(cosines, expected, atol=1e-6)


def test_zeros_have_no_direction(scores: Scorer) -> None:
    queries, vectors = np.zeros((1, 4), dtype=np.float32), np.zeros((2, 4), dtype=np.float32)
    vectors[1] = 3
    distances, cosines = scores(queries, vectors, np.array([[0, 1]]))
    assert distances.tolist() == [[0, 12]]
    assert cosines.tolist() == [[0, 0]]


def test_no_rows_and_no_queries_have_no_scores(scores: Scorer) -> None:
    queries, vectors = sample(2, 3, 4)
    assert scores(queries, vectors, np.zeros((2, 0), dtype=np.int64))[0].shape == (2, 0)
    assert scores(queries[:0], vectors, np.zeros((0, 5), dtype=np.int64))[0].shape == (0, 5)


@pytest.mark.parametrize(
    ("vectors", "dtype", "rows", "match"),
    [
        ((5, 9), "float32", 2, "do not match"),
        ((5, 8), "float32", 3, "do not match"),
        ((5, 8), "float64", 2, "expected float32 queries and float32 or float16 vectors"),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_refused(
    rescore: ModuleType, torch: ModuleType, vectors: tuple[int, int], dtype: str, rows: int, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        rescore.block_scores(
            torch.zeros((2, 8)),
            torch.zeros(vectors, dtype=getattr(torch, dtype)),
            torch.zeros((rows, 3), dtype=torch.int64),
        )


class Cosines:
    """`highest_cosines` of NumPy arrays, against the reference."""

    def __init__(self, rescore: ModuleType, torch: ModuleType, device: str) -> None:
        self._rescore, self._torch, self._device = rescore, torch, device

    def __call__(self, queries: Any, vectors: Any, k: int, mask: Any = None) -> tuple[Any, Any]:
        asked, rows = (self._torch.tensor(each, device=self._device) for each in (queries, vectors))
        passing = None if mask is None else self._torch.tensor(mask, device=self._device)
        found, cosines = self._rescore.highest_cosines(asked, self._rescore.directions(rows), k, passing)
        return found.cpu().numpy(), cosines.cpu().numpy()

    def check(self, queries: Any, vectors: Any, k: int, mask: Any = None) -> None:
        found, cosines = self(queries, vectors, k, mask)
        exact = np.array([reference.block_scores(query, vectors)[1] for query in queries])
        for query, rows in enumerate(reference.best_rows(exact, k, [mask] * len(queries))):
            assert found[query, len(rows) :].tolist() == [-1] * (k - len(rows))
            assert (cosines[query, len(rows) :] == 0).all()
            np.testing.assert_allclose(cosines[query, : len(rows)], exact[query, rows], atol=1e-6)
            np.testing.assert_allclose(exact[query, found[query, : len(rows)]], exact[query, rows], atol=1e-6)
            assert len(set(found[query, : len(rows)])) == len(rows)


@pytest.fixture
def highest(rescore: ModuleType, torch: ModuleType, device: str) -> Cosines:
    return Cosines(rescore, torch, device)


@pytest.mark.parametrize("rows", [0, 1, 31, 1000])
@pytest.mark.parametrize("scored_at_a_time", [64, 1 << 24])
def test_the_rows_of_the_highest_cosine_are_found(
    highest: Cosines, rescore: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: int, scored_at_a_time: int
) -> None:
    monkeypatch.setattr(rescore, "_SCORED", scored_at_a_time)
    queries, vectors = sample(3, rows, 12)
    highest.check(queries, vectors, 40)
    highest.check(queries, vectors, 40, np.arange(rows) % 3 == 0)
    highest.check(queries, vectors, 5, np.zeros(rows, bool))
    highest.check(queries, vectors, 0)


def test_equal_cosines_go_to_the_lower_row_and_nan_never_passes(highest: Cosines) -> None:
    vectors = np.zeros((200, 4), dtype=np.float32)
    vectors[50:60, 0], vectors[100:, 0], vectors[7] = 2, -1, np.nan
    query = np.array([[3, 0, 0, 0]], dtype=np.float32)
    found, cosines = highest(query, vectors, 200)
    middle = [row for row in range(100) if row != 7 and not 50 <= row < 60]
    assert found[0].tolist() == [*range(50, 60), *middle, *range(100, 200), -1]
    assert cosines[0].tolist() == [1.0] * 10 + [0.0] * 89 + [-1.0] * 100 + [0.0]
