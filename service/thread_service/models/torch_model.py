"""A text encoder on torch: a network of transformers, pooling, dense layers; on CUDA in bfloat16, on a CPU in float32.

Code that lies beside a checkpoint is never run: a model that needs its own is refused. Imported by a node that runs a
model on torch, and by no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch.nn import Module
from transformers import AutoConfig, AutoModel

from thread_service.models.bidirectional_qwen3 import load_qwen3
from thread_service.models.checkpoint import first_line, load_dense, load_model
from thread_service.models.device import Device
from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable
from thread_service.models.encoder import Batch
from thread_service.models.folder import ModelFolder, Pooling

_Network = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""The mask is None where there is no padding: attention without one takes less time."""


class TorchModel:
    """See `thread_service.models.encoder.Forward`. Raises ModelUnavailable, naming the file at fault.

    `network`: from token ids [n, s] and their mask to hidden states [n, s, hidden].
    """

    def __init__(self, folder: ModelFolder, device: Device, *, threads: int) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise ModelUnavailable(
                f"torch {torch.__version__} sees no CUDA device: install the torch of the driver's CUDA version, or "
                "give --device cpu"
            )
        torch.set_num_threads(threads)
        self._folder = folder
        self._device = torch.device(device)
        self.batch_tokens, self.batch_rows = (32_768, 1_024) if device == "cuda" else (1_024, 64)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        module, self.network, layers = _load(folder, dtype)
        module.to(self._device).eval()
        self._layers = [layer.to(self._device).float().eval() for layer in layers]

    def pooled(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        try:
            with torch.inference_mode():
                pooled: NDArray[np.float32] = self._pooled(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
                return pooled
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            if len(ids) == 1:
                raise EmbeddingFailed(f"no memory on {self._device} for a text of {ids.shape[1]} tokens") from error
        except Exception as error:
            raise EmbeddingFailed(f"{self._folder.weights} failed: {error}") from error
        # Another process may have taken the memory since the last batch: half of this one may fit.
        half = len(ids) // 2
        return np.concatenate([self.pooled(ids[:half], mask[:half]), self.pooled(ids[half:], mask[half:])])

    def pooled_each(self, batches: Sequence[Batch]) -> list[NDArray[np.float32]]:
        return [self.pooled(*batch) for batch in batches]

    def _pooled(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mask = mask.bool()
        mask[:, 0] = True  # a text without any token is one of padding
        padded = not bool(mask.all())
        mask = mask.to(self._device)
        states = self.network(ids.to(self._device), mask if padded else None)
        vectors = _POOLINGS[self._folder.pooling](states, mask)
        for layer in self._layers:
            vectors = layer(vectors)
        return vectors.float().cpu()


def _load(folder: ModelFolder, dtype: torch.dtype) -> tuple[Module, _Network, list[Module]]:
    """The module that owns the tensors, the network in it, and the layers after the pooling."""
    if folder.head is not None:
        qwen3 = load_qwen3(folder, dtype)
        return qwen3, qwen3, [qwen3.linear]
    layers = [load_dense(dense) for dense in folder.dense]
    try:
        config = AutoConfig.from_pretrained(folder.config.parent, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelUnavailable(
            f"{folder.config} describes no model that transformers {transformers.__version__} knows, and code that "
            f"comes with a model is not run ({first_line(error)[:200]})"
        ) from error
    own = [name for name in folder.code if not hasattr(transformers, name)]
    if own or config.is_encoder_decoder:
        what = f"needs code of its own ({own[0]})" if own else "is an encoder with a decoder"
        raise ModelUnavailable(f"{folder.config}: the model {what}, which is not supported")
    model = load_model(AutoModel, folder, config, dtype=dtype, strict=False)

    def network(ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        present = torch.ones_like(ids) if mask is None else mask.long()
        states: torch.Tensor = model(input_ids=ids, attention_mask=present).last_hidden_state
        return states

    return model, network, layers


def _mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _sum(states, mask) / mask.sum(1, keepdim=True).clamp(min=1)


def _sum(states: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """In float32, whatever the states are in."""
    return torch.einsum("nsw,ns->nw", states.float(), weights.float())


def _mean_sqrt(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _sum(states, mask) / mask.sum(1, keepdim=True).clamp(min=1).sqrt()


def _weighted_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A token counts by its position, from 1."""
    weights = torch.arange(1, states.shape[1] + 1, device=states.device) * mask
    return _sum(states, weights) / weights.sum(1, keepdim=True).clamp(min=1)


def _max(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states.float().masked_fill(~mask[:, :, None], -torch.inf).amax(1)


def _last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    last = mask.sum(1).clamp(min=1) - 1
    return states[torch.arange(len(states), device=states.device), last].float()


_POOLINGS: Mapping[Pooling, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": _mean,
    "cls": lambda states, mask: states[:, 0].float(),
    "max": _max,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
}
