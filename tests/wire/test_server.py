from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

import httpx
import pytest

from thread_service.wire.server import ListenError, listen, run_http


def test_it_stops_when_told_to() -> None:
    async def scenario() -> None:
        stop = asyncio.Event()
        stop.set()
        await asyncio.wait_for(run_http(None, listen("127.0.0.1", 0), stop), 10)

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_request_under_way_finish_and_returns(number: signal.Signals) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        os.kill(os.getpid(), number)
        while listener.fileno() != -1:  # noqa: ASYNC110 - the server closes it when it has seen the signal
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def scenario() -> bytes:
        serving = asyncio.create_task(run_http(slow, [listener], asyncio.Event()))
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        await asyncio.wait_for(serving, 10)
        return answer.content

    (listener,) = listen("127.0.0.1", 0)
    before = signal.getsignal(number)
    try:
        assert asyncio.run(scenario()) == b"done"
    finally:
        listener.close()
    assert signal.getsignal(number) is before


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"^port {port} on 127.0.0.1 is already in use; .* another --port$"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["256.1.1.1", "a" * 300, "é\0", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_one_clear_line(host: str) -> None:
    with pytest.raises(ListenError, match="another --host") as error:
        listen(host, 0)
    assert "\n" not in str(error.value)
