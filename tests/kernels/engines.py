"""The engines that the contract suite is run against. A new engine is a line here."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import numpy as np

from thread_kernels import Compress, Engine, Hits, StoredVectors, Table, create_engine
from thread_kernels.reference import ReferenceEngine, ReferenceTable


def cuda_on_the_host(compress: Compress) -> Engine:
    """The CUDA engine without a GPU. Whoever asks has the fixture `interpreter`."""
    from host_device import host_device  # what it imports reads the environment that the fixture sets

    from thread_kernels.engine_cuda import CudaEngine

    return CudaEngine(host_device(), compress)


EXACT: dict[str, Callable[[], Engine]] = {
    "reference": ReferenceEngine,
    "cpu": lambda: create_engine("cpu"),
    "cuda": lambda: create_engine("cuda"),
    "cuda on the host": lambda: cuda_on_the_host("auto"),
}
"""Their small tables give the answers of the reference."""

BY_CODE: dict[str, Callable[[], Engine]] = {
    "cpu by code": lambda: create_engine("cpu", compress="always"),
    "cuda by code": lambda: create_engine("cuda", compress="always"),
    "cuda by code on the host": lambda: cuda_on_the_host("always"),
}
"""Their tables are coded whatever their size, so that a few of the nearest rows may be missed."""

PATIENCE_S = 120


class TestedEngine:
    """One of them, which closes its tables in the end."""

    __test__ = False

    def __init__(self, name: str) -> None:
        self.is_exact = name in EXACT
        self._engine = {**EXACT, **BY_CODE}[name]()
        self._tables: list[Table] = []

    def table(self, width: int, stored: StoredVectors | None = None) -> Table:
        table = self._engine.table(width, stored)
        self._tables.append(table)
        return table

    def beside_truth(self, width: int, *parts: np.ndarray) -> tuple[Table, ReferenceTable]:
        """A table of these vectors, with nothing left to do in the background, and the reference with the same."""
        table, truth = self.table(width), ReferenceEngine().table(width)
        for vectors in parts:
            assert table.append(vectors) == truth.append(vectors)
        settle(table)
        return table, truth

    def agree(self, found: list[Hits], expected: list[Hits], missed: float = 0.1) -> None:
        """Exact engines give just what is expected; others as many rows, of which the nearest few may be missed."""
        assert len(found) == len(expected)
        total = right = 0
        for one, other in zip(found, expected, strict=True):
            assert (one.rows.dtype, one.distances.dtype) == (np.int64, np.float32)
            assert len(one.rows) == len(one.distances) == len(other.rows)
            if self.is_exact:
                np.testing.assert_array_equal(one.rows, other.rows)
                np.testing.assert_allclose(one.distances, other.distances, rtol=1e-6)
            assert len(np.unique(one.rows)) == len(one.rows)
            assert (np.diff(one.distances) >= 0).all()
            assert (one.distances >= other.distances * np.float32(1 - 1e-6)).all()
            total += len(other.rows)
            right += int(np.sum(one.distances <= other.distances.max(initial=0) * np.float32(1 + 1e-6)))
        assert right >= (1 - missed) * total

    def close(self) -> None:
        for table in self._tables:
            table.close()


def settle(table: Table) -> None:
    """Wait for the work in the background to end."""
    never = Event()
    for _ in range(PATIENCE_S * 200):
        if table.stats().state != "training":
            return
        never.wait(0.005)
    raise AssertionError(f"still at work after {PATIENCE_S} s: {table.stats()}")


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
