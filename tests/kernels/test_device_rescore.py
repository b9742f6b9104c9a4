"""Distances of listed rows on the device against the reference: in Triton's interpreter, or on a GPU with `-m gpu`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_errors import TOLERANCES, error, real_size


@pytest.fixture
def rescore(device: str) -> ModuleType:
    from thread_kernels import rescore

    return rescore


class Distances:
    """`block_distances` of NumPy arrays, and what is said of its error."""

    def __init__(self, rescore: ModuleType, torch: ModuleType, device: str) -> None:
        self._rescore, self._torch, self._device = rescore, torch, device

    def __call__(self, queries: Any, vectors: Any, rows: Any, blocks: int) -> tuple[Any, Any]:
        from thread_kernels.scan_exact import pack

        asked, stored, listed = (self._torch.tensor(each, device=self._device) for each in (queries, vectors, rows))
        table = pack(stored, self._torch.float16)
        found = self._rescore.block_distances(asked, table, listed, blocks)
        assert found.dtype == self._torch.float32
        assert tuple(found.shape) == (len(queries), rows.shape[1])
        errors = self._rescore.errors_of(found, table, listed, queries.shape[1], blocks)
        return found.cpu().numpy(), errors.cpu().numpy()

    def check(self, queries: Any, vectors: Any, rows: Any, blocks: int) -> None:
        found, errors = self(queries, vectors, rows, blocks)
        lines = np.broadcast_to(rows, found.shape)
        there = lines >= 0
        truth = exact(queries, vectors, np.maximum(lines, 0), blocks)
        assert (found[~there] == np.inf).all()
        if there.any():
            assert error(found[there], truth[there]) < TOLERANCES["float16"]
            assert (np.abs(found - truth) <= errors)[there].all()


def exact(queries: Any, vectors: Any, rows: Any, blocks: int) -> Any:
    """float64[q, r] by the definition."""
    apart = vectors.astype(np.float64)[rows] - queries[:, None].astype(np.float64)
    parts = apart.reshape(*rows.shape, blocks, queries.shape[1] // blocks)
    return np.linalg.norm(parts, axis=3).sum(axis=2)


@pytest.fixture
def distances(rescore: ModuleType, torch: ModuleType, device: str) -> Distances:
    return Distances(rescore, torch, device)


def sample(queries: int, rows: int, width: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(width)
    return (
        rng.standard_normal((queries, width), dtype=np.float32),
        rng.standard_normal((rows, width), dtype=np.float32),
    )


@pytest.mark.parametrize(
    ("queries", "rows", "width", "blocks"),
    [(3, 1, 1, 1), (2, 31, 7, 7), (1, 17, 130, 13), (1, 16, 130, 1), (2, 16, 101, 1), (2, 33, 128, 16)],
)
def test_distances_are_those_of_the_reference_within_their_error(
    distances: Distances, queries: int, rows: int, width: int, blocks: int
) -> None:
    listed = np.random.default_rng(0).integers(-1, 50, (queries, rows))
    distances.check(*sample(queries, 50, width), listed, blocks)


@real_size
@pytest.mark.parametrize(("width", "blocks"), [(384, 16), (1024, 16), (1024, 1)])
def test_distances_at_real_size(distances: Distances, width: int, blocks: int) -> None:
    listed = np.random.default_rng(0).integers(-1, 100_000, (64, 500))
    distances.check(*sample(64, 100_000, width), listed, blocks)


def test_all_queries_may_be_given_the_same_rows(distances: Distances) -> None:
    queries, vectors = sample(3, 40, 24)
    distances.check(queries, vectors, np.arange(0, 40, 2)[None], 4)


@pytest.mark.parametrize("length", [1e-36, 1e-20, 1e-3, 1e15])
@pytest.mark.parametrize("blocks", [1, 8])
def test_the_error_holds_for_vectors_of_any_length(distances: Distances, length: float, blocks: int) -> None:
    queries, vectors = (each * np.float32(length) for each in sample(2, 30, 24))
    vectors[::3] *= np.logspace(0, -8, 24, dtype=np.float32)  # components that are subnormal in float16
    rows = np.arange(30)[None].repeat(2, axis=0)
    found, errors = distances(queries, vectors, rows, blocks)
    assert (np.abs(found - exact(queries, vectors, rows, blocks)) <= errors).all()


def test_the_error_of_rounding_is_reached_and_not_much_over_said(distances: Distances) -> None:
    """A vector whose components all lie in the middle between two numbers of float16, beside itself."""
    vector = np.full((1, 64), 1 + 2.0**-11, dtype=np.float32)
    found, errors = distances(vector, vector, np.array([[0]]), 16)
    assert 0.99 * errors[0, 0] < found[0, 0] <= errors[0, 0]


def test_rows_that_are_gone_are_infinitely_far(distances: Distances) -> None:
    queries, vectors = sample(2, 5, 12)
    vectors[1], vectors[3, 7] = np.nan, np.nan
    found, errors = distances(queries, vectors, np.array([[0, 1, 3], [-1, 3, 1]]), 4)
    assert np.isinf(found).tolist() == [[False, True, True], [True, True, True]]
    assert (errors < 0.1).all()


def test_no_rows_and_no_queries_have_no_distances(distances: Distances, rescore: ModuleType, torch: ModuleType) -> None:
    from thread_kernels.scan_exact import pack

    queries, vectors = sample(2, 3, 4)
    table = pack(torch.tensor(vectors), torch.float16)
    for count, listed in ((2, 0), (0, 5)):
        rows = torch.zeros((count, listed), dtype=torch.int64)
        assert rescore.block_distances(torch.tensor(queries[:count]), table, rows, 1).shape == (count, listed)


@pytest.mark.parametrize(
    ("width", "dtype", "lines", "blocks", "match"),
    [
        (129, "float16", 2, 1, "do not match"),
        (8, "float16", 3, 1, "do not match"),
        (8, "float16", 2, 3, "do not match"),
        (8, "int8", 2, 1, "expected float32 queries and float16 vectors"),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_refused(
    rescore: ModuleType, torch: ModuleType, width: int, dtype: str, lines: int, blocks: int, match: str
) -> None:
    from thread_kernels.scan_exact import pack

    with pytest.raises(ValueError, match=match):
        rescore.block_distances(
            torch.zeros((2, width)),
            pack(torch.zeros((5, 8)), getattr(torch, dtype)),
            torch.zeros((lines, 3), dtype=torch.int64),
            blocks,
        )


def near(rescore: ModuleType, torch: ModuleType, device: str, rows: Any, errors: Any, counts: Any) -> list[list[int]]:
    """The places that may be among the nearest, for each query, ascending."""
    given = (
        torch.tensor(rows, dtype=torch.float32, device=device),
        torch.tensor(errors, dtype=torch.float32, device=device)[:, None],
        torch.tensor(counts, device=device),
    )
    places, found = (each.cpu().numpy() for each in rescore.may_be_nearest(*given))
    assert places.shape[1] == found.max()
    return [sorted(line[:count].tolist()) for line, count in zip(places, found, strict=True)]


def test_what_the_error_may_bring_among_the_nearest_is_kept(
    rescore: ModuleType, torch: ModuleType, device: str
) -> None:
    inf = float("inf")
    rows = [[5, 1, 2, 3, 4], [5, 1, 2, 3, 4], [2, 2, 2, 2, 2], [inf, 1, inf, 7, inf], [1, 2, 3, 4, 5]]
    found = near(rescore, torch, device, rows, [0, 0.5, 0, 0, 9], [2, 2, 1, 4, 0])
    assert found == [[1, 2], [1, 2, 3], [0, 1, 2, 3, 4], [1, 3], []]


@pytest.mark.parametrize("blocks", [1, 4])
def test_the_true_nearest_are_never_ruled_out(
    rescore: ModuleType, torch: ModuleType, device: str, distances: Distances, blocks: int
) -> None:
    """Rows so near one another that float16 orders them wrongly."""
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((2, 32), dtype=np.float32)
    middle = rng.standard_normal(32)
    vectors = (middle + 1e-3 * rng.standard_normal((400, 32))).astype(np.float32)
    rows = np.arange(400)[None].repeat(2, axis=0)
    found, errors = distances(queries, vectors, rows, blocks)
    truth = exact(queries, vectors, rows, blocks).argsort(axis=1)[:, :10]
    assert (found.argsort(axis=1)[:, :10] != truth).any()
    for kept, wanted in zip(near(rescore, torch, device, found, errors[:, 0], [10, 10]), truth, strict=True):
        assert set(wanted) <= set(kept)
        assert len(kept) < 400
