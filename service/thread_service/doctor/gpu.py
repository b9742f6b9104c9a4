"""The GPU: driver, devices, and the parts that compile and launch kernels.

Nothing of it is needed unless `--device cuda` asks for it; without that, what is missing is said for information.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from thread_service.doctor.result import Result, info, ok, problem
from thread_service.models.cuda_driver import Device, read_driver
from thread_service.settings import Settings

DRIVER = (12, 9)
"""The oldest CUDA version of a driver that the packages of the extras work with."""
CAPABILITY = (8, 0)
"""The oldest architecture that kernels are compiled for."""


def driver(settings: Settings) -> Result:
    try:
        found = read_driver()
    except OSError as error:
        return _missing(settings, str(error), "see what nvidia-smi says; restart the machine after a driver update")
    if found is None:
        return _missing(
            settings, "no NVIDIA driver", f"for a GPU, install a driver for CUDA {_dotted(DRIVER)} or newer"
        )
    if not found.devices:
        return _missing(
            settings, "the NVIDIA driver shows no device", "see what nvidia-smi -L says, and CUDA_VISIBLE_DEVICES"
        )
    shown = f"driver for CUDA {_dotted(found.cuda)}: " + "; ".join(map(_shown, found.devices))
    if found.cuda < DRIVER:
        return _missing(settings, shown, f"install a driver for CUDA {_dotted(DRIVER)} or newer")
    if max(device.capability for device in found.devices) < CAPABILITY:
        return _missing(settings, shown, f"the kernels need compute capability {_dotted(CAPABILITY)} or newer")
    return ok(shown)


def _shown(device: Device) -> str:
    return f"{device.name}, compute capability {_dotted(device.capability)}, {device.memory_bytes / 2**30:.0f} GiB"


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def nvrtc(settings: Settings) -> Result:
    """NVRTC compiles the kernels that are written in CUDA C; CuPy knows where its library lies."""
    try:
        from cupy_backends.cuda.libs import nvrtc as library
    except ImportError:
        return _missing(settings, "CuPy is not installed, which brings NVRTC into reach", _extra())
    try:
        return ok(f"NVRTC {_dotted(library.getVersion())}")
    except Exception as error:
        return _missing(settings, f"NVRTC cannot be loaded: {error}", _extra())


def cupy(settings: Settings) -> Result:
    return _package(settings, "CuPy", ("cupy-cuda13x", "cupy-cuda12x"), _cupy_devices)


def triton(settings: Settings) -> Result:
    found = _package(settings, "Triton", ("triton",), lambda: None)
    if found.status == "ok" and not _has_compiler():
        return _missing(
            settings,
            f"{found.found}: Triton needs a C compiler and Python's headers",
            "sudo apt install gcc python3-dev",
        )
    return found


def _has_compiler() -> bool:
    """What Triton compiles the code with that starts its kernels, when it first starts one."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")) and headers.exists()


def torch(settings: Settings) -> Result:
    return _package(settings, "torch", ("torch",), _torch_devices)


def _package(
    settings: Settings, name: str, distributions: tuple[str, ...], devices: Callable[[], int | None]
) -> Result:
    """A package of the CUDA extras; whether it sees the device too, where there is one."""
    for distribution in distributions:
        try:
            found = f"{distribution} {version(distribution)}"
        except PackageNotFoundError:
            continue
        if _has_device() and (count := devices()) is not None:
            if count == 0:
                return _missing(
                    settings, f"{found} sees no device", f"install the {name} of the CUDA version of the driver"
                )
            found = f"{found}, devices: {count}"
        return ok(found)
    return _missing(settings, f"{name} is not installed", _extra())


def _has_device() -> bool:
    try:
        found = read_driver()
    except OSError:
        return False
    return found is not None and bool(found.devices)


def _cupy_devices() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount()) if cupy.is_available() else 0


def _torch_devices() -> int:
    import torch

    return torch.cuda.device_count()


def _extra() -> str:
    return "for a GPU: pip install 'thread-node[cuda13]', or [cuda12] for a driver of CUDA 12"


def _missing(settings: Settings, found: str, remedy: str) -> Result:
    """A problem where the GPU was asked for, else information."""
    return problem(found, remedy) if settings.device == "cuda" else info(found, remedy)


def engine(settings: Settings) -> Result:
    """Whether vectors can be searched on the device that was asked for."""
    from thread_kernels import EngineUnavailable, create_engine

    try:
        found = create_engine(
            settings.device, compress=settings.compress, pq_bits=settings.pq_bits, gpu_share=settings.gpu_memory
        )
    except EngineUnavailable as error:
        return problem(f"--device {settings.device}: {error}", "give --device auto, or what the sentence asks for")
    return ok(f"--device {settings.device}: {found.name}")
