"""The server around the operations: its address, its bounds, its standard services, and how it ends."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fake_node import FakeNode
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_caller import MIB, TIMEOUT, Caller, protocol, serving
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from thread_service import cli, logs, observe
from thread_service.errors import NotReady
from thread_service.node import operations
from thread_service.wire import grpc_server, limits
from thread_service.wire.grpc_server import CALLS_MAX, GrpcServer, run_grpc
from thread_service.wire.server import ListenError, listen

SERVICES = [f"thread.v1.Thread{name}" for name in ("Query", "Update", "Library", "Graph")]


async def reflect(channel: grpc.aio.Channel, **question: str) -> Any:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**question)]))
    return await anext(aiter(call))


def is_serving(caller: Caller, service: str) -> bool:
    stub = health_pb2_grpc.HealthStub(caller.channel)
    answer = caller.run(stub.Check(health_pb2.HealthCheckRequest(service=service)))
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


# ---------------------------------------------------------------------------------------------------- standard services


def test_reflection_lists_the_services_and_describes_them(node: FakeNode) -> None:
    with serving(node) as caller:
        listed = caller.run(reflect(caller.channel, list_services="")).list_services_response.service
        assert {service.name for service in listed} == {
            *SERVICES,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        answer = caller.run(reflect(caller.channel, file_containing_symbol="thread.v1.ThreadQuery"))
        (described,) = answer.file_descriptor_response.file_descriptor_proto
        assert FileDescriptorProto.FromString(described).package == "thread.v1"


def test_health_is_answered_for_the_server_and_each_service(node: FakeNode) -> None:
    with serving(node) as caller:
        assert all(is_serving(caller, service) for service in ["", *SERVICES])
        with pytest.raises(grpc.aio.AioRpcError) as error:
            is_serving(caller, "thread.v1.ThreadRegistration")
        assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_method_of_a_newer_protocol_is_unimplemented(node: FakeNode) -> None:
    with serving(node) as caller:
        call = caller.channel.unary_unary("/thread.v1.ThreadQuery/Newer")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            caller.run(call(b""))
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "metadata", [(), (("authorization", "k3y"),), (("authorization", "Bearer k3"),), (("x-api-key", "k3y"),)]
)
def test_with_an_api_key_every_call_but_health_needs_it(node: FakeNode, metadata: Any) -> None:
    with serving(node, api_key="k3y") as caller:
        error = caller.refusal("ThreadUpdate/Stats", metadata=metadata)
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED
        assert "Bearer" in error.details()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            caller.run(reflect(caller.channel, list_services=""))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert node.asked == []
        assert is_serving(caller, "")
        caller.call("ThreadUpdate/Stats", metadata=(("authorization", "bearer k3y"),))
        assert node.asked == ["stats"]


# ---------------------------------------------------------------------------------------------------- bounds


def test_60_mib_are_taken_110_refused_and_the_node_lives_on(node: FakeNode) -> None:
    def deposit(mib: int) -> dict[str, Any]:
        return {"items": [{"texts": ["x" * MIB] * mib, "metadata": b"m"}]}

    with serving(node) as caller:
        assert caller.call("ThreadQuery/Index", deposit(60)).indexed_count == 1
        assert sum(map(len, node.asked[0].documents[0].texts)) == 60 * MIB
        assert caller.refusal("ThreadQuery/Index", deposit(110)).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(node.asked) == 1
        assert caller.call("ThreadUpdate/Stats").document_count == 0


def test_an_answer_over_the_cap_is_an_error_of_this_call_only(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", MIB)
    text = "x" * MIB
    document = operations.DocumentContent("a", None, "o", "", "", 0, (text,), "text", b"")
    node.exported = operations.ExportAnswer((document,))
    with serving(node) as caller:
        error = caller.refusal("ThreadLibrary/ExportCorpus")
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "ask for less" in error.details()
        assert caller.call("ThreadUpdate/Stats").document_count == 0


def test_200_fresh_connections_leave_no_descriptor_behind(node: FakeNode) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def one_call() -> None:
        channel = await caller.open()
        await protocol.call(channel, "ThreadUpdate/Stats")
        await channel.close()

    async def closed(most: int) -> None:
        while descriptors() > most:  # noqa: ASYNC110 - the transports close in the background
            await asyncio.sleep(0.01)

    async def many() -> None:
        for _ in range(5):
            await one_call()
        before = descriptors()
        for _ in range(200):
            await one_call()
        await asyncio.wait_for(closed(before), TIMEOUT)

    with serving(node) as caller:
        caller.run(many())
    assert len(node.asked) == 205


def test_a_flood_meets_a_bound_and_what_is_over_is_told_so(node: FakeNode) -> None:
    held, arrived = asyncio.Event(), asyncio.Event()
    running = 0

    async def slow() -> operations.Stats:
        nonlocal running
        running += 1
        if running == CALLS_MAX:
            arrived.set()
        await held.wait()
        return operations.Stats(1, 1, 1, 1)

    async def flood() -> None:
        channels = [await caller.open() for _ in range(3)]
        first = [
            asyncio.create_task(protocol.call(channel, "ThreadUpdate/Stats"))
            for channel in channels[:2]
            for _ in range(CALLS_MAX // 2)
        ]
        await arrived.wait()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await protocol.call(channels[2], "ThreadUpdate/Stats")
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        held.set()
        assert {answer.group_count for answer in await asyncio.gather(*first)} == {1}
        assert (await protocol.call(channels[2], "ThreadUpdate/Stats")).group_count == 1
        for channel in channels:
            await channel.close()

    node.stats = slow  # type: ignore[method-assign]
    with serving(node) as caller:
        caller.run(flood())
    assert running == CALLS_MAX + 1


def test_messages_in_hand_have_one_bound_for_all(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "REQUESTS_BYTES_MAX", 3 * MIB)
    let_go = asyncio.Event()
    held = 0

    async def search(request: operations.SearchRequest) -> operations.SearchAnswer:
        nonlocal held
        held += 1
        await let_go.wait()
        return operations.SearchAnswer((), operations.Trace())

    node.search = search  # type: ignore[method-assign]
    request = protocol.ThreadSearchRequest(query_text="q", query_entity_embedding=[0.5] * (MIB // 4))
    with serving(node) as caller:

        async def scenario() -> None:
            first, second = (
                asyncio.ensure_future(protocol.call(caller.channel, "ThreadQuery/Search", request)) for _ in range(2)
            )
            async with asyncio.timeout(TIMEOUT):
                while held < 2:  # noqa: ASYNC110 - what is waited for happens in the server
                    await asyncio.sleep(0.005)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await protocol.call(caller.channel, "ThreadQuery/Search", request)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            let_go.set()
            await asyncio.gather(first, second)
            await protocol.call(caller.channel, "ThreadQuery/Search", request)

        caller.run(scenario())


def test_gzip_is_accepted(node: FakeNode) -> None:
    with serving(node) as caller:
        options = {"compression": grpc.Compression.Gzip}
        caller.call("ThreadQuery/Index", {"items": [{"texts": ["again " * 10_000]}]}, **options)
    assert len(node.asked[0].documents[0].texts[0]) == 60_000


# ---------------------------------------------------------------------------------------------------- address and end


def test_a_port_in_use_is_one_clear_line(node: FakeNode) -> None:
    async def take(port: int) -> None:
        with pytest.raises(ListenError, match=f"^port {port} on 127.0.0.1 is already in use; .* another --grpc-port$"):
            GrpcServer("127.0.0.1", port)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        asyncio.run(take(taken.getsockname()[1]))
    (http,) = listen("127.0.0.1", 0)
    with http:
        asyncio.run(take(http.getsockname()[1]))
    with serving(node) as caller:
        caller.run(take(caller.server.port))


def test_a_taken_port_ends_the_process_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "configure", lambda level, form: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = ("--port", "0", "--grpc-port", str(taken.getsockname()[1]), "--data-dir", str(tmp_path / "data"))
        assert cli.main(flags) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("thread: port ")
    assert shown.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_calls_are_counted_and_timed_by_rpc(node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    def counted(status: str) -> float:
        labels = {"rpc": "ThreadUpdate/Stats", "status": status}
        return observe.REGISTRY.get_sample_value("thread_grpc_requests_total", labels) or 0.0

    before = counted("OK"), counted("UNAVAILABLE")
    with serving(node) as caller:
        caller.call("ThreadUpdate/Stats")
        node.fails_with = NotReady("stopping")
        caller.refusal("ThreadUpdate/Stats")
    assert [record.exc_info for record in caplog.records if "stopping" in record.getMessage()] == [None]
    assert (counted("OK"), counted("UNAVAILABLE")) == (before[0] + 1, before[1] + 1)
    timed = observe.REGISTRY.get_sample_value("thread_grpc_request_seconds_count", {"rpc": "ThreadUpdate/Stats"})
    assert timed is not None
    assert timed >= 2


def test_a_host_that_is_not_ours_is_one_clear_line() -> None:
    async def take() -> None:
        with pytest.raises(ListenError, match="another --host"):
            GrpcServer("192.0.2.1", 0)

    asyncio.run(take())


@pytest.mark.parametrize(("host", "target"), [("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")])
def test_it_answers_on_every_address_of_its_host(node: FakeNode, host: str, target: str) -> None:
    async def scenario() -> None:
        server = GrpcServer(host, 0)
        await server.start(node)
        async with grpc.aio.insecure_channel(f"{target}:{server.port}") as channel:
            await protocol.call(channel, "ThreadUpdate/Stats")
        await server.stop(0)

    asyncio.run(scenario())
    assert node.asked == ["stats"]


def test_it_stops_when_told_to_and_finishes_the_call_under_way(node: FakeNode) -> None:
    stop = asyncio.Event()

    async def is_listening(port: int) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return False
        writer.close()
        return True

    async def scenario() -> Any:
        server = GrpcServer("127.0.0.1", 0)

        async def stopping() -> operations.Stats:
            stop.set()
            while await is_listening(server.port):  # noqa: ASYNC110 - the server says nothing when it begins
                await asyncio.sleep(0.01)
            return operations.Stats(1, 1, 1, 1)

        node.stats = stopping  # type: ignore[method-assign]
        serving_ = asyncio.create_task(run_grpc(server, node, stop))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            answer = await protocol.call(channel, "ThreadUpdate/Stats", wait_for_ready=True)
            await asyncio.wait_for(serving_, TIMEOUT)
        return answer

    assert asyncio.run(scenario()).document_count == 1
