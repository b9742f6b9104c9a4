"""The stack secret: what a node that runs beside the other programs of one user asks of every caller.

Callers must be on this machine and know the secret. HTTP: the `Host` names loopback, else 421; `X-Ambient-Secret`
holds the secret, else 401. gRPC: the peer is loopback, else PERMISSION_DENIED; the metadata hold the secret, else
UNAUTHENTICATED. `/health` is open and proves that this node knows the secret, without showing it. The files of the
page at `/` are the same everywhere, and want no secret but a loopback `Host`. The secret is compared in constant time
and never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import logging
import os
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
import grpc.aio
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from thread_service.settings import SettingsError, rao_home

_log = logging.getLogger(__name__)

SECRET_METADATA = "x-ambient-secret"
NONCE_HEADER = "x-ambient-nonce"
HEALTH_CONTRACT = 1
"""The version of the proof in `/health`."""

_APPS = ("ambient", "craft", "veil")
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_NONCE = re.compile(r"[0-9A-Fa-f]{16,128}")
_PUBLIC = "public"
PUBLIC = {_PUBLIC: True}
"""Marks the one route that needs no secret."""
_LOCAL = "local"
LOCAL = {_LOCAL: True}
"""Marks routes that show nothing of the node: they need no secret, but a loopback `Host`."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The secret of a stack, and the app of it this node belongs to (empty: unknown)."""

    secret: str = field(repr=False)
    app: str = ""

    def knows(self, given: str | bytes | None) -> bool:
        """Whether a caller gave the secret."""
        encoded = given if isinstance(given, bytes) else (given or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(encoded, self.secret.encode())

    def proof(self, nonce: str) -> str | None:
        """HMAC-SHA256 of the nonce under the secret, lower-case hex; None for what is no nonce."""
        if not _NONCE.fullmatch(nonce):
            return None
        return hmac.new(self.secret.encode(), f"ambient-stack-health-v1:{nonce}".encode(), hashlib.sha256).hexdigest()


def load_stack(environment: Mapping[str, str]) -> Stack | None:
    """The stack this node belongs to, None for a node on its own.

    AMBIENT_STACK_SECRET is the secret; without it, RAO_HOME and RAO_APP name the file that holds it. A home without a
    usable secret is a `SettingsError`: the node is never open by mistake.
    """
    app = environment.get("RAO_APP", "").strip()
    if secret := environment.get("AMBIENT_STACK_SECRET", "").strip():
        if not secret.isascii() or not secret.isprintable():
            raise SettingsError("AMBIENT_STACK_SECRET: must be printable ASCII, as it travels in a header")
        return Stack(secret, app if app in _APPS else "")
    home = rao_home(environment)
    if home is None:
        return None
    if app not in _APPS:
        raise SettingsError(f"RAO_APP: {app[:40]!a} is no app with a secret below RAO_HOME; give {', '.join(_APPS)}")
    return Stack(_read_secret(home / "secrets" / app), app)


def _read_secret(path: Path) -> str:
    try:
        # A pipe in its place must not hold up the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            text = file.read(65) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise SettingsError(f"{path}: the stack secret cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(mode):
        raise SettingsError(f"{path}: the stack secret is not a file")
    if stat.S_IMODE(mode) != 0o600:
        raise SettingsError(f"{path}: the stack secret has mode {stat.S_IMODE(mode):03o}; chmod 600 it")
    if not re.fullmatch(rb"[0-9A-Fa-f]{64}", text):
        raise SettingsError(f"{path}: the stack secret is not exactly 64 hexadecimal digits")
    return text.decode()


def is_loopback_name(host: str) -> bool:
    """Whether a configured host certainly is this machine."""
    return host.removeprefix("[").removesuffix("]").lower() in _LOOPBACK_NAMES


# ---------------------------------------------------------------------------------------------------- HTTP


def stack_guard(stack: Stack) -> Guard:
    """A guard that runs before a body is read."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if handler.opt.get(_PUBLIC):
            return
        if not _HOST.fullmatch(connection.headers.get("host", "")):
            raise HTTPException("this node answers to 127.0.0.1, localhost and [::1] only", status_code=421)
        if not handler.opt.get(_LOCAL) and not stack.knows(connection.headers.get(SECRET_METADATA)):
            raise NotAuthorizedException("this node wants the stack's secret as `X-Ambient-Secret`")

    return guard


# ---------------------------------------------------------------------------------------------------- gRPC


class StackInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Checks every call before its handler runs; one without the secret is refused before its message is read."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        metadata, method = handler_call_details.invocation_metadata, handler_call_details.method
        given = next((value for key, value in metadata if key == SECRET_METADATA), None)
        if not self._stack.knows(given):
            return _refusing(method)
        handler = await continuation(handler_call_details)
        return None if handler is None else _local(handler, method)


def _refusing(method: str) -> grpc.RpcMethodHandler:
    async def refuse(_: Any, context: grpc.aio.ServicerContext) -> None:
        await _check_peer(method, context)
        await _abort(
            method, context, grpc.StatusCode.UNAUTHENTICATED, f"this node wants the stack's secret as {SECRET_METADATA}"
        )

    # Streaming, so that no message is read first.
    return grpc.stream_stream_rpc_method_handler(refuse)


def _local(handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
    """The handler, for callers on this machine only: whom a call comes from is known only inside a handler."""
    kind = ("stream" if handler.request_streaming else "unary") + (
        "_stream" if handler.response_streaming else "_unary"
    )
    inner = getattr(handler, kind)

    async def one(request: Any, context: grpc.aio.ServicerContext) -> Any:
        await _check_peer(method, context)
        return await inner(request, context)

    async def several(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        await _check_peer(method, context)
        async for answer in inner(request, context):
            yield answer

    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(
        several if inspect.isasyncgenfunction(inner) else one,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


async def _check_peer(method: str, context: grpc.aio.ServicerContext) -> None:
    if not is_loopback_peer(context.peer()):
        await _abort(method, context, grpc.StatusCode.PERMISSION_DENIED, "callers must be on this machine")


async def _abort(method: str, context: grpc.aio.ServicerContext, code: grpc.StatusCode, details: str) -> NoReturn:
    _log.warning("refused %.100a of %s: %s", method, context.peer(), code.name)
    await context.abort(code, details)
    raise AssertionError("abort raises")


def is_loopback_peer(peer: str) -> bool:
    """Whether gRPC's name for the other end, such as `ipv4:127.0.0.1:5000`, is of this machine."""
    family, _, address = unquote(peer).partition(":")
    if family in ("unix", "unix-abstract", "inproc"):
        return True
    if family not in ("ipv4", "ipv6"):
        return False
    try:
        ip = ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback
