"""`scan_lut.cu` on the CPU: compiles it with the shim in `cuda_host` and launches it from NumPy arrays."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

from thread_kernels.scan_lut import SOURCE, BlockShape, Scan
from thread_kernels.selection import Array

COMPILER = shutil.which("g++")
SHIM = Path(__file__).with_name("cuda_host")
SHAPE = BlockShape(threads=64, blocks=1)
"""Two warps: enough for both halves of a tile, several tiles a warp and appends that race."""
SANITISERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]


def build(folder: Path, *flags: str) -> Path:
    """The kernel as a shared library in `folder`."""
    library = folder / "scan_lut_host.so"
    macros = [f"-D{name}={value}" for name, value in SHAPE.definitions.items()]
    # The table is written as uint4 and read as half2, which is allowed in CUDA C and not in C++.
    options = ["-std=c++20", "-O2", "-march=native", "-fno-strict-aliasing", "-shared", "-fPIC", "-pthread"]
    folders = [f"-I{SHIM}", f"-I{SOURCE.parent}"]
    source = SHIM / "scan_lut_host.cpp"
    subprocess.run(
        [str(COMPILER), *options, *flags, *macros, *folders, str(source), "-o", str(library)], check=True, timeout=120
    )
    return library


def sanitiser() -> str:
    """The library that a process must be started with to load one built with `SANITISERS`."""
    command = [str(COMPILER), "-print-file-name=libasan.so"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class HostLaunch:
    """A `scan_lut.Launch` on NumPy arrays."""

    def __init__(self, library: Path) -> None:
        self._run = ctypes.CDLL(str(library)).run_scan_lut

    def __call__(self, scan: Scan, bounds: Array, tile_stride: int, keys: Array, counts: Array) -> None:
        (pairs, chunks), chunk_tiles = SHAPE.grid(scan, tile_stride, multiprocessors=1)
        arrays = (scan.tables, scan.codes, scan.bitmaps, scan.filter_of, bounds, keys, counts)
        numbers = (scan.queries, scan.rows, tile_stride, chunk_tiles, keys.shape[1])
        assert all(array.flags.c_contiguous for array in arrays)
        self._run(pairs, chunks, *(ctypes.c_void_p(array.ctypes.data) for array in arrays), *numbers)
