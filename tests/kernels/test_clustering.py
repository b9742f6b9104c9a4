"""Codebooks trained by torch, and by FAISS: what they leave of the error, and that they are the same every time."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernel_errors import real_size

from thread_kernels import reference


@pytest.fixture
def clustering(device: str) -> ModuleType:
    from thread_kernels import clustering

    return clustering


def sample(rows: int, width: int) -> Any:
    """Vectors that lie near fewer dimensions than they have components, as those of text do."""
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((rows, 24)) * np.arange(1, 25) ** -0.5
    vectors = latent @ rng.standard_normal((24, width)) + 0.3 * rng.standard_normal((rows, width))
    return vectors.astype(np.float32)


def quantisation_error(vectors: Any, centroids: Any) -> float:
    """Mean of |x − decoded x|²."""
    return float(reference.centroid_distances(vectors, centroids).min(axis=2).sum(axis=1).mean())


def by_torch(clustering: ModuleType, torch: ModuleType, device: str, vectors: Any, *shape: int, seed: int = 1) -> Any:
    trained = clustering.lloyd(torch.tensor(vectors, device=device), *shape, seed=seed, iterations=25)
    assert trained.device.type == device
    return trained.cpu().numpy()


def check_against_faiss(clustering: ModuleType, trained: Any, vectors: Any) -> None:
    faiss = pytest.importorskip("faiss", reason="FAISS is not installed")
    subspaces, centroids, components = trained.shape
    index = faiss.IndexFlatL2(components)
    other = clustering.by_faiss(vectors, subspaces, centroids, index, seed=1, iterations=25)
    assert (other.dtype, other.shape) == (np.float32, trained.shape)
    ratio = quantisation_error(vectors, trained) / quantisation_error(vectors, other)
    assert 0.97 < ratio < 1.03


@pytest.mark.parametrize(("subspaces", "centroids"), [(1, 2), (4, 16), (16, 64)])
def test_torch_and_faiss_leave_the_same_error(
    clustering: ModuleType, torch: ModuleType, device: str, subspaces: int, centroids: int
) -> None:
    vectors = sample(2_000, 48)
    trained = by_torch(clustering, torch, device, vectors, subspaces, centroids)
    assert (trained.dtype, trained.shape) == (np.float32, (subspaces, centroids, 48 // subspaces))
    check_against_faiss(clustering, trained, vectors)


@real_size
def test_torch_and_faiss_leave_the_same_error_at_real_size(
    clustering: ModuleType, torch: ModuleType, device: str
) -> None:
    vectors = sample(10_000, 1024)
    check_against_faiss(clustering, by_torch(clustering, torch, device, vectors, 64, 256), vectors)


def test_the_same_seed_gives_the_same_codebook(
    clustering: ModuleType, torch: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = torch.tensor(sample(700, 24), device=device)
    first, again, other = (clustering.train_centroids(vectors, 3, 16, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)

    monkeypatch.setattr(clustering, "WORKING_BYTES", 4 * 3 * 16 * 64)
    in_chunks = clustering.train_centroids(vectors, 3, 16, seed=5)
    errors = [quantisation_error(vectors.cpu().numpy(), each.cpu().numpy()) for each in (first, in_chunks)]
    assert errors[1] == pytest.approx(errors[0], rel=0.02)


def test_no_centroid_is_left_without_vectors(clustering: ModuleType, torch: ModuleType, device: str) -> None:
    """Sixteen different points, one of which is nearly all there is: a draw of rows meets few of the others."""
    points = np.random.default_rng(0).standard_normal((16, 6), dtype=np.float32)
    vectors = points[np.r_[np.zeros(1000, int), np.arange(16)]]
    trained = by_torch(clustering, torch, device, vectors, 2, 16)
    assert quantisation_error(vectors, trained) < 1e-10


def test_fewer_different_vectors_than_centroids_are_met_exactly(
    clustering: ModuleType, torch: ModuleType, device: str
) -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32).repeat(10, axis=0)
    trained = by_torch(clustering, torch, device, vectors, 2, 32)
    assert np.isfinite(trained).all()
    assert quantisation_error(vectors, trained) < 1e-10


@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_a_mean_far_from_zero_costs_nothing(
    clustering: ModuleType, torch: ModuleType, device: str, mean: float
) -> None:
    vectors = np.random.default_rng(0).standard_normal((500, 8), dtype=np.float32)
    moved = (vectors + np.float32(mean)).astype(np.float32)
    found = quantisation_error(moved, by_torch(clustering, torch, device, moved, 2, 16))
    assert found == pytest.approx(
        quantisation_error(vectors, by_torch(clustering, torch, device, vectors, 2, 16)), rel=0.02
    )


@pytest.mark.parametrize(
    ("rows", "width", "centroids", "dtype", "match"),
    [
        (0, 8, 2, "float32", "2 centroids of 0 vectors"),
        (15, 8, 16, "float32", "16 centroids of 15 vectors"),
        (15, 8, 0, "float32", "0 centroids of 15 vectors; there is at least 1"),
        (15, 9, 2, "float32", r"expected float32\[n, a multiple of 4\], got torch.float32 of shape \[15, 9\]"),
        (15, 8, 2, "float64", r"expected float32\[n, a multiple of 4\], got torch.float64"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    clustering: ModuleType, torch: ModuleType, rows: int, width: int, centroids: int, dtype: str, match: str
) -> None:
    vectors = torch.zeros((rows, width), dtype=getattr(torch, dtype))
    with pytest.raises(ValueError, match=match):
        clustering.train_centroids(vectors, 4, centroids, seed=0)


def test_faiss_trains_where_it_can_use_the_device(
    clustering: ModuleType, torch: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index in main memory stands for one on a GPU."""
    faiss = pytest.importorskip("faiss", reason="FAISS is not installed")
    vectors = torch.tensor(sample(700, 24), device=device)
    by_lloyd = clustering.lloyd(vectors, 3, 16, seed=5, iterations=25)
    made: list[int] = []

    def index_on_gpu(vectors: Any, components: int) -> Any:
        made.append(components)
        return faiss.IndexFlatL2(components)

    monkeypatch.setattr(clustering, "_index_on_gpu", index_on_gpu)
    first, again = (clustering.train_centroids(vectors, 3, 16, seed=5) for _ in range(2))
    assert torch.equal(first, again)
    assert (first.device, first.dtype, first.shape) == (by_lloyd.device, by_lloyd.dtype, by_lloyd.shape)
    assert not torch.equal(first, by_lloyd)
    errors = [quantisation_error(vectors.cpu().numpy(), each.cpu().numpy()) for each in (first, by_lloyd)]
    assert errors[0] == pytest.approx(errors[1], rel=0.03)
    assert made == [8, 8]
    clustering.train_centroids(vectors, 3, 15, seed=5)
    assert made == [8, 8], "FAISS makes powers of two only"


