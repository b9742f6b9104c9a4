"""The seam between the CUDA engine and the card: what the engine asks of a device, and what it keeps there.

`device_cuda` is the card. Whatever fulfils `Device` runs the whole engine; with NumPy as the array module and the
kernels compiled for the CPU, that needs no GPU.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch

from thread_kernels import scan_exact, scan_lut, scan_wide
from thread_kernels.device_costs import DeviceCosts
from thread_kernels.lookup import Centroids
from thread_kernels.scan_exact import Packed
from thread_kernels.selection import Array, Launch

_log = logging.getLogger(__name__)


_NO_MEMORY = ("out of memory", "ALLOC_FAILED")
"""In what the runtime, the driver and cuBLAS say; torch and Triton have no class of their own for most of it."""
FOR_QUERIES_BYTES = 64 << 20
"""Of what is left free, for the bitmaps of filters and the tables of queries alone: 50 row sets at ten million rows."""
_STICKY = {
    4: "driver shutting down",
    46: "device(s) is/are busy or unavailable",
    100: "no cuda-capable device is detected",
    214: "uncorrectable ecc error",
    220: "uncorrectable nvlink error",
    226: "invalid access of peer gpu memory over nvlink or a hardware error",
    700: "illegal memory access",
    702: "launch timed out",
    709: "context is destroyed",
    710: "device-side assert",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    999: "unknown error",
}
"""The errors of the CUDA driver and runtime that no later call recovers from, and what they call them."""
_FREED_FRACTION, _FREED_BYTES = 16, 256 << 20
"""Of the engine's share, and at most: what libraries may keep of memory that was let go of."""
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


class OutOfRoom(MemoryError):
    """What should stay on the device does not fit beside what is there."""


class DeviceFailed(RuntimeError):
    """The device did not do what it was asked; it may do the next thing."""


class DeviceLost(DeviceFailed):
    """The device does not answer any more, nor will it before the process starts anew."""


