"""The first CUDA device that the process sees, by CuPy and torch: the `Device` of production.

Both libraries work on one stream of the engine's own, so their work runs in the order of the calls, and neither waits
for an embedding model on the same device nor makes it wait. What a batch brings and what it gets goes through pinned
memory that is taken once. There are no CUDA graphs: whether they pay can only be measured on a card.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import cupy
import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from thread_kernels import device_costs, encode, lookup, rescore, scan_exact, scan_lut, scan_wide
from thread_kernels.device import found_no_memory, lost_its_context, main_memory_bytes
from thread_kernels.interface import EngineUnavailable
from thread_kernels.lookup import Centroids
from thread_kernels.selection import Array

OLDEST = (8, 0)
"""Compute capability: the kernels are compiled for these and newer."""
_TIMES = 5
_PINNED_SHARE = 0.25
"""Of main memory: it cannot be given to others, and the system needs the rest."""
_STAGED_BYTES, _ALIGNED = 16 << 20, 64


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
        self.scan_wide = scan_wide.TritonLaunch()
        self.memory_bytes = int(share * properties.total_memory)
        self.pinned_bytes = int(_PINNED_SHARE * main_memory_bytes())
        self._costs: dict[tuple[int, int], device_costs.DeviceCosts] = {}
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream_of_torch = torch.cuda.ExternalStream(self._stream.ptr)
        self._staging = _Staging()

    @contextmanager
    def working(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream_of_torch), self._stream:
            yield

    def wait(self) -> None:
        self._stream.synchronize()

    def upload(self, values: npt.NDArray[Any]) -> Array:
        return self._staging.upload(values)

    def download(self, array: Array) -> npt.NDArray[Any]:
        return self._staging.download(array)

    def pinned(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        count = prod(shape)
        memory = cupy.cuda.PinnedMemory(max(1, count * np.dtype(dtype).itemsize))
        # Not from CuPy's pool of pinned memory, which keeps what is given back.
        return np.frombuffer(cupy.cuda.PinnedMemoryPointer(memory, 0), dtype, count).reshape(shape)

    def tensor(self, array: Array) -> torch.Tensor:
        return from_dlpack(array)

    def array(self, tensor: torch.Tensor) -> Array:
        return cupy.from_dlpack(tensor)

    def encode(self, vectors: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
        return encode.encode(vectors, centroids)

    def fill_pairs(self, queries: torch.Tensor, centroids: Centroids, pairs: torch.Tensor) -> None:
        lookup.fill_pairs(queries, centroids, pairs)

    def tables(self, queries: torch.Tensor, centroids: Centroids) -> torch.Tensor:
        return lookup.tables(queries, centroids)

    def block_distances(
        self, queries: torch.Tensor, table: scan_exact.Packed, rows: torch.Tensor, blocks: int
    ) -> torch.Tensor:
        return rescore.block_distances(queries, table, rows, blocks)

    def seconds(self, work: Callable[[], object]) -> float:
        return min(self._seconds(work) for _ in range(_TIMES))

    def costs(self, width: int, centroids: int) -> device_costs.DeviceCosts:
        # All codes of a byte are scanned alike.
        asked = width, max(centroids, scan_lut.CODES)
        if asked not in self._costs:
            self._costs[asked] = device_costs.measure(
                width,
                torch.float16,
                self.scan_lut,
                self.scan_exact,
                device_costs.seconds_on_card,
                arrays=cupy,
                device=self.torch_name,
                name=self.name,
                wide=self.scan_wide if asked[1] > scan_lut.CODES else None,
                centroids=asked[1],
            )
            self.give_back()  # the made-up rows took more than a search will
        return self._costs[asked]

    def give_back(self) -> None:
        cupy.get_default_memory_pool().free_all_blocks()
        torch.cuda.empty_cache()

    def is_out_of_memory(self, error: Exception) -> bool:
        return found_no_memory(error)

    def is_failure(self, error: Exception) -> bool:
        own = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        # torch and Triton have no class of their own for what the driver answers.
        return isinstance(error, own) or (isinstance(error, RuntimeError) and "CUDA" in str(error))

    def is_lost(self, error: Exception) -> bool:
        return lost_its_context(error)

    def _seconds(self, work: Callable[[], object]) -> float:
        self.wait()
        started = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - started


class _Staging:
    """Pinned memory that small arrays pass through, on the current stream, one after the other."""

    def __init__(self) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(_STAGED_BYTES)
        self._used = 0

    def upload(self, values: npt.NDArray[Any]) -> Array:
        array = cupy.empty(values.shape, dtype=values.dtype)
        if values.nbytes > _STAGED_BYTES:
            array.set(np.ascontiguousarray(values))
        elif values.nbytes:
            staged, pointer = self._room(array)
            staged[...] = values
            array.data.copy_from_host_async(pointer, values.nbytes)
        return array

    def download(self, array: Array) -> npt.NDArray[Any]:
        if not 0 < array.nbytes <= _STAGED_BYTES:
            copied: npt.NDArray[Any] = cupy.asnumpy(array)
            return copied
        staged, _ = self._room(array)
        cupy.asnumpy(array, out=staged)  # waits, so whatever was staged before has been read
        self._used = 0
        return staged.copy()

    def _room(self, array: Array) -> tuple[npt.NDArray[Any], int]:
        """Memory for the values of `array`, and its address."""
        if self._used + array.nbytes > _STAGED_BYTES:
            cupy.cuda.get_current_stream().synchronize()
            self._used = 0
        start = self._used
        self._used += -(-array.nbytes // _ALIGNED) * _ALIGNED
        view = np.frombuffer(self._memory, array.dtype, array.size, start)
        return view.reshape(array.shape), self._memory.ptr + start
