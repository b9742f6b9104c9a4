"""Compiles every GPU kernel ahead of time, without a GPU, and says what each needs of the card.

    python -m thread_kernels.compile --arch 80 86 89 90

prints one line per kernel and architecture, such as `scan_lut sm_80 registers 64 spills 0 shared 65536` (spills and
shared memory in bytes). It fails when a kernel does not compile, spills registers, or needs more shared memory than a
block of that architecture may have. The tools come with packages: Triton brings its own ptxas, NVRTC and the CUDA
headers are wheels.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thread_kernels import scan_lut

SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}
"""What one block may have, by compute capability (CUDA C++ Programming Guide, technical specifications)."""

_WIDTH, _COMPONENTS = 1_024, 16
"""Of a vector, and of each of its 64 sub-spaces."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel needs, as its compiler says."""

    registers: int
    """A thread."""
    spills: int
    """Bytes stored to and loaded from memory for want of registers."""
    shared: int
    """Bytes a block."""

    @classmethod
    def read(cls, log: str, shared: int) -> Resources:
        """From what `ptxas -v` writes about one kernel; `shared` is what a launch asks for."""
        [registers] = re.findall(r"Used (\d+) registers", log)
        spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
        return cls(int(registers), sum(map(int, spills)), shared)

    def faults(self, architecture: int) -> list[str]:
        faults = []
        if self.spills:
            faults.append(f"{self.spills} bytes of registers are spilled to memory")
        if self.shared > SHARED_BYTES[architecture]:
            faults.append(f"{self.shared} bytes of shared memory; a block may have {SHARED_BYTES[architecture]}")
        return faults


def compile_cuda(source: Path, definitions: Mapping[str, int], shared: int, architecture: int) -> Resources:
    """The only kernel of the CUDA C file `source`, by NVRTC. `shared` is what its launch asks for, in bytes."""
    from cuda.core import Program, ProgramOptions
    from cuda.pathfinder import find_nvidia_header_directory

    options = ProgramOptions(
        arch=f"sm_{architecture}",
        std="c++17",
        define_macro=[(name, str(value)) for name, value in definitions.items()] or None,
        include_path=find_nvidia_header_directory("cudart"),
        ptxas_options=["-v"],
    )
    log = io.StringIO()
    Program(source.read_text(), "c++", options).compile("cubin", logs=log)
    return Resources.read(log.getvalue(), shared)


