"""Where local models can run. Torch is not imported for it: that takes seconds, and a node on ONNX does without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal

from thread_service.models.cuda_driver import read_driver
from thread_service.models.weights import Format

Device = Literal["cpu", "cuda"]


def device_for(wish: Literal["auto", "cpu", "cuda"]) -> Device:
    """The device for models; "auto" takes CUDA where there are a device and torch."""
    if wish == "auto":
        return "cuda" if has_torch() and _has_cuda_device() else "cpu"
    return wish


def formats_for(device: Device) -> Sequence[Format]:
    """The forms of weights that can be run, best first: on a CPU onnxruntime starts sooner and takes less memory."""
    if not has_torch():
        return ("onnx",)
    return ("safetensors", "onnx") if device == "cuda" else ("onnx", "safetensors")


def has_torch() -> bool:
    """Whether torch and transformers are installed."""
    return find_spec("torch") is not None and find_spec("transformers") is not None


@cache
def _has_cuda_device() -> bool:
    try:
        driver = read_driver()
    except OSError:
        return False
    return driver is not None and bool(driver.devices)
