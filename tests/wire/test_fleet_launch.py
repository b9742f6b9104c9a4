"""The launch lines of existing callers start a node, unchanged, as a process under a mothership."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from mothership import Mothership, listening

from thread_service.wire.secret import Stack
from thread_service.wire.v1 import thread_pb2 as pb

NODE_ID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
SECRET = "0123456789abcdef" * 4
NONCE = "000102030405060708090a0b0c0d0e0f"


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


@contextlib.asynccontextmanager
async def launched(cwd: Path, arguments: list[str], **variables: str) -> AsyncIterator[Any]:
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("THREAD_", "RAO_", "AMBIENT"))
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "thread_service.cli", *arguments),
        cwd=cwd,
        env={**environment, "HF_HUB_OFFLINE": "1", **variables},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def stack_home(tmp_path: Path) -> Path:
    secret = tmp_path / "rao" / "secrets" / "ambient"
    secret.parent.mkdir(parents=True)
    secret.write_text(SECRET)
    secret.chmod(0o600)
    return tmp_path / "rao"


def test_a_launch_line_starts_a_member_of_the_stack(tmp_path: Path) -> None:
    port, grpc_port = free_ports(2)
    (tmp_path / ".env").write_text(f"THREAD_NODE_ID={NODE_ID}\n")

    async def scenario(mothership: Mothership) -> None:
        line = (
            f"--host 127.0.0.1 --port {port} --grpc-port {grpc_port} --mothership-host 127.0.0.1 "
            f"--mothership-grpc-port {mothership.port} --data-dir {tmp_path / 'data'} --graph-backend mlx --use-mlx "
            "--mlx-model rao-studios/voyage-4-nano-mlx-8bit --graph-model mlx-community/Mistral-Nemo-Instruct-2407-4bit"
        )
        home = stack_home(tmp_path)
        async with launched(tmp_path, line.split(), RAO_HOME=str(home), RAO_APP="ambient") as process:
            stream = await mothership.session()
            (registration,) = mothership.registrations
            assert registration.request.thread_id == NODE_ID.upper()
            assert (registration.request.host, registration.request.http_port) == ("127.0.0.1", port)
            assert registration.request.grpc_port == grpc_port
            assert {c.metadata["x-ambient-secret"] for c in (registration, stream.call)} == {SECRET}
            vector = pb.ThreadPartitionInput(embedding=[1.0] * 16)
            item = pb.ThreadIndexItem(document_id="d", texts=["kept"], partitions=[vector])
            filed = await stream.ask(index_request=pb.ThreadIndexRequest(owner_id="ada", items=[item]))
            assert filed.index_response.success
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                health = (await http.get("/health", headers={"X-Ambient-Nonce": NONCE})).json()
                assert health["proof"] == Stack(SECRET).proof(NONCE)
                assert (await http.post("/v1/stats")).status_code == 401
                counts = (await http.post("/v1/stats", headers={"X-Ambient-Secret": SECRET})).json()
                assert counts["document_count"] == 1
            leaving = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, said = await process.communicate()
            assert process.returncode == 0
            assert time.monotonic() - leaving < 10
            await mothership.until(lambda: stream.ended_at is not None)
            assert SECRET.encode() not in said
            assert b"Traceback" not in said

    async def run() -> None:
        async with listening(Mothership(timeout=60)) as mothership:
            await scenario(mothership)

    asyncio.run(run())


def test_a_stack_home_without_its_secret_starts_nothing(tmp_path: Path) -> None:
    port, grpc_port = free_ports(2)
    line = f"--port {port} --grpc-port {grpc_port} --data-dir {tmp_path / 'data'}"

    async def scenario() -> None:
        async with launched(tmp_path, line.split(), RAO_HOME=str(tmp_path), RAO_APP="craft") as process:
            _, said = await process.communicate()
            assert process.returncode != 0
            assert b"craft: the stack secret cannot be read" in said
        assert not (tmp_path / "data").exists()

    asyncio.run(scenario())