def test_torch_trains_where_faiss_fails(
    clustering: ModuleType,
    torch: ModuleType,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(clustering, "_index_on_gpu", lambda *_: object())
    monkeypatch.setattr(clustering, "by_faiss", fails)
    vectors = torch.tensor(sample(700, 24), device=device)
    trained = clustering.train_centroids(vectors, 3, 16, seed=5)
    assert torch.equal(trained, clustering.lloyd(vectors, 3, 16, seed=5, iterations=25))
    assert "torch does it: no kernel image is available" in caplog.text


@real_size
def test_a_gpu_trains_with_faiss_where_that_can_use_it(
    clustering: ModuleType, torch: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = sample(10_000, 1024)
    resident = torch.tensor(vectors, device=device)
    if clustering._index_on_gpu(resident, 16) is None:
        pytest.skip("no FAISS that sees the GPU")
    first, again = (clustering.train_centroids(resident, 64, 256, seed=1).cpu().numpy() for _ in range(2))
    np.testing.assert_array_equal(first, again)
    by_lloyd = clustering.lloyd(resident, 64, 256, seed=1, iterations=25).cpu().numpy()
    assert not np.array_equal(first, by_lloyd)
    assert 0.97 < quantisation_error(vectors, first) / quantisation_error(vectors, by_lloyd) < 1.03
