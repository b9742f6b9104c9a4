"""One request to an embeddings endpoint, as Mistral, OpenAI and the servers that follow them speak it.

    POST {url}/embeddings  {"model", "input": [texts], "encoding_format": "float"}
    200  {"data": [{"embedding": [numbers], "index"}]}

Nothing is repeated here: an `ApiError` says what a failure means, and `hosted` decides what follows. The key is in no
message, whatever the server sends back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

import httpx
import msgspec
import numpy as np
from numpy.typing import NDArray

ANSWER_BYTES_MAX = 256 * 2**20
CONNECT_SECONDS = 5.0
RETRY_AFTER_MAX_SECONDS = 3_600.0
_SAID_CHARACTERS_MAX = 200

_REFUSALS = (400, 413, 422)
_OVERLOADS = (408, 425, 429)


class ApiError(Exception):
    """No vectors. `str(error)` is for an operator; it names no number that changes from one attempt to the next."""


class Refused(ApiError):
    """The server will not embed these texts. `is_too_long`: it says that they have too many tokens."""

    def __init__(self, message: str, *, is_too_long: bool) -> None:
        super().__init__(message)
        self.is_too_long = is_too_long


class Misconfigured(ApiError):
    """No texts would be embedded: the key, the address or the name of the model is at fault."""


class Away(ApiError):
    """Overloaded, out of reach or faulty: the same request may succeed later. `retry_after`: seconds it asks for.

    `may_be_the_texts`: it may be these texts that the server fails over, as it answered, and answered wrongly.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        timed_out: bool = False,
        may_be_the_texts: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.timed_out = timed_out
        self.may_be_the_texts = may_be_the_texts


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]


_DECODER = msgspec.json.Decoder(_Answer)
_NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class EmbeddingsApi:
    """`key` is asked for at every request; empty for a server that wants none. Thread-safe.

    Raises Misconfigured for an address that is none.
    """

    def __init__(self, url: str, model: str, key: Callable[[], str]) -> None:
        path = url.rstrip("/")
        try:
            self._url = httpx.URL(path if path.endswith("/embeddings") else f"{path}/embeddings")
        except httpx.InvalidURL as error:
            raise Misconfigured(f"{url} is not an address: {error}") from None
        self._model = model
        self._key = key
        self._client = httpx.Client()

    def embed(self, texts: Sequence[str], *, seconds: float) -> NDArray[np.float32]:
        """[n, width] of unit length, float32; the whole request takes about `seconds` at most.

        Raises Refused, Misconfigured, Away.
        """
        try:
            body = msgspec.json.encode({"model": self._model, "input": list(texts), "encoding_format": "float"})
        except UnicodeEncodeError:
            raise Refused("a text is not Unicode", is_too_long=False) from None
        key = self._key()
        try:
            status, headers, answer = self._post(body, key, seconds)
        except httpx.TimeoutException as error:
            raise self._timed_out() from error
        except httpx.DecodingError as error:
            raise Away(f"{self._where} gave an answer that cannot be decompressed", may_be_the_texts=True) from error
        except httpx.TransportError as error:
            raise Away(f"{self._where} cannot be reached ({type(error).__name__})") from error
        if status != 200:
            self._explain(status, headers, answer, key)
        return self._vectors(answer, len(texts))

    def close(self) -> None:
        self._client.close()

    @property
    def _where(self) -> str:
        return f"{self._model} at {self._url.netloc.decode()}"

    def _post(self, body: bytes, key: str, seconds: float) -> tuple[int, Mapping[str, str], bytes]:
        deadline = time.monotonic() + seconds
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        with self._client.stream("POST", self._url, content=body, headers=headers, timeout=timeout) as response:
            answer = bytearray()
            for chunk in response.iter_bytes():
                answer += chunk
                # The client's own limit begins anew with every byte that arrives.
                if time.monotonic() > deadline:
                    raise self._timed_out()
                if len(answer) > ANSWER_BYTES_MAX:
                    raise Away(f"{self._where} gave an answer without end", may_be_the_texts=True)
            return response.status_code, response.headers, bytes(answer)

    def _timed_out(self) -> Away:
        return Away(f"{self._where} did not answer in time", timed_out=True)

    def _explain(self, status: int, headers: Mapping[str, str], answer: bytes, key: str) -> NoReturn:
        said = _said(answer)
        if key:
            said = said.replace(key, "[key]")
        said = said[:_SAID_CHARACTERS_MAX]
        if status in _REFUSALS:
            raise Refused(
                f"{self._where} refuses the text: {status} {said}".rstrip(),
                is_too_long=status == 413 or "token" in said.lower() or "too l" in said.lower(),
            )
        if status in (401, 403):
            # What it says here may hold a part of the key.
            raise Misconfigured(f"{self._where} refuses the key ({status}): set another")
        if status in _OVERLOADS or status >= 500:
            raise Away(
                f"{self._where} fails with {status} {said}".rstrip(),
                retry_after=_retry_after(headers),
                may_be_the_texts=status == 500,
            )
        raise Misconfigured(f"{self._where} answers {status} {said}".rstrip() + ": check the address and the model")

    def _vectors(self, answer: bytes, texts: int) -> NDArray[np.float32]:
        try:
            items = _DECODER.decode(answer).data
        except _NO_JSON as error:
            raise self._malformed("which is not the JSON of vectors") from error
        positions = [number if item.index is None else item.index for number, item in enumerate(items)]
        if sorted(positions) != list(range(texts)):
            raise self._malformed("which has not one vector for each text")
        widths = {len(item.embedding) for item in items}
        if len(widths) > 1 or 0 in widths:
            raise self._malformed("whose vectors differ in width or are empty")
        vectors = np.empty((texts, widths.pop() if widths else 0), np.float64)
        for position, item in zip(positions, items, strict=True):
            vectors[position] = item.embedding
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            unit: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
            if not (np.isfinite(unit).all() and np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-3)):
                raise self._malformed("one of whose vectors has no direction")
        return unit

    def _malformed(self, what: str) -> Away:
        return Away(f"{self._where} gave an answer {what}", may_be_the_texts=True)


def _said(answer: bytes) -> str:
    """What the server says of an error, on one line: `message`, `error.message` or `detail`, else its first words."""
    text = answer[:4096].decode("utf-8", "replace")
    try:
        found: Any = msgspec.json.decode(answer)
    except _NO_JSON:
        found = text
    while isinstance(found, dict):
        found = next((found[name] for name in ("error", "message", "detail") if found.get(name)), text)
    line = " ".join((found if isinstance(found, str) else text).split())
    return "".join(character for character in line if character.isprintable())


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds until the time that `Retry-After` gives, as a number or a date; None without a usable one."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), RETRY_AFTER_MAX_SECONDS)
