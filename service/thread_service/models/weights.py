"""Which of a model's files are its weights, and in which form: ONNX for onnxruntime, safetensors for torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from thread_service.models.embedder import ModelUnavailable

Format = Literal["onnx", "safetensors"]

SAFETENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Weights in several files: `weight_map` says which tensor is in which."""


class Weights(NamedTuple):
    """`name`: a POSIX path relative to the model."""

    format: Format
    name: str


def choose_weights(names: Iterable[str], where: str, formats: Sequence[Format]) -> Weights:
    """The weights among `names` (POSIX paths relative to the model), in the first of the `formats` that is there.

    ONNX: `onnx/model.onnx`, else `model.onnx`, else the only one. safetensors: `model.safetensors`, else its index.
    Raises ModelUnavailable for none, and for several ONNX files where there is nothing else.
    """
    names = set(names)
    onnx = sorted(name for name in names if name.endswith(".onnx"))
    safetensors = next((name for name in (SAFETENSORS, INDEX) if name in names), None)
    usual = next((name for name in ("onnx/model.onnx", "model.onnx") if name in onnx), None)
    graph = usual or (onnx[0] if len(onnx) == 1 else None)
    for format in formats:
        name = graph if format == "onnx" else safetensors
        if name is not None:
            return Weights(format, name)
    if onnx:
        raise ModelUnavailable(f"several .onnx files in {where}, none called model.onnx: {', '.join(onnx)}")
    if safetensors is not None:
        raise ModelUnavailable(
            f"no .onnx file in {where}, and {safetensors} needs torch and transformers, which are not installed: "
            "pip install 'thread-node[torch]', or name a model published in ONNX form"
        )
    raise ModelUnavailable(
        f"no .onnx file in {where}, nor {SAFETENSORS}: name a model published in one of these forms, or export it to "
        "onnx/model.onnx"
    )


def shards(weights: Path) -> tuple[Path, ...]:
    """The files that hold the tensors: `weights` itself, those that it names if it is an index, and if it is an ONNX
    graph those beside it that are called after it: over 2 GB they lie in model.onnx_data or model.onnx.data.

    Raises ModelUnavailable for a damaged index, and for a file that it names and that is missing.
    """
    if weights.suffix == ".onnx":
        beside = (f"{weights.name}_data", f"{weights.name}.data")
        return (weights, *sorted(path for path in weights.parent.iterdir() if path.name.startswith(beside)))
    if weights.name != INDEX:
        return (weights,)
    try:
        names = sorted(set(json.loads(weights.read_bytes())["weight_map"].values()))
        found = tuple(weights.with_name(name) for name in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelUnavailable(f"{weights} is not an index of safetensors files ({error!r})") from error
    for path in found:
        if not path.is_file():
            raise ModelUnavailable(f"{path} is missing, which {weights.name} names: fetch the model again")
    return found
