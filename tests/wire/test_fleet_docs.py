"""The calls that docs/fleet.md shows are calls that a node answers, found by reflection as grpcurl finds them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import grpc.aio
from fake_node import FakeNode
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from thread_service.wire.grpc_server import GrpcServer

PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")
CALLS = re.findall(r"^grpcurl -plaintext (?:-d '([^']*)' )?127\.0\.0\.1:9090 ([\w.]+)/(\w+)$", PAGE, re.MULTILINE)


async def reflected(channel: grpc.aio.Channel, symbol: str) -> descriptor_pool.DescriptorPool:
    ask = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    pool = descriptor_pool.DescriptorPool()
    async for answer in reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask])):
        for file in answer.file_descriptor_response.file_descriptor_proto:
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
    return pool


def test_the_documented_calls_are_answered() -> None:
    async def scenario() -> None:
        server = GrpcServer("127.0.0.1", 0)
        await server.start(FakeNode())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for body, service, rpc in CALLS:
                pool = await reflected(channel, service)
                method = pool.FindServiceByName(service).methods_by_name[rpc]
                request = json_format.Parse(body or "{}", message_factory.GetMessageClass(method.input_type)())
                answer = await channel.unary_unary(f"/{service}/{rpc}")(request.SerializeToString())
                message_factory.GetMessageClass(method.output_type).FromString(answer)
        await server.stop(0)

    assert len(CALLS) == 6
    asyncio.run(scenario())
