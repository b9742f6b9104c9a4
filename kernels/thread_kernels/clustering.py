"""Codebooks: k-means in all sub-spaces at once (Lloyd, "Least squares quantization in PCM", 1982), in torch or FAISS.

Every step is one batched matrix product over the sub-spaces, sums of clusters included: adding them up by atomics would
be no slower, but no two runs would give the same codebook. Both ways start from rows drawn at random, as FAISS does.
The wheels of faiss-gpu bring the libraries of CUDA 12, which a driver of CUDA 13 runs, and kernels up to Hopper's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from thread_kernels.coding import ITERATIONS
from thread_kernels.interface import Float32

WORKING_BYTES = 256 << 20
"""Of distances held at a time."""

Turn = Callable[[], AbstractContextManager[object]]
"""Entered for every piece of work on the device: others use it between two, so a piece takes some milliseconds."""

_log = logging.getLogger(__name__)


def train_centroids(
    vectors: torch.Tensor,
    subspaces: int,
    centroids: int,
    *,
    seed: int,
    iterations: int = ITERATIONS,
    turn: Turn = nullcontext,
) -> torch.Tensor:
    """float32[subspaces, centroids, components] for float32[n, subspaces × components], on the same device.

    Trained by FAISS where the vectors are on a GPU that it can use, by `lloyd` everywhere else. The same vectors, seed
    and device give the same codebook. ValueError for another shape or type, or fewer vectors than centroids.
    """
    if vectors.dtype != torch.float32 or vectors.ndim != 2 or subspaces < 1 or vectors.shape[1] % subspaces:
        raise ValueError(
            f"expected float32[n, a multiple of {subspaces}], got {vectors.dtype} of shape {list(vectors.shape)}"
        )
    if not 1 <= centroids <= len(vectors):
        raise ValueError(f"{centroids} centroids of {len(vectors)} vectors; there is at least 1, and no more of them")
    index = _index_on_gpu(vectors, vectors.shape[1] // subspaces) if _is_power_of_two(centroids) else None
    if index is not None:
        try:
            with turn():
                here = vectors.cpu().numpy()
            # In nobody's turn: FAISS has streams and memory of its own.
            trained = by_faiss(here, subspaces, centroids, index, seed=seed, iterations=iterations)
            with turn():
                return torch.from_numpy(trained).to(vectors.device)
        except RuntimeError as error:  # a GPU newer than its kernels, or no memory beside ours
            _log.warning("FAISS cannot train on this GPU, torch does it: %s", error)
    return lloyd(vectors, subspaces, centroids, seed=seed, iterations=iterations, turn=turn)


def lloyd(
    vectors: torch.Tensor, subspaces: int, centroids: int, *, seed: int, iterations: int, turn: Turn = nullcontext
) -> torch.Tensor:
    """As `train_centroids`, by torch. A centroid that loses all its vectors moves to one that is far from its own."""
    count = len(vectors)
    # Drawn on the host, so that every device starts from the same rows.
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:centroids]
    with turn():
        parts = vectors.view(count, subspaces, -1).transpose(0, 1)
        mean = parts.mean(dim=1, keepdim=True, dtype=torch.float64).float()
        parts = parts - mean  # so that float32 spends its digits on the differences
        found = parts[:, drawn.to(vectors.device)]
    chunk = max(1, WORKING_BYTES // (4 * subspaces * centroids))
    for _ in range(iterations):
        found = _moved(parts, found, chunk, turn)
    with turn():
        return found + mean


def by_faiss(
    vectors: Float32, subspaces: int, centroids: int, assign_index: object, *, seed: int, iterations: int
) -> Float32:
    """As `train_centroids`, by FAISS on float32[n, width] in main memory, for a power of two of centroids.

    `assign_index` is an empty FAISS index of the width of a sub-space; it finds the nearest centroids, on its device.
    """
    from thread_kernels.loaded_faiss import faiss

    width = vectors.shape[1]
    quantizer = faiss.ProductQuantizer(width, subspaces, centroids.bit_length() - 1)
    quantizer.cp.seed, quantizer.cp.niter = seed, iterations
    quantizer.cp.min_points_per_centroid = 1  # how many are wise is the caller's to decide
    quantizer.cp.max_points_per_centroid = len(vectors)
    quantizer.assign_index = assign_index
    quantizer.train(vectors)
    quantizer.assign_index = None
    trained: Float32 = faiss.vector_to_array(quantizer.centroids)
    return trained.reshape(subspaces, centroids, width // subspaces)


def _moved(parts: torch.Tensor, centroids: torch.Tensor, chunk: int, turn: Turn) -> torch.Tensor:
    """float32[subspaces, k, components] one step on, for float32[subspaces, n, components] `parts`."""
    subspaces, count, _ = parts.shape
    k = centroids.shape[1]
    with turn():
        halves = centroids.square().sum(dim=2)[:, None] / 2
        sums = torch.zeros_like(centroids)
        sizes = torch.zeros((subspaces, k), device=parts.device)
        apart = torch.empty((subspaces, count), device=parts.device)
        numbers = torch.arange(k, device=parts.device)
    for start in range(0, count, chunk):
        with turn():
            some = parts[:, start : start + chunk]
            scores = torch.baddbmm(halves, some, centroids.transpose(1, 2), beta=-1)
            best, nearest = scores.max(dim=2)
            apart[:, start : start + chunk] = some.square().sum(dim=2) - 2 * best
            members = (nearest[:, :, None] == numbers).float()
            sums += members.transpose(1, 2) @ some
            sizes += members.sum(dim=1)
            del scores, best, nearest, members  # others want the memory until the next piece
    with turn():
        is_empty = sizes == 0
        moved = sums / sizes.clamp(min=1)[:, :, None]
        farthest = apart.argsort(dim=1, descending=True, stable=True)[:, :k]
        place = (is_empty.cumsum(dim=1) - 1).clamp(min=0)
        spare = parts.gather(1, farthest.gather(1, place)[:, :, None].expand_as(moved))
        return torch.where(is_empty[:, :, None], spare, moved)


def _is_power_of_two(number: int) -> bool:
    return number > 1 and number & (number - 1) == 0


def _index_on_gpu(vectors: torch.Tensor, components: int) -> object | None:
    """An empty FAISS index on the GPU of `vectors`; None when they are on none, or on one that FAISS cannot use."""
    if not vectors.is_cuda:
        return None
    try:
        from thread_kernels.loaded_faiss import faiss
    except ImportError:
        return None
    if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        return None
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(WORKING_BYTES)  # else it takes a part of all memory
    settings = faiss.GpuIndexFlatConfig()
    settings.device = vectors.device.index
    index: object = faiss.GpuIndexFlatL2(resources, components, settings)
    return index
