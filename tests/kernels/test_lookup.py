"""Look-up tables by the Triton kernel against their definition: in Triton's interpreter, or on a GPU with `-m gpu`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_errors import TOLERANCES, error

from thread_kernels import reference

SHAPES = [(1, 1, 2, 1), (3, 1, 16, 40), (1, 16, 16, 3), (3, 16, 256, 2), (17, 5, 130, 17), (3, 64, 16, 16)]
"""Queries, sub-spaces, centroids, components of a sub-space."""


@pytest.fixture
def lookup(device: str) -> ModuleType:
    from thread_kernels import lookup

    return lookup


def sample(queries: int, subspaces: int, codes: int, components: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(queries * codes)
    return (
        rng.standard_normal((queries, subspaces * components), dtype=np.float32),
        rng.standard_normal((subspaces, codes, components), dtype=np.float32),
    )


def word(subspace: int) -> int:
    return 16 * (subspace % 4) + subspace // 4


def unpaired(pairs: Any, queries: int, subspaces: int, codes: int) -> Any:
    """float64[q, subspaces, k] of float16[pairs, 256, 64, 2]."""
    words = [word(subspace) for subspace in range(subspaces)]
    by_query = pairs.cpu().numpy().astype(np.float64)[:, :codes][:, :, words].transpose(0, 3, 2, 1)
    return by_query.reshape(-1, subspaces, codes)[:queries]


@pytest.mark.parametrize("shape", SHAPES)
def test_tables_follow_their_definition(lookup: ModuleType, torch: ModuleType, device: str, shape: Any) -> None:
    queries, centroids = sample(*shape)
    on_device = torch.tensor(queries, device=device)
    prepared = lookup.Centroids.prepare(centroids, device)
    expected = reference.lookup_tables(queries, centroids)
    expected *= prepared.scales(on_device).cpu().numpy().astype(np.float64)[:, None, None]

    plain = lookup.tables(on_device, prepared).cpu().numpy()
    assert plain.dtype == np.float32
    assert plain.shape == expected.shape
    assert error(plain, expected) < TOLERANCES["float32"]

    pairs = lookup.new_pairs(len(queries), device)
    lookup.fill_pairs(on_device, prepared, pairs)
    assert error(unpaired(pairs, *expected.shape), expected) < TOLERANCES["float16"]


def test_the_sum_of_entries_orders_rows_by_their_distance() -> None:
    queries, centroids = sample(3, 16, 16, 4)
    codes = np.random.default_rng(1).integers(0, 16, (50, 16))
    decoded = centroids[np.arange(16), codes].reshape(50, -1).astype(np.float64)
    distances = ((queries[:, None] - decoded) ** 2).sum(axis=2)
    sums = reference.lookup_scores(reference.lookup_tables(queries, centroids), codes)
    constants = distances + sums
    np.testing.assert_allclose(constants, constants[:, :1].repeat(50, axis=1))


def test_nothing_is_written_beside_the_tables(lookup: ModuleType, torch: ModuleType, device: str) -> None:
    queries, centroids = sample(3, 5, 130, 2)
    pairs = torch.full((3, 256, 64, 2), torch.nan, dtype=torch.float16, device=device)
    lookup.fill_pairs(torch.tensor(queries, device=device), lookup.Centroids.prepare(centroids, device), pairs)

    written = ~np.isnan(pairs.cpu().numpy())
    expected = np.zeros_like(written)
    for query, subspace in np.ndindex(3, 5):
        expected[query // 2, :130, word(subspace), query % 2] = True
    np.testing.assert_array_equal(written, expected)


def test_words_of_missing_subspaces_are_zero(lookup: ModuleType, torch: ModuleType, device: str) -> None:
    queries, centroids = sample(2, 1, 256, 2)
    pairs = lookup.new_pairs(2, device)
    lookup.fill_pairs(torch.tensor(queries, device=device), lookup.Centroids.prepare(centroids, device), pairs)
    assert not pairs[:, :, 1:].any()
    assert pairs[:, :, 0].any()


def test_equal_queries_have_equal_tables_and_equal_centroids_equal_entries(
    lookup: ModuleType, torch: ModuleType, device: str
) -> None:
    queries, centroids = sample(19, 3, 20, 7)
    queries[[0, 17, 18]] = queries[5]
    centroids[:, 19] = centroids[:, 0]
    out = lookup.tables(torch.tensor(queries, device=device), lookup.Centroids.prepare(centroids, device)).cpu().numpy()
    for query in (0, 17, 18):
        np.testing.assert_array_equal(out[query], out[5])
    np.testing.assert_array_equal(out[:, :, 19], out[:, :, 0])


@pytest.mark.parametrize("length", [1e-15, 1e-3, 1e3, 1e15])
@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_float16_keeps_its_digits_whatever_the_length_of_the_vectors(
    lookup: ModuleType, torch: ModuleType, device: str, length: float, mean: float
) -> None:
    queries, centroids = ((mean + each) * np.float32(length) for each in sample(2, 16, 16, 4))
    on_device = torch.tensor(queries, device=device)
    prepared = lookup.Centroids.prepare(centroids, device)
    pairs = lookup.new_pairs(2, device)
    lookup.fill_pairs(on_device, prepared, pairs)

    out = unpaired(pairs, 2, 16, 16)
    expected = reference.lookup_tables(queries, centroids)
    expected *= prepared.scales(on_device).cpu().numpy().astype(np.float64)[:, None, None]
    assert error(out, expected) < TOLERANCES["float16"]
    assert np.abs(out).max(axis=2).sum(axis=1).max() < np.finfo(np.float16).max


def test_no_queries_make_no_tables(lookup: ModuleType, torch: ModuleType, device: str) -> None:
    _, centroids = sample(1, 4, 16, 2)
    empty = torch.zeros((0, 8), device=device)
    assert lookup.tables(empty, lookup.Centroids.prepare(centroids, device)).shape == (0, 4, 16)


@pytest.mark.parametrize(
    ("queries", "subspaces", "codes", "width", "dtype", "match"),
    [
        (2, 65, 16, 65, "float32", "65 sub-spaces of 16 centroids"),
        (2, 4, 257, 4, "float32", "4 sub-spaces of 257 centroids"),
        (3, 4, 16, 4, "float32", "3 queries do not fit into 1 pairs"),
        (2, 4, 16, 5, "float32", r"expected float32\[q, 4\], got torch.float32 of shape \[2, 5\]"),
        (2, 4, 16, 4, "float64", r"expected float32\[q, 4\], got torch.float64"),
    ],
)
def test_what_does_not_fit_is_refused(
    lookup: ModuleType,
    torch: ModuleType,
    device: str,
    queries: int,
    subspaces: int,
    codes: int,
    width: int,
    dtype: str,
    match: str,
) -> None:
    prepared = lookup.Centroids.prepare(np.ones((subspaces, codes, 1), dtype=np.float32), device)
    with pytest.raises(ValueError, match=match):
        lookup.fill_pairs(
            torch.ones((queries, width), dtype=getattr(torch, dtype), device=device),
            prepared,
            lookup.new_pairs(2, device),
        )
