"""An embedding model behind an HTTP API: what is tried again, when, and whose fault a failure is.

    embed → wait while the provider asks for a pause → one request → on failure: a longer pause, again, or give up

The pause is shared by all calls: what one learns of an overload, the others need not ask. A query gives up soon, with
the time to come back; documents wait, as nobody waits for them. Giving up is `NotReady`, which leaves documents
pending. `EmbeddingFailed`, which ends them as failed, is raised only for texts that the provider refuses, or has failed
over again and again, while it does embed another text.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thread_service.errors import NotReady
from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable, Role, Stamp, Status
from thread_service.models.embeddings_api import EmbeddingsApi
from thread_service.models.http_api import ApiError, Away, Misconfigured, Refused
from thread_service.models.turn import Turn
from thread_service.models.windows import cut_text

log = logging.getLogger(__name__)

PROBE = "ready"
"""A text that no provider refuses: it tells a provider at fault from texts at fault."""

PIECE_BYTES_MIN = 64
ROUNDS_BEFORE_THE_TEXTS_ARE_TO_BLAME = 3
MISCONFIGURED_SECONDS = 30.0
_REMEMBERED_FAILURES = 1_024
_BYTES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call goes on: `attempts`, `seconds` for each request, and the longest pause before one."""

    attempts: int
    seconds: float
    longest_pause: float


PATIENCE: Mapping[Role, Patience] = {"query": Patience(3, 10, 2), "document": Patience(5, 60, math.inf)}


