"""The two clients, one that waits and one that is awaited: connections, and tries that are made again.

What is asked is in `calls`, what comes back in `answers`, when a call is made again in `retries`.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import ipaddress
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx
import msgspec

from thread_client import calls
from thread_client.calls import Call
from thread_client.errors import InvalidRequest, NodeError, NotANode, Unreachable, first_surrogate, of_answer
from thread_client.retries import Retries, Tries

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

DEFAULT_URL = "http://127.0.0.1:8081"
_RETRIES = Retries()
_CONNECT_SECONDS = 5.0
_LONG_SECONDS = 600.0


class _Asker:
    """What both clients know: whom to ask, for whom, and how an answer is read."""

    def __init__(self, url: str, owner_id: str, api_key: str, retries: Retries, timeout_seconds: float) -> None:
        if not owner_id.strip():
            raise ValueError("owner_id is blank; say whose memory this is, such as Client(owner_id='me')")
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"{url[:200]!a} is no address: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"{url[:200]!a} is no address of a node; give one such as {DEFAULT_URL}")
        self.owner_id = owner_id
        self.url = url.rstrip("/")
        self._host = parsed.host
        self._headers = {"content-type": "application/json"}
        if api_key:
            if not (api_key.isascii() and api_key.isprintable()):
                raise ValueError("api_key holds characters that no header can carry")
            self._headers["authorization"] = f"Bearer {api_key}"
        self._retries = retries
        self._seconds = timeout_seconds

    def for_owner(self, owner_id: str) -> Self:
        """The same client, and the same connections, for another owner."""
        if not owner_id.strip():
            raise ValueError("owner_id is blank; say whose memory this is")
        other = copy.copy(self)
        other.owner_id = owner_id
        return other

    @property
    def _trust_env(self) -> bool:
        # A proxy of the environment does not reach what listens on this machine only.
        try:
            return not ipaddress.ip_address(self._host).is_loopback
        except ValueError:
            return self._host != "localhost"

    def _request(self, call: Call[T]) -> tuple[str, str, bytes | None, httpx.Timeout]:
        seconds = max(self._seconds, _LONG_SECONDS) if call.takes_long else self._seconds
        return (
            call.method,
            f"{self.url}{call.path}",
            _encoded(call.body),
            httpx.Timeout(seconds, connect=_CONNECT_SECONDS),
        )

    def _result(self, call: Call[T], response: httpx.Response) -> T:
        if response.status_code != 200:
            raise of_answer(response.status_code, response.headers, response.content)
        try:
            return call.read(response.content)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise NotANode(f"the answer of {self.url} is not one of a Thread node: {error}", status=200) from None

    def _told(self, failure: httpx.RequestError | NodeError) -> NodeError:
        if isinstance(failure, NodeError):
            return failure
        if isinstance(failure, httpx.TimeoutException) and not isinstance(failure, httpx.ConnectTimeout):
            return Unreachable(f"{self.url} did not answer in time; give the client a longer timeout_seconds")
        what = str(failure) or type(failure).__name__
        # As httpx words it, which has no error of its own for this.
        if isinstance(failure, httpx.RemoteProtocolError) and what.startswith("illegal"):
            return NotANode(
                f"what listens at {self.url} does not speak HTTP/1.1 ({what}); if that is a node's gRPC port, give its"
                f" HTTP port, which is {httpx.URL(DEFAULT_URL).port} unless the node was told otherwise"
            )
        if isinstance(failure, httpx.TransportError):
            return Unreachable(f"{self.url} cannot be reached ({what}); is a node running there?", may_pass=True)
        return NotANode(f"the answer of {self.url} cannot be read: {what}")


def _shown(method: F, build: Callable[..., object]) -> F:
    """The method with the signature that `help` and editors without types show: no owner, and the result itself."""
    signature = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    result = str(signature.return_annotation).removeprefix("Call[").removesuffix("]")
    parameters = [own, *list(signature.parameters.values())[1:]]
    vars(method)["__signature__"] = signature.replace(parameters=parameters, return_annotation=result)
    return method


def _encoded(body: object) -> bytes | None:
    if body is None:
        return None
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        field = first_surrogate(body) or "the request"
        raise InvalidRequest(f"{field}: holds a lone surrogate; send Unicode text") from None


# ------------------------------------------------------------------------------------------------------ sync


def _waiting(build: Callable[Concatenate[str, P], Call[T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(build)
    def ask(self: Client, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._ask(build(self.owner_id, *arguments, **named))

    return _shown(ask, build)


class Client(_Asker):
    """A node's memory of one owner. Threads may share a client; closing it closes its connections.

    `timeout_seconds`: of each try, for an answer; one that waits for documents to be searchable has at least 600.
    Every method raises a `NodeError` when it did not get what it asked for.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        owner_id: str,
        api_key: str = "",
        retries: Retries = _RETRIES,
        timeout_seconds: float = 60.0,
    ) -> None:
        super().__init__(url, owner_id, api_key, retries, timeout_seconds)
        self._http = httpx.Client(headers=self._headers, trust_env=self._trust_env)

    def _ask(self, call: Call[T]) -> T:
        method, url, content, timeout = self._request(call)
        tries = Tries(self._retries)
        while True:
            try:
                return self._result(call, self._http.request(method, url, content=content, timeout=timeout))
            except (httpx.RequestError, NodeError) as failure:
                pause = tries.pause_after(self._told(failure))
            time.sleep(pause)

    file = _waiting(calls.file)
    remember = _waiting(calls.remember)
    remove = _waiting(calls.remove)
    remove_all = _waiting(calls.remove_all)
    search = _waiting(calls.search)
    graph = _waiting(calls.graph)
    library = _waiting(calls.library)
    documents = _waiting(calls.documents)
    export = _waiting(calls.export)
    health = _waiting(calls.health)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# ------------------------------------------------------------------------------------------------------ async


def _awaited(build: Callable[Concatenate[str, P], Call[T]]) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @functools.wraps(build)
    async def ask(self: AsyncClient, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await self._ask(build(self.owner_id, *arguments, **named))

    return _shown(ask, build)


class AsyncClient(_Asker):
    """As `Client`, with methods to be awaited."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        owner_id: str,
        api_key: str = "",
        retries: Retries = _RETRIES,
        timeout_seconds: float = 60.0,
    ) -> None:
        super().__init__(url, owner_id, api_key, retries, timeout_seconds)
        self._http = httpx.AsyncClient(headers=self._headers, trust_env=self._trust_env)

    async def _ask(self, call: Call[T]) -> T:
        method, url, content, timeout = self._request(call)
        tries = Tries(self._retries)
        while True:
            try:
                return self._result(call, await self._http.request(method, url, content=content, timeout=timeout))
            except (httpx.RequestError, NodeError) as failure:
                pause = tries.pause_after(self._told(failure))
            await asyncio.sleep(pause)

    file = _awaited(calls.file)
    remember = _awaited(calls.remember)
    remove = _awaited(calls.remove)
    remove_all = _awaited(calls.remove_all)
    search = _awaited(calls.search)
    graph = _awaited(calls.graph)
    library = _awaited(calls.library)
    documents = _awaited(calls.documents)
    export = _awaited(calls.export)
    health = _awaited(calls.health)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
