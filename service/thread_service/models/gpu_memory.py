"""How much memory of each GPU is in use, whoever uses it, as NVIDIA's management library says.

A vLLM beside the node counts too, which is what an operator wants to see. Nothing is taken on the device: the library
(NVML, part of the driver) makes no context.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """`index`: the device's number as in nvidia-smi, which CUDA_VISIBLE_DEVICES does not change."""

    index: int
    used_bytes: int
    free_bytes: int


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read_gpu_memory() -> tuple[GpuMemory, ...]:
    """Empty without a driver, or when it does not answer."""
    library = _library()
    if library is None:
        return ()
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return ()
    found = (_of_device(library, index) for index in range(count.value))
    return tuple(memory for memory in found if memory is not None)


def _of_device(library: ctypes.CDLL, index: int) -> GpuMemory | None:
    handle, memory = ctypes.c_void_p(), _Memory()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return None
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return GpuMemory(index, memory.used, memory.free)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