class HostedEmbedder:
    """See `thread_service.models.embedder.Embedder`; but `embed` may be called from several threads at a time.

    `model` is the name under which it can be found again, `space_name` the model's part of its space.
    """

    def __init__(
        self, model: str, space_name: str, api: EmbeddingsApi, *, patience: Mapping[Role, Patience] = PATIENCE
    ) -> None:
        self._model = model
        self._space_name = space_name
        self._api = api
        self._patience = patience
        self._status = Status()
        self._stamp: Stamp | None = None
        self._closed = threading.Event()
        self._turn = _Turn()

    @property
    def model(self) -> str:
        return self._model

    @property
    def stamp(self) -> Stamp | None:
        return self._stamp

    @property
    def status(self) -> Status:
        return self._status

    def load(self) -> None:
        """Ask for the vector of one text: the key, the address and the model are right, and the width is known."""
        self._status = Status("loading")
        try:
            width = self._api.embed([PROBE], seconds=self._patience["query"].seconds).shape[1]
        except Exception as error:
            reason = str(error) if isinstance(error, ApiError) else f"{self._model} could not be asked: {error}"
            self._status = Status("failed", error=reason)
            raise ModelUnavailable(reason) from error
        self._stamp = Stamp(f"{self._space_name}@{width}", self._model, None, width)
        self._status = Status("ready")

    def embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        """Raises EmbeddingFailed for texts that are refused; NotReady, with a time to come back, for all else."""
        if self._stamp is None:
            raise NotReady(str(self._status))
        if not texts:
            return np.zeros((0, self._stamp.width), np.float32)
        try:
            return self._embed(texts, self._patience[role])
        except (EmbeddingFailed, NotReady):
            raise
        except Exception as error:
            if not self._closed.is_set():
                log.exception("a call of %s failed in a way nobody foresaw", self._model)
            raise NotReady(
                f"{self._model} could not be asked: {type(error).__name__}", retry_after_seconds=5
            ) from error

    def count_tokens(self, texts: Sequence[str]) -> int:
        """An estimate, four bytes of UTF-8 to a token: the tokenizer is the provider's."""
        if self._stamp is None:
            raise NotReady(str(self._status))
        return sum(math.ceil(len(text.encode("utf-8", "surrogatepass")) / _BYTES_A_TOKEN) for text in texts)

    def close(self) -> None:
        self._closed.set()
        self._status = Status()
        self._api.close()

    def _embed(self, texts: Sequence[str], patience: Patience) -> NDArray[np.float32]:
        try:
            return self._attempts(texts, patience)
        except Refused as error:
            if error.is_too_long:
                if len(texts) > 1:
                    half = len(texts) // 2
                    return np.concatenate([self._embed(part, patience) for part in (texts[:half], texts[half:])])
                size = len(texts[0].encode("utf-8", "surrogatepass"))
                if size > PIECE_BYTES_MIN:
                    return self._in_pieces(cut_text(texts[0], size // 2), patience)
            self._check_provider()
            raise EmbeddingFailed(str(error)) from error

    def _in_pieces(self, pieces: Sequence[str], patience: Patience) -> NDArray[np.float32]:
        """[1, width]: the average of the pieces' vectors, each weighted by its size, at unit length."""
        vectors = self._embed(pieces, patience)
        mean = np.array([len(piece) for piece in pieces], np.float32) @ vectors
        length = np.linalg.norm(mean)
        unit: NDArray[np.float32] = (mean / length if length > 0 else vectors[0])[np.newaxis]
        return unit

    def _attempts(self, texts: Sequence[str], patience: Patience) -> NDArray[np.float32]:
        """Raises Refused; NotReady after the last attempt; EmbeddingFailed for what fails time after time."""
        for attempt in range(1, patience.attempts + 1):
            self._wait_for_turn(patience)
            try:
                vectors = self._request(texts, patience.seconds)
            except Misconfigured as error:
                self._turn.hold(MISCONFIGURED_SECONDS, str(error))
                raise self._turn.not_ready() from error
            except Away as error:
                self._turn.failed(error)
                if error.timed_out or attempt == patience.attempts:
                    if error.may_be_the_texts:
                        self._blame_texts(texts, error)
                    raise self._turn.not_ready() from error
            else:
                self._turn.succeeded_with(texts)
                return vectors
        raise AssertionError("a call has at least one attempt")

    def _request(self, texts: Sequence[str], seconds: float) -> NDArray[np.float32]:
        if self._closed.is_set():
            raise NotReady("the node is shutting down")
        vectors = self._api.embed(texts, seconds=seconds)
        assert self._stamp is not None
        if vectors.shape[1] != self._stamp.width:
            raise Away(f"{self._model} gives vectors of {vectors.shape[1]}, and gave {self._stamp.width} at the start")
        return vectors

    def _wait_for_turn(self, patience: Patience) -> None:
        while (pause := self._turn.pause()) > 0:
            if pause > patience.longest_pause:
                raise self._turn.not_ready()
            if self._closed.wait(pause):
                raise NotReady("the node is shutting down")

    def _blame_texts(self, texts: Sequence[str], error: Away) -> None:
        """Raise EmbeddingFailed if it must be the texts; NotReady if it may be the provider."""
        self._check_provider()
        if self._turn.rounds_failed(texts) >= ROUNDS_BEFORE_THE_TEXTS_ARE_TO_BLAME:
            raise EmbeddingFailed(f"{error}, time after time, while other texts are embedded") from error

    def _check_provider(self) -> None:
        """Return if it embeds another text now. Raises NotReady if not: then no text is at fault."""
        try:
            self._request([PROBE], self._patience["query"].seconds)
        except Away as error:
            self._turn.failed(error)
            raise self._turn.not_ready() from error
        except ApiError as error:
            self._turn.hold(MISCONFIGURED_SECONDS, str(error))
            raise self._turn.not_ready() from error
        self._turn.release()


class _Turn(Turn):
    """And how often in a row a call with just these texts has come to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._counting = threading.Lock()
        self._failed_rounds: OrderedDict[bytes, int] = OrderedDict()

    def succeeded_with(self, texts: Sequence[str]) -> None:
        self.succeeded()
        with self._counting:
            if self._failed_rounds:
                self._failed_rounds.pop(_digest(texts), None)

    def rounds_failed(self, texts: Sequence[str]) -> int:
        """Count one more."""
        digest = _digest(texts)
        with self._counting:
            rounds = self._failed_rounds.pop(digest, 0) + 1
            self._failed_rounds[digest] = rounds
            if len(self._failed_rounds) > _REMEMBERED_FAILURES:
                self._failed_rounds.popitem(last=False)
            return rounds


def _digest(texts: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()
