"""Which engine serves this device. An explicit wish that cannot be met is an error, never a silent fallback."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, get_args

from thread_kernels.interface import Engine, EngineUnavailable

Device = Literal["auto", "cpu", "cuda"]


def create_engine(device: Device = "auto") -> Engine:
    """The engine for `device`; "auto" takes the best that runs here.

    EngineUnavailable when it cannot run here; ValueError for another name.
    """
    if device not in get_args(Device):
        raise ValueError(f"device is one of {', '.join(get_args(Device))}, not {device!r}")
    if device == "cuda":
        raise EngineUnavailable(
            "this version has no CUDA engine, so no package or driver would help; the device cpu (or auto) works here"
        )
    if find_spec("faiss") is None:
        raise EngineUnavailable(
            "the CPU engine needs FAISS, which is not installed; type: pip install 'thread-node[cpu]'"
        )
    from thread_kernels.engine_cpu import CpuEngine  # FAISS is an optional dependency and takes a while to load

    return CpuEngine()
