"""Which HTTP server and event loop cost least? Processor time per request of the node's own application, before a node
that has its answer ready.

    python benchmarks/http_servers.py [--requests 4000] [--callers 64]

The node serves with uvicorn on uvloop. Beside it, in turn: uvicorn on the loop of the standard library, and granian
(whose HTTP is in Rust) on either loop. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import uvloop
from harness import parse, peers, write_results
from load import http_callers
from service import ROUNDS, Rounds, Size, _round, _summary
from service_data import Source
from service_nodes import ReadyAnswer, run

from thread_service.settings import Settings
from thread_service.wire.http import create_app
from thread_service.wire.server import listen, run_http

START_SECONDS = 30
NewLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, NewLoop] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
SERVERS = ("uvicorn", "granian")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=4_000, help="in each round")
    parser.add_argument("--callers", type=int, default=64, help="at the same time")
    arguments = parse(parser, requests=1_000)
    with peers():
        version("granian")
    size = Size(arguments.requests, arguments.callers, 0)
    rounds: Rounds = {}
    for _ in range(ROUNDS):
        for server in SERVERS:
            for loop in LOOPS:
                rounds.setdefault(f"{server} on {loop}", []).append(run(_measured(server, loop, size)))
    measured = _summary(rounds, None)
    for name, row in measured.items():
        low, high = row["cpu_ms_range"]
        print(f"{name:20}{row['cpu_ms']:8.3f} ms ({low:.3f}-{high:.3f}) {row['requests_per_second']:6} requests/s")
    kept = measured["uvicorn on uvloop"]["cpu_ms"]
    path = write_results(
        "http-servers",
        {"requests": size.requests, "callers": size.callers, "servers": measured},
        ratios={f"{name} / uvicorn on uvloop": row["cpu_ms"] / kept for name, row in measured.items()},
        quick=arguments.quick,
    )
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


async def _measured(server: str, loop: str, size: Size) -> Any:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(server, loop, port), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        await _listening(port)
        async with http_callers(port, size.callers) as callers:
            return await _round(callers, Source().queries().http, size, process.pid)
    finally:
        process.kill()
        process.join()


async def _listening(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise SystemExit(f"no server on port {port} after {START_SECONDS} s")


def _serve(server: str, loop: str, port: int) -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    logging.disable(logging.INFO)
    node: Any = ReadyAnswer()
    app = create_app(node, Settings())
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        if server == "uvicorn":
            runner.run(run_http(app, listen("127.0.0.1", port), asyncio.Event()))
        else:
            from granian.constants import Interfaces
            from granian.server.embed import Server

            runner.run(Server(app, port=port, interface=Interfaces.ASGINL, backlog=2_048, log_enabled=False).serve())


if __name__ == "__main__":
    main()
