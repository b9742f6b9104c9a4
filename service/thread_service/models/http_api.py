"""One POST of JSON to a hosted model, as Mistral, OpenAI and the servers that follow them speak it, and what a failure
of it means.

Nothing is repeated here: an `ApiError` says what a failure means, and who asks decides what follows. The key is in no
message, whatever the server sends back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

import httpx
import msgspec

ANSWER_BYTES_MAX = 256 * 2**20
CONNECT_SECONDS = 5.0
RETRY_AFTER_MAX_SECONDS = 3_600.0
NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding an answer raises when it is not the JSON that was expected."""
_SAID_CHARACTERS_MAX = 200

_REFUSALS = (400, 413, 422)
_OVERLOADS = (408, 425, 429)


class ApiError(Exception):
    """No answer. `str(error)` is for an operator; it names no number that changes from one attempt to the next."""


class Refused(ApiError):
    """The server will not take these texts. `is_too_long`: it says that they have too many tokens."""

    def __init__(self, message: str, *, is_too_long: bool) -> None:
        super().__init__(message)
        self.is_too_long = is_too_long


class Misconfigured(ApiError):
    """No texts would be taken: the key, the address or the name of the model is at fault."""


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


class HttpApi:
    """`path` is what of the API is asked, such as `/embeddings`; an address that ends with it already is taken as it
    is. `key` is asked for at every request; empty for a server that wants none. Thread-safe.

    Raises Misconfigured for an address that is none.
    """

    def __init__(self, url: str, path: str, model: str, key: Callable[[], str]) -> None:
        base = url.rstrip("/")
        try:
            self._url = httpx.URL(base if base.endswith(path) else f"{base}{path}")
        except httpx.InvalidURL as error:
            raise Misconfigured(f"{url} is not an address: {error}") from None
        self._model = model
        self._key = key
        # What is on this machine is not asked through the proxy that leads out of it.
        self._client = httpx.Client(trust_env=self._url.host not in ("127.0.0.1", "::1", "localhost"))

    @property
    def where(self) -> str:
        """Which model and where, as messages name it."""
        return f"{self._model} at {self._url.netloc.decode()}"

    def post(self, body: Mapping[str, Any], *, seconds: float) -> bytes:
        """The answer; the whole request takes about `seconds` at most.

        Raises Refused, Misconfigured, Away.
        """
        try:
            content = msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise Refused("a text is not Unicode", is_too_long=False) from None
        key = self._key()
        try:
            status, headers, answer = self._send(content, key, seconds)
        except httpx.TimeoutException as error:
            raise self._timed_out() from error
        except httpx.DecodingError as error:
            raise self.malformed("that cannot be decompressed") from error
        except httpx.TransportError as error:
            raise Away(f"{self.where} cannot be reached ({type(error).__name__})") from error
        if status != 200:
            self._explain(status, headers, answer, key)
        return answer

    def malformed(self, what: str) -> Away:
        """The error to be raised for an answer with which something is wrong."""
        return Away(f"{self.where} gave an answer {what}", may_be_the_texts=True)

    def close(self) -> None:
        self._client.close()

    def _send(self, content: bytes, key: str, seconds: float) -> tuple[int, Mapping[str, str], bytes]:
        deadline = time.monotonic() + seconds
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        with self._client.stream("POST", self._url, content=content, headers=headers, timeout=timeout) as response:
            answer = bytearray()
            for chunk in response.iter_bytes():
                answer += chunk
                # The client's own limit begins anew with every byte that arrives.
                if time.monotonic() > deadline:
                    raise self._timed_out()
                if len(answer) > ANSWER_BYTES_MAX:
                    raise self.malformed("without end")
            return response.status_code, response.headers, bytes(answer)

    def _timed_out(self) -> Away:
        return Away(f"{self.where} did not answer in time", timed_out=True)

    def _explain(self, status: int, headers: Mapping[str, str], answer: bytes, key: str) -> NoReturn:
        said = _said(answer)
        if key:
            said = said.replace(key, "[key]")
        said = said[:_SAID_CHARACTERS_MAX]
        if status in _REFUSALS:
            raise Refused(
                f"{self.where} refuses the text: {status} {said}".rstrip(),
                is_too_long=status == 413 or "token" in said.lower() or "too l" in said.lower(),
            )
        if status in (401, 403):
            # What it says here may hold a part of the key.
            raise Misconfigured(f"{self.where} refuses the key ({status}): set another")
        if status in _OVERLOADS or status >= 500:
            raise Away(
                f"{self.where} fails with {status} {said}".rstrip(),
                retry_after=_retry_after(headers),
                may_be_the_texts=status == 500,
            )
        raise Misconfigured(f"{self.where} answers {status} {said}".rstrip() + ": check the address and the model")


def _said(answer: bytes) -> str:
    """What the server says of an error, on one line: `message`, `error.message` or `detail`, else its first words."""
    text = answer[:4096].decode("utf-8", "replace")
    try:
        found: Any = msgspec.json.decode(answer)
    except NO_JSON:
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
