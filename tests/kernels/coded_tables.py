"""Tables with codes, vectors like those of text, a store to read them from, and the exact answers to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thread_kernels import Filter, Hits
from thread_kernels.compression import CompressPolicy
from thread_kernels.engine_cpu import CpuTable

PATIENCE_S = 120


def clustered(rows: int, width: int, seed: int = 1) -> np.ndarray:
    """x = normalise(z·B + 0.3·g) with 128 normals z scaled by rank^-0.5: the spectrum of text embeddings."""
    basis = np.random.default_rng(0).standard_normal((128, width))
    random = np.random.default_rng(seed)
    latent = random.standard_normal((rows, 128)) * np.arange(1, 129) ** -0.5
    vectors = latent @ basis + 0.3 * random.standard_normal((rows, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class Store:
    """Rows of float32[n, width] that a table can read; NaN once they were deleted. `read` counts them."""

    def __init__(self, width: int) -> None:
        self.vectors = np.empty((0, width), dtype=np.float32)
        self.read = 0

    def put(self, vectors: np.ndarray) -> np.ndarray:
        """Stored first and appended then, as a table may ask."""
        self.vectors = np.concatenate([self.vectors, vectors])
        return vectors

    def delete(self, rows: Sequence[int] | np.ndarray) -> None:
        self.vectors[rows] = np.nan

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        assert rows.dtype == np.int64
        assert (np.diff(rows) >= 0).all()
        self.read += len(rows)
        return self.vectors[rows]


def coded(vectors: np.ndarray, *, above: int = 0, bits: int = 8, store: Store | None = None) -> CpuTable:
    """A table of `vectors` that has all the codes it wants; with `above` 0 it answers by them whatever it costs."""
    table = CpuTable(vectors.shape[1], CompressPolicy(above, bits), store)
    grow(table, vectors, store)
    return table


def grow(table: CpuTable, vectors: np.ndarray, store: Store | None = None) -> range:
    rows = table.append(vectors if store is None else store.put(vectors))
    settle(table)
    return rows


def settle(table: CpuTable) -> None:
    assert table.compression.wait(PATIENCE_S)


def only(table: CpuTable, rows: Sequence[int] | np.ndarray) -> Filter:
    members = table.row_set()
    members.add(rows)
    return Filter.any_of(members)


def nearest_of(vectors: np.ndarray, queries: np.ndarray, k: int, rows: np.ndarray | None = None) -> list[np.ndarray]:
    """The exact answer among `rows`, or all; in no order."""
    rows = np.arange(len(vectors)) if rows is None else rows
    distances = (vectors[rows] ** 2).sum(axis=1) - 2 * queries @ vectors[rows].T
    return [rows[order] for order in np.argpartition(distances, min(k, len(rows)) - 1, axis=1)[:, :k]]


def recall(found: Sequence[Hits | np.ndarray], truth: list[np.ndarray]) -> float:
    """The part of the true rows that was found, the mean over the queries."""
    rows = [each.rows if isinstance(each, Hits) else each for each in found]
    return float(np.mean([np.isin(wanted, got).mean() for wanted, got in zip(truth, rows, strict=True)]))


def codes_of(table: Any) -> Any:
    """Those a table of either engine has now."""
    current = table.compression.current
    assert current is not None
    return current.codes


def assert_there(vectors: Any, expected: np.ndarray) -> None:
    """Whole vectors on the device, or its stand-in: those of float32[n, width] come first."""
    import torch

    from thread_kernels.scan_exact import pack

    for found, wanted in zip(vectors.packed.parts, pack(torch.from_numpy(expected), torch.float16).parts, strict=True):
        torch.testing.assert_close(found[: len(expected)], wanted, rtol=0, atol=0)
