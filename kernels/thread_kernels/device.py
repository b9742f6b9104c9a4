"""The seam between the CUDA engine and the card: what the engine asks of a device, and what it keeps there.

`device_cuda` is the card. Whatever fulfils `Device` runs the whole engine; with NumPy as the array module and the
kernels compiled for the CPU, that needs no GPU.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from threading import RLock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from thread_kernels import scan_exact, scan_lut
from thread_kernels.lookup import Centroids
from thread_kernels.selection import Array, Launch

_log = logging.getLogger(__name__)


class OutOfRoom(MemoryError):
    """What should stay on the device does not fit beside what is there."""


class DeviceLost(RuntimeError):
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
        """What the engine may keep there."""

    @property
    def scan_lut(self) -> Launch[scan_lut.Scan]: ...

    @property
    def scan_exact(self) -> Launch[scan_exact.Scan]: ...

    def upload(self, values: npt.NDArray[Any]) -> Array:
        """A copy on the device."""

    def download(self, array: Array) -> npt.NDArray[Any]:
        """A copy in main memory."""

    def tensor(self, array: Array) -> torch.Tensor:
        """The same memory as a tensor."""

    def array(self, tensor: torch.Tensor) -> Array:
        """The same memory as an array."""

    def encode(self, vectors: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
        """As `encode.encode`."""

    def fill_pairs(self, queries: torch.Tensor, centroids: Centroids, pairs: torch.Tensor) -> None:
        """As `lookup.fill_pairs`."""

    def seconds(self, work: Callable[[], object]) -> float:
        """What `work` takes on the device; the fastest of a few times."""

    def product_from(self, width: int) -> int | None:
        """Queries from which a scan of whole rows beats one of their codes (`device_costs`); None if it never does."""

    def give_back(self) -> None:
        """Return to the device what libraries keep of its memory for later."""

    def is_out_of_memory(self, error: Exception) -> bool: ...

    def is_lost(self, error: Exception) -> bool:
        """Whether nothing on the device can be trusted after this error."""


class Residence:
    """What an engine keeps on its device, which one thread at a time uses."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.fault: str | None = None
        """Why the device is not used any more."""
        self._owner = RLock()
        self._used = 0
        self._counting = RLock()  # memory is given back wherever the last reader lets go of it

    @property
    def used_bytes(self) -> int:
        return self._used

    def room(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Zeros that stay, counted until nobody holds them. OutOfRoom beyond the engine's share of the memory."""
        size = prod(shape) * np.dtype(dtype).itemsize
        left = self.device.memory_bytes - self._used
        if size > left:
            raise OutOfRoom(f"{size / 1e9:.2f} GB are needed on {self.device.name}, and {left / 1e9:.2f} GB are left")
        array = self.device.arrays.zeros(shape, dtype=dtype)
        self._count(size)
        weakref.finalize(array, self._count, -size)
        return array

    @contextmanager
    def using(self) -> Iterator[Device]:
        """The device, for one thread at a time. OutOfRoom and DeviceLost, whatever the libraries call it."""
        with self._owner:
            if self.fault is not None:
                raise DeviceLost(self.fault)
            try:
                yield self.device
            except (OutOfRoom, DeviceLost):
                raise
            except Exception as error:
                if self.device.is_out_of_memory(error):
                    self.device.give_back()
                    raise OutOfRoom(f"{self.device.name} has no memory left: {error}") from error
                if self.device.is_lost(error):
                    self.fault = f"{self.device.name} does not answer: {error}"
                    _log.error("%s; searches are exact on the CPU until the node is started again", self.fault)
                    raise DeviceLost(self.fault) from error
                raise

    def _count(self, size: int) -> None:
        with self._counting:
            self._used += size
