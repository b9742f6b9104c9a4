"""What the NVIDIA driver says of its devices.

It is asked through its own library, and no context is made: what else runs on a device is left alone. Nothing here
imports torch: that takes seconds.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_TOTAL_MAJOR, _TOTAL_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@dataclass(frozen=True, slots=True)
class Device:
    """`capability`: compute capability, as (major, minor)."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Driver:
    """`cuda`: the newest CUDA version the driver knows, as (major, minor)."""

    cuda: tuple[int, int]
    devices: tuple[Device, ...]


def read_driver() -> Driver | None:
    """None without a driver. `OSError`: there is one, and it does not answer."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    _ask(library, "cuInit", 0)
    number = ctypes.c_int()
    _ask(library, "cuDriverGetVersion", ctypes.byref(number))
    count = ctypes.c_int()
    _ask(library, "cuDeviceGetCount", ctypes.byref(count))
    devices = tuple(_device(library, index) for index in range(count.value))
    return Driver((number.value // 1000, number.value % 1000 // 10), devices)


def _device(library: ctypes.CDLL, index: int) -> Device:
    handle, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    _ask(library, "cuDeviceGet", ctypes.byref(handle), index)
    _ask(library, "cuDeviceGetName", name, len(name), handle)
    _ask(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
    parts = [ctypes.c_int(), ctypes.c_int()]
    for part, attribute in zip(parts, (_TOTAL_MAJOR, _TOTAL_MINOR), strict=True):
        _ask(library, "cuDeviceGetAttribute", ctypes.byref(part), attribute, handle)
    return Device(name.value.decode("utf-8", "replace"), (parts[0].value, parts[1].value), memory.value)


def _ask(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    code = getattr(library, function)(*arguments)
    if code:
        raise OSError(f"the NVIDIA driver answers {function} with error {code}")
