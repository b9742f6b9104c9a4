"""A text encoder in ONNX form on this machine's CPU, through onnxruntime; pooling in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable
from thread_service.models.encoder import Batch
from thread_service.models.folder import ModelFolder

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUTS = ("last_hidden_state", "token_embeddings")
_TWICE_BYTES = 64 << 20
"""Weights up to this size are in memory twice, so that several batches are computed side by side."""


class OnnxModel:
    """See `thread_service.models.encoder.Forward`. Raises ModelUnavailable, naming the file at fault."""

    # Small batches pad little and stay in the caches. In the lists in which a node hands them over, passages of MuSiQue
    # and their relationships run at 270 texts/s on 2 cores, at 237 in batches of 512 tokens, at 209 of 1024 that have
    # all cores (all-MiniLM-L6-v2, int8); texts of 230 tokens at the same speed in all of them. A large model has all
    # cores for each batch, which is to be worth it.
    batch_tokens = 256
    batch_rows = 64

    def __init__(self, folder: ModelFolder, *, threads: int) -> None:
        self._folder = folder
        self._threads = threads
        self._session = _open_session(folder, threads)
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]
        outputs = [tensor.name for tensor in self._session.get_outputs()]
        self._output = next((name for name in _OUTPUTS if name in outputs), "")
        if not set(self._inputs) <= set(_INPUTS) or not self._output:
            raise ModelUnavailable(
                f"{folder.weights} takes {', '.join(self._inputs)} and gives {', '.join(outputs)}; a text encoder "
                f"takes {', '.join(_INPUTS)} and gives {' or '.join(_OUTPUTS)}"
            )
        self._single: onnxruntime.InferenceSession | None = None
        if threads > 1 and sum(file.stat().st_size for file in folder.files) <= _TWICE_BYTES:
            self._single = _open_session(folder, 1)
            self._helpers = ThreadPoolExecutor(threads - 1, thread_name_prefix="embedding-batch")
        elif threads > 1:
            self.batch_tokens = 1_024

    def pooled(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._run(self._session, ids, mask)

    def pooled_each(self, batches: Sequence[Batch]) -> list[NDArray[np.float32]]:
        # Several side by side, each on one core, wait for nothing; one on all cores waits after every step for the last
        # of them, and longer where something else runs.
        single = self._single
        if single is None or len(batches) == 1:
            return [self.pooled(*batch) for batch in batches]
        pooled: dict[int, NDArray[np.float32]] = {}
        left = iter(range(len(batches)))

        def take() -> None:
            for at in left:
                pooled[at] = self._run(single, *batches[at])

        # The caller takes its share: a query does not wait until the helpers are done with somebody's documents.
        helping = [self._helpers.submit(take) for _ in range(min(self._threads, len(batches)) - 1)]
        try:
            take()
        finally:
            for helper in helping:
                if not helper.cancel():
                    helper.result()
        return [pooled[at] for at in range(len(batches))]

    def _run(
        self, session: onnxruntime.InferenceSession, ids: NDArray[np.int64], mask: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        try:
            (hidden,) = session.run([self._output], {name: feeds[name] for name in self._inputs})
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
