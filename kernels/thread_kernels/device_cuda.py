"""The first CUDA device that the process sees, by CuPy and torch: the `Device` of production.

Both libraries work on the default stream, so their work runs in the order of the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from thread_kernels import device_costs, encode, lookup, scan_exact, scan_lut
from thread_kernels.interface import EngineUnavailable
from thread_kernels.lookup import Centroids
from thread_kernels.selection import Array

OLDEST = (8, 0)
"""Compute capability: the kernels are compiled for these and newer."""
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, and CUDA_ERROR_OUT_OF_MEMORY of the driver
_TIMES = 5


class CudaDevice:
    """A `Device` that may keep the part `share` of its memory. EngineUnavailable says what is missing."""

    arrays = cupy
    torch_name = "cuda"

    def __init__(self, share: float) -> None:
        self.scan_lut = scan_lut.CudaLaunch()
        if not torch.cuda.is_available():
            raise EngineUnavailable(
                "torch sees no CUDA device though CuPy does; install the torch of the driver's CUDA version, with "
                "pip install 'thread-node[cuda13]' (or cuda12)"
            )
        properties = torch.cuda.get_device_properties(0)
        if (properties.major, properties.minor) < OLDEST:
            raise EngineUnavailable(
                f"{properties.name} has compute capability {properties.major}.{properties.minor}; the kernels need "
                f"{OLDEST[0]}.{OLDEST[1]} or newer"
            )
        self.name = f"{properties.name} (cuda:0)"
        self.scan_exact = scan_exact.TritonLaunch()
        self.memory_bytes = int(share * properties.total_memory)
        self._product_from: dict[int, int | None] = {}

    def upload(self, values: npt.NDArray[Any]) -> Array:
        return cupy.asarray(values)

    def download(self, array: Array) -> npt.NDArray[Any]:
        copied: npt.NDArray[Any] = cupy.asnumpy(array)
        return copied

    def tensor(self, array: Array) -> torch.Tensor:
        return from_dlpack(array)

    def array(self, tensor: torch.Tensor) -> Array:
        return cupy.from_dlpack(tensor)

    def encode(self, vectors: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
        return encode.encode(vectors, centroids)

    def fill_pairs(self, queries: torch.Tensor, centroids: Centroids, pairs: torch.Tensor) -> None:
        lookup.fill_pairs(queries, centroids, pairs)

    def seconds(self, work: Callable[[], object]) -> float:
        return min(self._seconds(work) for _ in range(_TIMES))

    def product_from(self, width: int) -> int | None:
        if width not in self._product_from:
            costs = device_costs.measure(
                width,
                torch.float16,
                self.scan_lut,
                self.scan_exact,
                device_costs.seconds_on_card,
                arrays=cupy,
                device=self.torch_name,
            )
            self._product_from[width] = costs.product_from
        return self._product_from[width]

    def give_back(self) -> None:
        cupy.get_default_memory_pool().free_all_blocks()
        torch.cuda.empty_cache()

    def is_out_of_memory(self, error: Exception) -> bool:
        if isinstance(error, (torch.cuda.OutOfMemoryError, cupy.cuda.memory.OutOfMemoryError)):
            return True
        return getattr(error, "status", None) == _OUT_OF_MEMORY or "out of memory" in str(error)

    def is_lost(self, error: Exception) -> bool:
        own = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        # torch and Triton have no class of their own for what the driver answers.
        return isinstance(error, own) or (isinstance(error, RuntimeError) and "CUDA" in str(error))

    @staticmethod
    def _seconds(work: Callable[[], object]) -> float:
        cupy.cuda.get_current_stream().synchronize()
        started = time.perf_counter()
        work()
        cupy.cuda.get_current_stream().synchronize()
        return time.perf_counter() - started