def compile_triton(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, int],
    architecture: int,
    options: Mapping[str, int] | None = None,
) -> Resources:
    """A Triton `kernel` for pointers and numbers of the types in `signature`, with `options` such as `num_warps`.

    Pointers are multiples of 16 bytes, as those of every allocation on a card are.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    aligned = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, type in signature.items()
        if type.startswith("*")
    }
    source = ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, dict(constants), aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=dict(options or {}))
    # Triton keeps its own assembler's report to itself, so its output is assembled once more.
    ptxas = get_ptxas(architecture).path  # it brings several, and later versions one for sm_90 of its own
    target = re.search(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)
    assert target is not None, "PTX names its target"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(compiled.asm["ptx"])
        command = [ptxas, "-v", f"--gpu-name={target[1]}", str(path), "-o", str(path.with_suffix(".cubin"))]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return Resources.read(log, compiled.metadata.shared)


def _scan_lut(architecture: int) -> Resources:
    definitions = scan_lut.BlockShape.of(architecture).definitions
    return compile_cuda(scan_lut.SOURCE, definitions, scan_lut.TABLE_BYTES, architecture)


def _compiled(
    kernel: Any,
    pointers: Mapping[str, str],
    constants: Mapping[str, int],
    architecture: int,
    options: Mapping[str, int] | None = None,
) -> Resources:
    """`kernel` for `pointers` of these types and `constants`; its other arguments are numbers."""
    types = {name: pointers.get(name, "i32") for name in kernel.arg_names if name not in constants}
    return compile_triton(kernel, types, constants, architecture, options)


def _lookup(architecture: int, out: str) -> Resources:
    from thread_kernels import lookup

    pointers = dict.fromkeys(("queries", "centred", "offsets", "scales"), "*fp32") | {"out": out}
    return _compiled(lookup.lookup_kernel, pointers, {**lookup.TILE, "WIDTH": _COMPONENTS}, architecture)


def _encode(architecture: int, codes: str, centroids: int) -> Resources:
    from thread_kernels import encode

    types = {"vectors": "*fp32", "means": "*fp32", "centred": "*fp32", "halves": "*fp32", "codes": codes}
    constants = {**encode.TILE, "WIDTH": _COMPONENTS, "CODES": centroids}
    return _compiled(encode.encode_kernel, types, constants, architecture)


def _scan_exact(architecture: int, dtype: str, queries: int) -> Resources:
    import torch

    from thread_kernels import scan_exact

    kind, name = (torch.int8, "*i8") if dtype == "int8" else (torch.float16, "*fp16")
    types = {"asked": name, "stored": name, "factors": "*fp32", "scales": "*fp32", "squares": "*fp32"}
    types |= {"bitmaps": "*u32", "filter_of": "*i32", "bounds": "*u64", "keys": "*u64", "counts": "*u32"}
    constants = scan_exact.constants(queries, _WIDTH, kind)
    return _compiled(scan_exact.scan_exact_kernel, types, constants, architecture, scan_exact.OPTIONS)


def _scan_wide(architecture: int, centroids: int) -> Resources:
    from thread_kernels import scan_wide

    types = {"tables": "*fp32", "codes": "*u16", "bitmaps": "*u32", "filter_of": "*i32"}
    types |= {"bounds": "*u64", "keys": "*u64", "counts": "*u32"}
    constants = {**scan_wide.PART, "SUBSPACES": _WIDTH // _COMPONENTS, "CENTROIDS": centroids}
    return _compiled(scan_wide.scan_wide_kernel, types, constants, architecture)


def _block_distances(architecture: int, blocks: int) -> Resources:
    from thread_kernels import rescore

    types = {
        "queries": "*fp32",
        "values": "*fp16",
        "scales": "*fp32",
        "squares": "*fp32",
        "rows": "*i64",
        "distances": "*fp32",
    }
    return _compiled(rescore.block_distances_kernel, types, rescore.constants(_WIDTH, blocks), architecture)


KERNELS: dict[str, Callable[[int], Resources]] = {
    "block_distances": lambda architecture: _block_distances(architecture, blocks=16),
    "block_distances_whole": lambda architecture: _block_distances(architecture, blocks=1),
    "encode": lambda architecture: _encode(architecture, "*u8", centroids=256),
    "encode_wide": lambda architecture: _encode(architecture, "*u16", centroids=65_536),
    "lookup_fp16": lambda architecture: _lookup(architecture, "*fp16"),
    "lookup_fp32": lambda architecture: _lookup(architecture, "*fp32"),
    "scan_exact_fp16": lambda architecture: _scan_exact(architecture, "float16", queries=256),
    "scan_exact_fp16_few": lambda architecture: _scan_exact(architecture, "float16", queries=1),
    "scan_exact_int8": lambda architecture: _scan_exact(architecture, "int8", queries=256),
    "scan_exact_int8_few": lambda architecture: _scan_exact(architecture, "int8", queries=1),
    "scan_lut": _scan_lut,
    "scan_wide": lambda architecture: _scan_wide(architecture, centroids=512),
    "scan_wide_most": lambda architecture: _scan_wide(architecture, centroids=65_536),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile for the architectures in `arguments`; 0 when every kernel fits its card."""
    parser = argparse.ArgumentParser(prog="python -m thread_kernels.compile", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--arch", nargs="+", type=int, choices=SHARED_BYTES, default=list(SHARED_BYTES), help="compute capabilities"
    )
    architectures = parser.parse_args(arguments).arch
    os.environ.pop("TRITON_INTERPRET", None)  # with it, Triton makes kernels that cannot be compiled

    failed = False
    for name, compiled in KERNELS.items():
        for architecture in architectures:
            try:
                needs = compiled(architecture)
            except ImportError as error:
                parser.error(f"{error}; type: pip install 'thread-node[dev]'")
            except Exception as error:
                sys.stderr.write(f"{name} sm_{architecture}: does not compile\n{error}\n")
                failed = True
                continue
            sys.stdout.write(
                f"{name} sm_{architecture} registers {needs.registers} spills {needs.spills} shared {needs.shared}\n"
            )
            for fault in needs.faults(architecture):
                sys.stderr.write(f"{name} sm_{architecture}: {fault}\n")
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
