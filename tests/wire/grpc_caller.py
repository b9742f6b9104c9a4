"""A gRPC server of the node over loopback, and a caller of it that knows the protocol from its tables only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from from_tables import Protocol

from thread_service.wire.grpc_server import ApiKeyInterceptor, GrpcServer

T = TypeVar("T")
TIMEOUT = 40
MIB = 2**20
UNBOUNDED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
protocol = Protocol()


class Caller:
    """Calls run to their end, so tests read as plain calls."""

    def __init__(self, node: Any, *, api_key: str = "") -> None:
        self._runner = asyncio.Runner()
        self.server = self.run(self._start(node, [ApiKeyInterceptor(api_key)] if api_key else []))
        self.target = f"127.0.0.1:{self.server.port}"
        self.channel = self.run(self.open())

    @staticmethod
    async def _start(node: Any, interceptors: Sequence[Any]) -> GrpcServer:
        server = GrpcServer("127.0.0.1", 0, interceptors=interceptors)
        await server.start(node)
        return server

    async def open(self, *options: tuple[str, Any]) -> grpc.aio.Channel:
        """A channel of its own connection."""
        own = ("grpc.use_local_subchannel_pool", 1)
        return grpc.aio.insecure_channel(self.target, options=(*UNBOUNDED, own, *options))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, TIMEOUT))

    def call(self, rpc: str, request: Any = None, **options: Any) -> Any:
        """`rpc` is `Service/Rpc`; `request` a dict of fields, a message, or bytes."""
        return self.run(protocol.call(self.channel, rpc, request, **options))

    def refusal(self, rpc: str, request: Any = None, **options: Any) -> grpc.aio.AioRpcError:
        """The error of a call that must not succeed."""
        try:
            answer = self.call(rpc, request, **options)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"{rpc} was answered: {answer}")

    def close(self) -> None:
        self.run(self.channel.close())
        self.run(self.server.stop(0))
        self._runner.close()


@contextlib.contextmanager
def serving(node: Any, **options: Any) -> Iterator[Caller]:
    caller = Caller(node, **options)
    try:
        yield caller
    finally:
        caller.close()
