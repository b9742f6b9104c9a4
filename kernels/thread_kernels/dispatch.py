"""Which engine serves this device. An explicit wish that cannot be met is an error, never a silent fallback."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Literal, get_args

from thread_kernels.interface import Compress, Engine, EngineUnavailable

Device = Literal["auto", "cpu", "cuda"]

MOST_BITS = 16
"""Of a code in one sub-space."""
_DEFAULT_BITS = 8
_PACKAGES = {"cupy": "CuPy", "torch": "torch", "triton": "Triton"}

_log = logging.getLogger(__name__)


def create_engine(
    device: Device = "auto", *, compress: Compress = "auto", pq_bits: int = _DEFAULT_BITS, gpu_share: float = 1.0
) -> Engine:
    """The engine for `device`; "auto" takes the best that runs here.

    `pq_bits`: at most 2^bits centroids a sub-space; the CPU engine uses at most 4 bits. `gpu_share`: the part of a
    GPU's memory that tables may take. EngineUnavailable when it cannot run here; ValueError for another name, number of
    bits or share.
    """
    if device not in get_args(Device):
        raise ValueError(f"device is one of {', '.join(get_args(Device))}, not {device!r}")
    if compress not in get_args(Compress):
        raise ValueError(f"compress is one of {', '.join(get_args(Compress))}, not {compress!r}")
    if not 1 <= pq_bits <= MOST_BITS:
        raise ValueError(f"pq_bits is 1 to {MOST_BITS}, not {pq_bits}")
    if not 0 < gpu_share <= 1:
        raise ValueError(f"gpu_share is over 0 up to 1, not {gpu_share}")
    if device == "cuda":
        return _cuda(compress, pq_bits, gpu_share)
    if device == "auto" and not _missing():  # without the packages nobody expects a GPU to be used
        try:
            return _cuda(compress, pq_bits, gpu_share)
        except EngineUnavailable as error:
            _log.info("the CPU searches: %s", error)
        except Exception:
            _log.warning("the CPU searches: the CUDA engine does not start", exc_info=True)
    if find_spec("faiss") is None:
        raise EngineUnavailable(
            "the CPU engine needs FAISS, which is not installed; type: pip install 'thread-node[cpu]'"
        )
    if pq_bits > _DEFAULT_BITS:  # somebody asked for it
        _log.warning("of %d bits a code the CPU engine uses 4; more take a GPU, with --device cuda", pq_bits)
    from thread_kernels.engine_cpu import CpuEngine  # FAISS is an optional dependency and takes a while to load

    return CpuEngine(compress, pq_bits)


def _cuda(compress: Compress, pq_bits: int, gpu_share: float) -> Engine:
    if missing := _missing():
        raise EngineUnavailable(
            f"the CUDA engine needs {', '.join(missing)}; type: pip install 'thread-node[cuda13]', or [cuda12] for a "
            "driver of CUDA 12"
        )
    from thread_kernels.scan_lut import cupy_with_a_device

    cupy_with_a_device()  # before torch, which takes seconds to load
    from thread_kernels.device_cuda import CudaDevice
    from thread_kernels.engine_cuda import CudaEngine

    return CudaEngine(CudaDevice(gpu_share), compress, pq_bits)


def _missing() -> list[str]:
    """What the CUDA engine needs and is not installed."""
    return [name for package, name in _PACKAGES.items() if find_spec(package) is None]
