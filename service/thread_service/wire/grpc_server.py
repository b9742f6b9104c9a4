"""The node's gRPC services, and the standard health and reflection services beside them.

A handler decodes a message, calls `Dispatch` and encodes the answer. The error tree becomes statuses here, once:
the code that the class names, the sentence as details, `retry-after` in seconds in the trailing metadata.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from thread_service import observe
from thread_service.errors import Busy, InvalidRequest, NotReady, ThreadError
from thread_service.wire import limits
from thread_service.wire.api_key import WANTED, is_granted
from thread_service.wire.dispatch import Dispatch
from thread_service.wire.node_protocol import Node
from thread_service.wire.printable import printable
from thread_service.wire.server import GRACE_SECONDS, ListenError, listen
from thread_service.wire.v1 import thread_pb2 as pb

_log = logging.getLogger(__name__)

CALLS_MAX = 256
"""Calls under way; more are refused with RESOURCE_EXHAUSTED before their messages are read."""
REQUESTS_BYTES_MAX = 2**30
"""Messages of all calls under way; a call that brings more is refused with RESOURCE_EXHAUSTED."""
METADATA_BYTES_MAX = 16_384
"""The metadata of one call."""
HANDSHAKE_SECONDS = 10
IDLE_SECONDS = 600
"""A connection without calls is asked to close; callers connect again by themselves."""

_OPTIONS = (
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    # Who connects and does not speak HTTP/2 is let go.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1_000),
    ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1_000),
    # One connection leaves room for others; its further calls wait with the caller.
    ("grpc.max_concurrent_streams", CALLS_MAX // 2),
    # Only without its own estimate of the bandwidth does gRPC take the two sizes as they are.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 16 * 2**20),
    ("grpc.http2.max_frame_size", 2**20),
    # Callers ping every 10 seconds, also between calls; a little earlier is no abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # With it a second node would quietly share the port.
    ("grpc.so_reuseport", 0),
)

Operation = Callable[[Any], Awaitable[Message]]


def _operations(dispatch: Dispatch) -> dict[str, dict[str, Operation]]:
    return {
        "ThreadQuery": {"Search": dispatch.search, "Index": dispatch.index, "Remove": dispatch.remove},
        "ThreadUpdate": {
            "UpdateGroup": dispatch.update_group,
            "UpdateDocument": dispatch.update_document,
            "Stats": dispatch.stats,
        },
        "ThreadLibrary": {
            "Library": dispatch.library,
            "Documents": dispatch.documents,
            "ExportCorpus": dispatch.export_corpus,
        },
        "ThreadGraph": {"Query": dispatch.graph},
    }


class GrpcServer:
    """Takes its address when it is made, before there is a node, and answers from `start` to `stop`."""

    def __init__(self, host: str, port: int, *, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()) -> None:
        """Inside a running event loop. Port 0 takes a free one. Raises `ListenError`."""
        self._server = grpc.aio.server(interceptors=interceptors, options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        self._health = health.aio.HealthServicer()
        self._request_bytes = 0
        self.port = _bind(self._server, host, port)

    async def start(self, node: Node) -> None:
        names = []
        for service, operations in _operations(Dispatch(node)).items():
            descriptor = pb.DESCRIPTOR.services_by_name[service]
            names.append(descriptor.full_name)
            handlers = {
                rpc: self._handler(
                    f"{service}/{rpc}", pb.__dict__[descriptor.methods_by_name[rpc].input_type.name], call
                )
                for rpc, call in operations.items()
            }
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(descriptor.full_name, handlers),)
            )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        for name in ("", *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """No new calls; those still running after `grace_seconds` are cancelled."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)

    def _handler(self, rpc: str, request_type: type[Message], operation: Operation) -> grpc.RpcMethodHandler:
        seconds = observe.GRPC_SECONDS.labels(rpc)

        async def handle(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            started = time.perf_counter()
            status = "CANCELLED"
            self._request_bytes += len(data)
            try:
                if self._request_bytes > REQUESTS_BYTES_MAX:
                    raise Busy("the node is taking in as much as it can hold; send it later", retry_after_seconds=1)
                answer: bytes = (await operation(_decoded(request_type, data))).SerializeToString()
                status = "OK"
                return answer
            except ThreadError as error:
                status = error.grpc_status
                if error.http_status >= 500 and error.retry_after_seconds is None:
                    # A node that stops is no fault, and a line says it.
                    _log.error("%s: %s", rpc, error, exc_info=None if isinstance(error, NotReady) else error)
                await _refuse(context, error)
            except Exception:
                status = "INTERNAL"
                _log.exception("%s failed", rpc)
                await context.abort(grpc.StatusCode.INTERNAL, "the node failed to answer; its log says why")
            finally:
                self._request_bytes -= len(data)
                observe.GRPC_REQUESTS.labels(rpc, status).inc()
                seconds.observe(time.perf_counter() - started)
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(handle)


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Bind every address `host` stands for; gRPC itself is content with one of them, and does not say why.

    A wildcard of either family is both to gRPC.
    """
    listeners = listen(host, port, "--grpc-port")
    addresses = [listener.getsockname() for listener in listeners]
    families = [listener.family for listener in listeners]
    for listener in listeners:
        listener.close()
    for (address, port, *_), family in zip(addresses, families, strict=True):
        try:
            server.add_insecure_port(f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}")
        except RuntimeError:
            raise ListenError(f"port {port} on {host} cannot be taken for gRPC; give another --grpc-port") from None
    return port


def _decoded(request_type: type[Message], data: bytes) -> Message:
    try:
        return request_type.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the message is no {request_type.DESCRIPTOR.full_name}") from None


async def _refuse(context: grpc.aio.ServicerContext, error: ThreadError) -> None:
    trailers = () if error.retry_after_seconds is None else (("retry-after", str(error.retry_after_seconds)),)
    await context.abort(grpc.StatusCode[error.grpc_status], printable(error.for_callers), trailers)


class ApiKeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets in who brings the key as `authorization: Bearer KEY`, and everybody to the health service."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return await continuation(handler_call_details)
        given = next((value for key, value in handler_call_details.invocation_metadata if key == "authorization"), "")
        return await continuation(handler_call_details) if is_granted(given, self._key) else _UNAUTHENTICATED


async def _unauthenticated(_: Any, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, WANTED)


# Streaming, so that it refuses before a message is read.
_UNAUTHENTICATED = grpc.stream_stream_rpc_method_handler(_unauthenticated)


async def run_grpc(server: GrpcServer, node: Node, stop: asyncio.Event) -> None:
    """Serve `node` until `stop` is set; finish the calls under way; return."""
    await server.start(node)
    await stop.wait()
    await server.stop()
