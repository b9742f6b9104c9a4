"""A text encoder in ONNX form on this machine's CPU, through onnxruntime; pooling in NumPy."""

from __future__ import annotations

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable
from thread_service.models.folder import ModelFolder

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUTS = ("last_hidden_state", "token_embeddings")


class OnnxModel:
    """See `thread_service.models.encoder.Forward`. Raises ModelUnavailable, naming the file at fault."""

    # A CPU gains nothing from larger batches: 4 × 254 tokens run at 4,200 tokens/s on 2 cores, 32 × 254 at 2,500 and
    # with 1.2 GB more memory (all-MiniLM-L6-v2, int8).
    batch_tokens = 1024
    batch_rows = 64

    def __init__(self, folder: ModelFolder, *, threads: int) -> None:
        self._folder = folder
        self._session = _open_session(folder, threads)
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]
        outputs = [tensor.name for tensor in self._session.get_outputs()]
        self._output = next((name for name in _OUTPUTS if name in outputs), "")
        if not set(self._inputs) <= set(_INPUTS) or not self._output:
            raise ModelUnavailable(
                f"{folder.weights} takes {', '.join(self._inputs)} and gives {', '.join(outputs)}; a text encoder "
                f"takes {', '.join(_INPUTS)} and gives {' or '.join(_OUTPUTS)}"
            )

    def pooled(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        try:
            (hidden,) = self._session.run([self._output], {name: feeds[name] for name in self._inputs})
        except Exception as error:
            raise EmbeddingFailed(f"{self._folder.weights} failed: {error}") from error
        if hidden.ndim != 3:
            raise EmbeddingFailed(f"{self._folder.weights}: {self._output} has shape {hidden.shape}, not [b, s, width]")
        pooled: NDArray[np.float32]
        if self._folder.pooling == "cls":
            pooled = hidden[:, 0].astype(np.float32)
        else:
            total = np.einsum("bsw,bs->bw", hidden.astype(np.float32, copy=False), mask.astype(np.float32))
            pooled = total / np.maximum(1, mask.sum(axis=1, keepdims=True)).astype(np.float32)
        return pooled


def _open_session(folder: ModelFolder, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Threads that spin while they wait for work save 1 ms per query and take whole cores from everything else.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(folder.weights), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelUnavailable(f"{folder.weights} is not an ONNX model ({error}): fetch the model again") from error
