"""A node in a stack answers callers on this machine that know the secret, over HTTP, gRPC and to a mothership."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from fake_node import FakeNode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from litestar.testing import TestClient
from member import member
from mothership import listening

from thread_service.settings import Settings, SettingsError
from thread_service.wire import secret
from thread_service.wire.grpc_server import ApiKeyInterceptor, GrpcServer
from thread_service.wire.http import create_app
from thread_service.wire.mothership.availability import Availability
from thread_service.wire.mothership.peer import Peer
from thread_service.wire.secret import Stack, StackInterceptor, load_stack
from thread_service.wire.v1 import thread_pb2 as pb
from thread_service.wire.v1 import thread_pb2_grpc

STACK = Stack("s3cret", "craft")
NONCE = "000102030405060708090a0b0c0d0e0f"
PROOF = "eb9c34a43319f28ce0a8af801edaf4e6f7d588ed4c16d8edf05e4ed6db53272c"
LOCAL = {"host": "127.0.0.1:8081"}
KNOWN = {**LOCAL, "x-ambient-secret": "s3cret"}


@pytest.fixture(autouse=True)
def _never_logged(caplog: pytest.LogCaptureFixture) -> Any:
    with caplog.at_level(logging.DEBUG):
        yield
    assert "s3cret" not in caplog.text
    assert "s3cret" not in repr(STACK)


# ---------------------------------------------------------------------------------------------------- which secret


def home(tmp_path: Path, text: str = "0123456789abcdefABCDEF" + "0" * 42, *, mode: int = 0o600) -> dict[str, str]:
    path = tmp_path / "secrets" / "veil"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(mode)
    return {"RAO_HOME": str(tmp_path), "RAO_APP": "veil"}


def test_a_node_on_its_own_has_none() -> None:
    assert load_stack({}) is None
    assert load_stack({"RAO_APP": "craft", "AMBIENT_STACK_SECRET": " ", "RAO_HOME": ""}) is None


def test_the_variable_wins_over_the_file(tmp_path: Path) -> None:
    environment = home(tmp_path)
    assert load_stack(environment) == Stack("0123456789abcdefABCDEF" + "0" * 42, "veil")
    assert load_stack({**environment, "AMBIENT_STACK_SECRET": "s3cret"}) == Stack("s3cret", "veil")
    assert load_stack({"AMBIENT_STACK_SECRET": "s3cret", "RAO_APP": "other"}) == Stack("s3cret", "")


@pytest.mark.parametrize("app", ["", "other", "../veil", "VEIL"])
def test_a_home_without_a_known_app_is_refused(tmp_path: Path, app: str) -> None:
    with pytest.raises(SettingsError, match=r"^RAO_APP: .*ambient, craft, veil"):
        load_stack({**home(tmp_path), "RAO_APP": app})


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("0" * 63, 0o600, "64 hexadecimal"),
        ("0" * 65, 0o600, "64 hexadecimal"),
        ("0" * 64 + "\n", 0o600, "64 hexadecimal"),
        ("g" * 64, 0o600, "64 hexadecimal"),
        ("", 0o600, "64 hexadecimal"),
        ("0" * 64, 0o640, "chmod 600"),
        ("0" * 64, 0o604, "chmod 600"),
    ],
)
def test_a_home_without_a_good_secret_is_refused(tmp_path: Path, text: str, mode: int, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as error:
        load_stack(home(tmp_path, text, mode=mode))
    assert "veil: the stack secret" in str(error.value)


def test_a_home_without_a_secret_file_is_refused(tmp_path: Path) -> None:
    environment = {"RAO_HOME": str(tmp_path), "RAO_APP": "veil"}
    with pytest.raises(SettingsError, match="No such file"):
        load_stack(environment)
    (tmp_path / "secrets").mkdir()
    os.mkfifo(tmp_path / "secrets" / "veil")
    with pytest.raises(SettingsError, match="not a file"):
        load_stack(environment)


@pytest.mark.parametrize("text", ["zwei wörter", "tab\tbed"])
def test_a_secret_that_no_header_can_carry_is_refused_unseen(text: str) -> None:
    with pytest.raises(SettingsError, match="AMBIENT_STACK_SECRET") as error:
        load_stack({"AMBIENT_STACK_SECRET": text})
    assert text not in str(error.value)


# ---------------------------------------------------------------------------------------------------- HTTP


@contextlib.contextmanager
def client(stack: Stack | None = STACK, **settings: Any) -> Any:
    with TestClient(create_app(FakeNode(), Settings(**settings), stack=stack), raise_server_exceptions=False) as it:
        yield it


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/schema", "/v1/stats"])
def test_every_route_but_health_wants_a_loopback_host_and_then_the_secret(path: str) -> None:
    method = "POST" if path.startswith("/v1") else "GET"

    async def scenario() -> None:
        transport = httpx.ASGITransport(create_app(FakeNode(), Settings(), stack=STACK))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            for host in ("node.example", "127.0.0.1.example:80", "127.0.0.1:8081:1", "[::1", "127.0.0.1:", "10.0.0.1"):
                assert (await http.request(method, path, headers={**KNOWN, "host": host})).status_code == 421
            for given in (b"", b"s3cre", b"s3cret1", b"\xff", None):
                header = [] if given is None else [(b"x-ambient-secret", given)]
                answer = await http.request(method, path, headers=header)
                assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
            for host in ("127.0.0.1:8081", "LocalHost", "[::1]:1", "localhost:65535"):
                answer = await http.request(method, path, headers={**KNOWN, "host": host}, json={})
                assert answer.status_code in (200, 307)

    asyncio.run(scenario())


def test_health_is_open_and_proves_the_secret() -> None:
    with client() as http:
        body = http.get("/health", headers={"X-Ambient-Nonce": NONCE, "host": "node.example"}).json()
        assert (body["stack"], body["proof"], body["app"]) == ("proof", PROOF, "craft")
        assert body["contract"] == secret.HEALTH_CONTRACT
        upper = http.get("/health", headers={"X-Ambient-Nonce": NONCE.upper()}).json()
        assert upper["proof"] != PROOF
        for nonce in ("", "00" * 7, "00" * 65, "xy" * 16, NONCE + "\u0660"):
            answer = http.get("/health", headers=[(b"X-Ambient-Nonce", nonce.encode())]).json()
            assert answer["stack"] == "proof"
            assert "proof" not in answer
    with client(None) as http:
        body = http.get("/health", headers={"X-Ambient-Nonce": NONCE}).json()
        assert body["stack"] == "open"
        assert not {"proof", "app", "contract"} & body.keys()


def test_other_origins_are_let_in_only_without_a_stack() -> None:
    asks = {**KNOWN, "origin": "http://page.example"}
    preflight = {**asks, "access-control-request-method": "POST"}
    with client() as http:
        assert "access-control-allow-origin" not in http.get("/livez", headers=asks).headers
        assert http.options("/v1/search", headers={**LOCAL, "origin": "http://page.example"}).status_code == 401
        assert "access-control-allow-origin" not in http.options("/v1/search", headers=preflight).headers
    with client(None) as http:
        assert http.options("/v1/search", headers=preflight).headers["access-control-allow-origin"] == "*"


def test_an_api_key_is_wanted_beside_the_secret() -> None:
    with client(api_key="k3y") as http:
        assert http.get("/metrics", headers=KNOWN).status_code == 401
        assert http.get("/metrics", headers={**LOCAL, "authorization": "Bearer k3y"}).status_code == 401
        assert http.get("/metrics", headers={**KNOWN, "authorization": "Bearer k3y"}).status_code == 200


# ---------------------------------------------------------------------------------------------------- gRPC


@contextlib.asynccontextmanager
async def channel(*more: grpc.aio.ServerInterceptor, host: str = "127.0.0.1") -> AsyncIterator[grpc.aio.Channel]:
    server = GrpcServer(host, 0, interceptors=[StackInterceptor(STACK), *more])
    await server.start(FakeNode())
    try:
        async with grpc.aio.insecure_channel(f"{host}:{server.port}") as dialled:
            yield dialled
    finally:
        await server.stop(0)


async def stats(dialled: grpc.aio.Channel, *metadata: tuple[str, str]) -> grpc.StatusCode:
    call = thread_pb2_grpc.ThreadUpdateStub(dialled).Stats(pb.ThreadStatsRequest(), metadata=metadata)
    assert "s3cret" not in (await call.details() or "")
    return await call.code()


def test_every_rpc_wants_the_secret() -> None:
    async def scenario() -> None:
        async with channel() as dialled:
            for wrong in ("", "s3cre", "s3cret1"):
                assert await stats(dialled, ("x-ambient-secret", wrong)) == grpc.StatusCode.UNAUTHENTICATED
            assert await stats(dialled) == grpc.StatusCode.UNAUTHENTICATED
            right = ("x-ambient-secret", "s3cret")
            assert await stats(dialled, right) == grpc.StatusCode.OK
            twice = [("x-ambient-secret", "wrong"), right]
            assert await stats(dialled, *twice) == grpc.StatusCode.UNAUTHENTICATED
            health = health_pb2_grpc.HealthStub(dialled)
            assert (await health.Check(health_pb2.HealthCheckRequest(), metadata=[right])).status == 1
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await health.Check(health_pb2.HealthCheckRequest())
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            reflection = reflection_pb2_grpc.ServerReflectionStub(dialled)
            listed = [answer async for answer in reflection.ServerReflectionInfo(iter([ask]), metadata=[right])]
            assert "thread.v1.ThreadQuery" in [s.name for s in listed[0].list_services_response.service]
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                [answer async for answer in reflection.ServerReflectionInfo(iter([ask]))]

    asyncio.run(scenario())


def test_an_api_key_is_wanted_beside_the_secret_over_grpc() -> None:
    async def scenario() -> None:
        right, key = ("x-ambient-secret", "s3cret"), ("authorization", "Bearer k3y")
        async with channel(ApiKeyInterceptor("k3y")) as dialled:
            assert await stats(dialled, right) == grpc.StatusCode.UNAUTHENTICATED
            assert await stats(dialled, key) == grpc.StatusCode.UNAUTHENTICATED
            assert await stats(dialled, right, key) == grpc.StatusCode.OK

    asyncio.run(scenario())


def test_a_peer_elsewhere_is_refused_before_its_secret_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(secret, "is_loopback_peer", lambda peer: False)

    async def scenario() -> None:
        async with channel() as dialled:
            assert await stats(dialled) == grpc.StatusCode.PERMISSION_DENIED
            assert await stats(dialled, ("x-ambient-secret", "s3cret")) == grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(scenario())
    assert "refused '/thread.v1.ThreadUpdate/Stats' of ipv4:127.0.0.1" in caplog.text


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        ("ipv4:127.0.0.1:5000", True),
        ("ipv4:127.9.8.7:1", True),
        ("ipv6:[::1]:5000", True),
        ("ipv6:%5B::1%5D:5000", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:5000", True),
        ("unix:/run/thread.sock", True),
        ("unix:", True),
        ("ipv4:10.0.0.1:5000", False),
        ("ipv4:127.0.0.1.example:5000", False),
        ("ipv6:[2001:db8::1]:5000", False),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5000", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_peers_of_this_machine_are_told_from_others(peer: str, is_local: bool) -> None:
    assert secret.is_loopback_peer(peer) is is_local


# ---------------------------------------------------------------------------------------------------- a mothership


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_a_mothership_on_this_machine_may_have_it(host: str) -> None:
    assert Peer.mothership(host, 1, "s3cret").metadata == (("x-ambient-secret", "s3cret"),)
    assert Peer.mothership(host, 1).metadata == ()


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.example", "0.0.0.0", "127.0.0.1.example", "", "::"])
def test_no_other_mothership_may_have_it(host: str) -> None:
    assert Peer.mothership(host, 1, "s3cret").metadata == ()
    assert "s3cret" not in repr(Peer.mothership("127.0.0.1", 1, "s3cret"))


def test_it_goes_with_every_call_to_the_mothership_and_with_none_to_a_fleet() -> None:
    async def scenario() -> None:
        async def is_full() -> bool:
            return False

        async with listening() as mothership, listening() as fleet:
            peer = Peer.mothership("127.0.0.1", mothership.port, "s3cret")
            availability = Availability(peer, FakeNode().node_id, is_full)
            async with (
                member(0, peer=peer, availability=availability),
                member(0, peer=Peer.fleet("127.0.0.1", fleet.port)),
            ):
                for host in (mothership, fleet):
                    await host.session()
                    await host.until(lambda host=host: bool(host.heartbeats))
                await mothership.until(lambda: bool(mothership.availability))
        for host, expected in ((mothership, "s3cret"), (fleet, None)):
            calls = [*host.registrations, *host.heartbeats, *host.availability, *(s.call for s in host.streams)]
            assert {call.metadata.get("x-ambient-secret") for call in calls} == {expected}

    asyncio.run(scenario())
