"""Codes by the Triton kernel against the distances themselves: in Triton's interpreter, or on a GPU with `-m gpu`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_errors import real_size

from thread_kernels import reference

SHAPES = [(0, 4, 16, 2), (1, 1, 2, 1), (31, 16, 16, 3), (1000, 1, 130, 17), (65, 3, 256, 40), (31, 64, 16, 2)]
"""Vectors, sub-spaces, centroids, components of a sub-space."""


@pytest.fixture
def encode(device: str) -> ModuleType:
    from thread_kernels import encode

    return encode


def sample(rows: int, subspaces: int, centroids: int, components: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(rows)
    return (
        rng.standard_normal((rows, subspaces * components), dtype=np.float32),
        rng.standard_normal((subspaces, centroids, components), dtype=np.float32),
    )


def check_nearest(encode: ModuleType, torch: ModuleType, device: str, vectors: Any, centroids: Any) -> None:
    """No centroid is nearer than the one taken, by more than float32 rounds."""
    codes = encode.encode(torch.tensor(vectors, device=device), torch.tensor(centroids, device=device)).cpu().numpy()
    assert codes.dtype == (np.uint8 if centroids.shape[1] <= 256 else np.uint16)
    assert codes.shape == (len(vectors), len(centroids))
    if not codes.size:
        return
    distances = reference.centroid_distances(vectors, centroids)
    taken = np.take_along_axis(distances, codes[:, :, None].astype(np.int64), axis=2)[:, :, 0]
    nearest = distances.min(axis=2)
    assert (taken <= nearest + 1e-5 * distances.mean()).all()
    assert np.mean(codes == distances.argmin(axis=2)) > 0.999


@pytest.mark.parametrize("shape", SHAPES)
def test_every_code_is_that_of_the_nearest_centroid(
    encode: ModuleType, torch: ModuleType, device: str, shape: Any
) -> None:
    check_nearest(encode, torch, device, *sample(*shape))


@real_size
@pytest.mark.parametrize("shape", [(20_000, 64, 256, 16), (5_000, 48, 256, 8)])
def test_every_code_is_that_of_the_nearest_centroid_at_real_size(
    encode: ModuleType, torch: ModuleType, device: str, shape: Any
) -> None:
    check_nearest(encode, torch, device, *sample(*shape))


def test_more_than_256_centroids_have_codes_of_two_bytes(encode: ModuleType, torch: ModuleType, device: str) -> None:
    vectors, centroids = sample(70, 2, 300, 2)
    vectors[:, :2] = centroids[0, np.arange(70) + 230]
    codes = encode.encode(torch.tensor(vectors, device=device), torch.tensor(centroids, device=device)).cpu().numpy()
    assert codes.dtype == np.uint16
    assert codes[:, 0].tolist() == [*range(230, 300)]


def test_ties_go_to_the_lower_code(encode: ModuleType, torch: ModuleType, device: str) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.integers(-2, 3, (100, 8)).astype(np.float32)
    # 140 centroids are two tiles, and twins are far apart and near.
    centroids = rng.integers(-2, 3, (2, 70, 4)).astype(np.float32).repeat(2, axis=1)
    centroids[:, 128:] = centroids[:, :12]
    codes = encode.encode(torch.tensor(vectors, device=device), torch.tensor(centroids, device=device)).cpu().numpy()
    chosen = centroids[np.arange(2), codes]
    for row, subspace in np.ndindex(codes.shape):
        twins = (centroids[subspace] == chosen[row, subspace]).all(axis=1).nonzero()[0]
        assert codes[row, subspace] == twins[0]


@pytest.mark.parametrize(("mean", "length"), [(1000.0, 1.0), (0.0, 1e-15), (0.0, 1e15)])
def test_codes_do_not_depend_on_where_the_vectors_lie_or_how_long_they_are(
    encode: ModuleType, torch: ModuleType, device: str, mean: float, length: float
) -> None:
    vectors, centroids = ((mean + each) * np.float32(length) for each in sample(40, 2, 16, 4))
    codes = encode.encode(torch.tensor(vectors, device=device), torch.tensor(centroids, device=device)).cpu().numpy()
    np.testing.assert_array_equal(codes, reference.centroid_distances(vectors, centroids).argmin(axis=2))


def test_a_row_of_nan_has_codes_that_exist(encode: ModuleType, torch: ModuleType, device: str) -> None:
    vectors, centroids = sample(3, 2, 5, 4)
    vectors[1] = np.nan
    # In the interpreter NumPy would warn of it.
    with np.errstate(invalid="ignore"):
        codes = encode.encode(torch.tensor(vectors, device=device), torch.tensor(centroids, device=device))
    assert codes.max() < 5


@pytest.mark.parametrize(
    ("width", "dtype", "centroids", "match"),
    [
        (9, "float32", 16, r"expected float32\[n, 8\], got torch.float32 of shape \[2, 9\]"),
        (8, "float64", 16, r"expected float32\[n, 8\], got torch.float64"),
        (8, "float32", 0, "0 centroids a sub-space; a code tells 1 to 65536 apart"),
        (8, "float32", 65537, "65537 centroids a sub-space"),
    ],
)
def test_what_has_no_codes_is_refused(
    encode: ModuleType, torch: ModuleType, width: int, dtype: str, centroids: int, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        encode.encode(torch.zeros((2, width), dtype=getattr(torch, dtype)), torch.zeros((4, centroids, 2)))
