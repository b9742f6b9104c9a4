"""A checkpoint in safetensors files, loaded into one of transformers' classes: every tensor in its place, or an error.

Imported by a node that runs a model on torch, and by no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import PretrainedConfig, PreTrainedModel

from thread_service.models.embedder import ModelUnavailable
from thread_service.models.folder import Dense, ModelFolder

# What loading means for an operator is said by `ModelUnavailable` and by the status.
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# What pre-training leaves behind, by the names of BERT, RoBERTa, DistilBERT, ALBERT and ModernBERT.
_OTHER_HEADS = ("cls.", "lm_head.", "vocab_", "predictions.", "head.", "decoder.", "pooler.")

_ACTIVATIONS: Mapping[str, type[torch.nn.Module]] = {
    name: getattr(torch.nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
}


def load_model(
    model: type[PreTrainedModel], folder: ModelFolder, config: PretrainedConfig, *, dtype: torch.dtype, strict: bool
) -> PreTrainedModel:
    """`strict`: not even the heads of pre-training may be left over. Raises ModelUnavailable."""
    home = _file_of_tensor(folder)
    try:
        try:
            loaded, report = _loaded(model, folder, config, dtype, "sdpa")
        except ValueError:  # of architectures without it, such as MPNet; whatever else is at fault is so again
            loaded, report = _loaded(model, folder, config, dtype, "eager")
    except Exception as error:
        raise ModelUnavailable(f"{folder.weights} could not be loaded: {first_line(error)}") from error
    tolerated = () if strict else _OTHER_HEADS
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise ModelUnavailable(
            f"{home.get(name, folder.weights)}: the tensor {name} is {_shape(found)}, {folder.config} asks for "
            f"{_shape(wanted)}: the files belong to different models"
        )
    for name in sorted(report["missing_keys"]):
        # The pooler is for classification; no vector passes through it.
        if not name.startswith("pooler."):
            raise ModelUnavailable(f"{folder.weights} lacks the tensor {name}: fetch the model again, or name another")
    for name in sorted(report["unexpected_keys"]):
        if not name.startswith(tolerated):
            raise ModelUnavailable(
                f"{home.get(name, folder.weights)} holds the tensor {name}, for which {type(loaded).__name__} has no "
                "place: without it the vectors would be wrong"
            )
    return loaded


def _loaded(
    model: type[PreTrainedModel], folder: ModelFolder, config: PretrainedConfig, dtype: torch.dtype, attention: str
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    loaded: tuple[PreTrainedModel, Mapping[str, Any]] = model.from_pretrained(
        folder.weights.parent,
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        ignore_mismatched_sizes=True,
        local_files_only=True,
        output_loading_info=True,
        trust_remote_code=False,
        use_safetensors=True,
    )
    return loaded


def load_dense(dense: Dense) -> torch.nn.Module:
    """In float32. Raises ModelUnavailable."""
    activation = _ACTIVATIONS.get(dense.activation.rpartition(".")[2])
    if activation is None or not dense.activation.startswith("torch.nn."):
        raise ModelUnavailable(f"{dense.config} asks for {dense.activation}; {', '.join(_ACTIVATIONS)} are supported")
    layer = torch.nn.Linear(dense.inputs, dense.outputs, bias=dense.bias)
    path = dense.weights
    found = _read(path)
    wanted = layer.state_dict()
    prefix = "linear."
    for name in sorted(found.keys() | {prefix + name for name in wanted}):
        if name not in found:
            raise ModelUnavailable(f"{path} lacks the tensor {name}")
        want = wanted.get(name.removeprefix(prefix))
        if want is None:
            raise ModelUnavailable(f"{path} holds the tensor {name}, which {dense.config} does not ask for")
        shape = found[name].shape
        if want.shape != shape:
            raise ModelUnavailable(
                f"{path}: the tensor {name} is {_shape(shape)}, {dense.config} asks for {_shape(want.shape)}"
            )
    layer.load_state_dict({name.removeprefix(prefix): tensor.float() for name, tensor in found.items()})
    return torch.nn.Sequential(layer, activation())


def _file_of_tensor(folder: ModelFolder) -> dict[str, Path]:
    """Which file each tensor is in. Only the heads of the files are read; they say too whether a file is whole."""
    found: dict[str, Path] = {}
    for path in folder.files:
        try:
            with safe_open(path, framework="pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        except (OSError, SafetensorError) as error:
            raise _damaged(path, error) from error
    return found


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except FileNotFoundError:
        raise ModelUnavailable(f"{path} is missing: fetch the model again") from None
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelUnavailable:
    return ModelUnavailable(f"{path} is not a safetensors file ({first_line(error)}): fetch the model again")


def _shape(shape: torch.Size) -> str:
    return "×".join(map(str, shape)) or "a number"


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