class Device(Protocol):
    """Calls return before the work is done, and run in the order of the calls; `download` waits."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def arrays(self) -> Any:
        """The array module: numpy, or one with its functions."""

    @property
    def torch_name(self) -> str:
        """What torch calls it."""

    @property
    def memory_bytes(self) -> int:
        """What the engine may take there."""

    @property
    def pinned_bytes(self) -> int:
        """What the engine may keep in main memory for the device to read."""

    @property
    def scan_lut(self) -> Launch[scan_lut.Scan]: ...

    @property
    def scan_wide(self) -> Launch[scan_wide.Scan]: ...

    @property
    def scan_exact(self) -> Launch[scan_exact.Scan]: ...

    def working(self) -> AbstractContextManager[object]:
        """What is called inside runs in the engine's own order, beside what others do with the device."""

    def wait(self) -> None:
        """Until all that the engine called for is done."""

    def upload(self, values: npt.NDArray[Any]) -> Array:
        """A copy on the device."""

    def download(self, array: Array) -> npt.NDArray[Any]:
        """A copy in main memory."""

    def pinned(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Room in main memory, with anything in it, that kernels read where it lies."""

    def tensor(self, array: Array) -> torch.Tensor:
        """The same memory as a tensor."""

    def array(self, tensor: torch.Tensor) -> Array:
        """The same memory as an array."""

    def encode(self, vectors: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
        """As `encode.encode`."""

    def fill_pairs(self, queries: torch.Tensor, centroids: Centroids, pairs: torch.Tensor) -> None:
        """As `lookup.fill_pairs`."""

    def tables(self, queries: torch.Tensor, centroids: Centroids) -> torch.Tensor:
        """As `lookup.tables`."""

    def block_distances(self, queries: torch.Tensor, table: Packed, rows: torch.Tensor, blocks: int) -> torch.Tensor:
        """As `rescore.block_distances`."""

    def seconds(self, work: Callable[[], object]) -> float:
        """What `work` takes on the device; the fastest of a few times."""

    def costs(self, width: int, centroids: int) -> DeviceCosts:
        """Of tables with codes of so many centroids a sub-space; measured when they are asked for first."""

    def give_back(self) -> None:
        """Return to the device what libraries keep of its memory for later."""

    def is_out_of_memory(self, error: Exception) -> bool: ...

    def is_failure(self, error: Exception) -> bool:
        """Whether the device, or a library that drives it, says this, and not a mistake in a call."""

    def is_lost(self, error: Exception) -> bool:
        """Whether nothing on the device can be trusted after this failure."""


def main_memory_bytes(limit: Path = _CONTAINER_LIMIT) -> int:
    """Of the machine, or what the container may take of it: the number in `limit`, if there is one."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(installed, int(limit.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return installed


def found_no_memory(error: Exception) -> bool:
    """Whether that is what CuPy, torch, Triton or a library under them says."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


def lost_its_context(error: Exception) -> bool:
    """Whether it is an error of CUDA after which no call of this process succeeds any more.

    By its code where CuPy or torch says it, else by the driver's words for that code, which torch and Triton repeat.
    """
    code = getattr(error, "status", getattr(error, "error_code", None))
    if isinstance(code, int):
        return code in _STICKY
    said = str(error).lower()
    return any(words in said for words in _STICKY.values())


class Lease:
    """Where whole vectors lie, for all versions that share them, until it is over. For who uses the device."""

    def __init__(self, values: Array, scales: Array, squares: Array, *, is_resident: bool) -> None:
        self._parts: tuple[Array, Array, Array] | None = (values, scales, squares)
        self.is_resident = is_resident
        """Whether the values lie on the device: then others may want their place more, and end it."""

    @property
    def is_over(self) -> bool:
        return self._parts is None

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """Values, scales and squares. OutOfRoom when it is over."""
        if self._parts is None:
            raise OutOfRoom("others have taken the place of the vectors")
        return self._parts

    def end(self) -> tuple[Array, Array, Array]:
        """What it was for: whoever holds it no longer gives the memory back."""
        parts = self.parts
        self._parts = None
        return parts


class Residence:
    """What an engine keeps on its device, which one thread at a time uses."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.fault: str | None = None
        """Why the device is not used any more."""
        self._owner = RLock()
        self._used = self._pinned = self._for_queries = self._reserved = self._freed = 0
        self._leases: WeakSet[Lease] = WeakSet()
        self._counting = RLock()  # memory is given back wherever the last reader lets go of it

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def pinned_bytes(self) -> int:
        return self._pinned

    @property
    def reserved_bytes(self) -> int:
        """Left free for work and queries: what was asked for, but no more than half of the engine's share."""
        return min(self._reserved, self.device.memory_bytes // 2)

    def reserve(self, size: int) -> None:
        """Leave at least `size` bytes free for what work takes for a moment."""
        self._reserved = max(self._reserved, size)

    def count(self, tensor: torch.Tensor) -> None:
        """Count what lies on the device already, until nobody holds it."""
        self._count(tensor.nbytes, 0)
        weakref.finalize(tensor, self._count, -tensor.nbytes, 0)

    def lease(self, values: Array, scales: Array, squares: Array, *, is_resident: bool) -> Lease:
        lease = Lease(values, scales, squares, is_resident=is_resident)
        if is_resident:
            self._leases.add(lease)
        return lease

    def largest_lease(self) -> Lease | None:
        """Of those whose vectors lie on the device."""
        present = [lease for lease in self._leases if not lease.is_over]
        return max(present, key=lambda lease: len(lease.parts[0]), default=None)

    def room(self, shape: tuple[int, ...], dtype: npt.DTypeLike, *, is_for_queries: bool = False) -> Array:
        """Zeros that stay, counted until nobody holds them. OutOfRoom beyond the engine's share of the memory less what
        is left free; what `is_for_queries` may take its part of that."""
        for_queries = min(FOR_QUERIES_BYTES, self.reserved_bytes // 2)
        left = self.device.memory_bytes - self.reserved_bytes - self._used
        left += for_queries if is_for_queries else min(for_queries, self._for_queries)
        make = partial(self.device.arrays.zeros, shape, dtype=dtype)
        array, size = self._made(make, shape, dtype, left, f"on {self.device.name}")
        asked = size if is_for_queries else 0
        self._count(size, 0, asked)
        weakref.finalize(array, self._count, -size, 0, -asked)
        return array

    def pinned_room(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Room in main memory that the device reads, with anything in it; as `room` otherwise."""
        left = self.device.pinned_bytes - self._pinned
        made = self._made(partial(self.device.pinned, shape, dtype), shape, dtype, left, "in main memory")
        array: npt.NDArray[Any] = made[0]
        self._count(0, made[1])
        weakref.finalize(array, self._count, 0, -made[1])
        return array

    @contextmanager
    def using(self) -> Iterator[Device]:
        """The device, for one thread at a time. OutOfRoom, DeviceFailed and DeviceLost, whatever the libraries call
        it."""
        with self._owner:
            if self.fault is not None:
                raise DeviceLost(self.fault)
            with self._naming_errors(), self.device.working():
                self._give_back_what_was_freed()
                yield self.device

    @contextmanager
    def using_for_a_piece(self) -> Iterator[Device]:
        """As `using`, for a piece of long work. It is waited for when others may use the device already: what they
        call for comes behind one piece, not behind all of the work."""
        with self.using() as device:
            yield device
        with self._naming_errors():
            self.device.wait()

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except (OutOfRoom, DeviceFailed):
            raise
        except Exception as error:
            if self.device.is_out_of_memory(error):
                self.device.give_back()
                raise OutOfRoom(f"{self.device.name} has no memory left: {error}") from error
            if not self.device.is_failure(error):
                raise
            if not self.device.is_lost(error):
                raise DeviceFailed(f"{self.device.name}: {error}") from error
            self.fault = f"{self.device.name} does not answer: {error}"
            _log.error("%s; searches are exact on the CPU until the node is started again", self.fault)
            raise DeviceLost(self.fault) from error

    def _give_back_what_was_freed(self) -> None:
        """The libraries keep it, but others want it too. Only once it is much: giving back waits for the device."""
        if self._freed >= min(self.device.memory_bytes // _FREED_FRACTION, _FREED_BYTES):
            with self._counting:
                self._freed = 0
            self.device.give_back()

    def _made(
        self, make: Callable[[], Array], shape: tuple[int, ...], dtype: npt.DTypeLike, left: int, where: str
    ) -> tuple[Array, int]:
        """The array and its bytes. OutOfRoom for more than are `left`, or than there are."""
        size, left = prod(shape) * np.dtype(dtype).itemsize, max(0, left)
        if size > left:
            raise OutOfRoom(f"{size / 1e9:.2f} GB are needed {where}, and {left / 1e9:.2f} GB are left")
        try:
            try:
                return make(), size
            except Exception as error:
                if not self.device.is_out_of_memory(error):
                    raise
                self.device.give_back()  # what libraries kept for later may be enough
                return make(), size
        except Exception as error:
            if not self.device.is_out_of_memory(error):
                raise
            raise OutOfRoom(f"{size / 1e9:.2f} GB are needed {where}, and there are fewer: {error}") from error

    def _count(self, size: int, pinned: int, for_queries: int = 0) -> None:
        with self._counting:
            self._used += size
            self._pinned += pinned
            self._for_queries += for_queries
            self._freed += max(0, -size)
