"""One request to an embeddings endpoint, as Mistral, OpenAI and the servers that follow them speak it.

    POST {url}/embeddings  {"model", "input": [texts], "encoding_format": "float"}
    200  {"data": [{"embedding": [numbers], "index"}]}

Nothing is repeated here: an `ApiError` of `http_api` says what a failure means, and `hosted` decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from thread_service.models.http_api import NO_JSON, HttpApi


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]


_DECODER = msgspec.json.Decoder(_Answer)


class EmbeddingsApi:
    """`key` is asked for at every request; empty for a server that wants none. Thread-safe.

    Raises Misconfigured for an address that is none.
    """

    def __init__(self, url: str, model: str, key: Callable[[], str]) -> None:
        self._api = HttpApi(url, "/embeddings", model, key)
        self._model = model

    def embed(self, texts: Sequence[str], *, seconds: float) -> NDArray[np.float32]:
        """[n, width] of unit length, float32; the whole request takes about `seconds` at most.

        Raises Refused, Misconfigured, Away.
        """
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        return self._vectors(self._api.post(body, seconds=seconds), len(texts))

    def close(self) -> None:
        self._api.close()

    def _vectors(self, answer: bytes, texts: int) -> NDArray[np.float32]:
        try:
            items = _DECODER.decode(answer).data
        except NO_JSON as error:
            raise self._api.malformed("which is not the JSON of vectors") from error
        positions = [number if item.index is None else item.index for number, item in enumerate(items)]
        if sorted(positions) != list(range(texts)):
            raise self._api.malformed("which has not one vector for each text")
        widths = {len(item.embedding) for item in items}
        if len(widths) > 1 or 0 in widths:
            raise self._api.malformed("whose vectors differ in width or are empty")
        vectors = np.empty((texts, widths.pop() if widths else 0), np.float64)
        for position, item in zip(positions, items, strict=True):
            vectors[position] = item.embedding
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            unit: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
            if not (np.isfinite(unit).all() and np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-3)):
                raise self._api.malformed("one of whose vectors has no direction")
        return unit
