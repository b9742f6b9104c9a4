"""What does the service add to a search? Processor time of the node per request, against the same search in process.

    python benchmarks/service.py [--requests 2000] [--callers 64] [--documents 2000]

A node is filled with documents that bring their vectors. Then callers search it with ready vectors, all at the same
time: in its own process, over HTTP, over gRPC and over a mothership's session. The node's processor time, user and
system of all its threads, is read before and after; what a way takes more than the search in process is what it adds.
Each way is measured three times, in turn with the others; the table has medians, and the range of the processor time.

`front end`: the same server before a node that has its answer ready, which is the added time without the noise of the
search. `smallest`: a search without words and graph. `defaults`: a search as it comes. `framework`: Litestar and
grpc.aio under the same load, with nothing behind them; a server built on them cannot take less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness import file_all, parse, write_results
from load import Call, grpc_callers, http_callers, load, mothership
from service_data import WIDTH, Queries, Source
from service_nodes import (
    opened_node,
    run,
    run_apart,
    serve_frameworks,
    serve_front_ends,
    started,
    started_node,
)

ROUNDS = 3
READY_TIMES = 2
"""So many times the requests where nothing searches: they take little of a time that is counted in ticks of 10 ms."""
WARM_UP_SHARE = 0.1
START_SECONDS = 60
SEARCHES: dict[str, dict[str, Any]] = {
    "smallest": {"graph_mode": "off", "lexical": False},
    "defaults": {"graph_mode": "boost", "lexical": True},
}
IN_PROCESS = "in process"
WANTED = {"HTTP": 0.5, "gRPC": 0.3, "session": 0.3}
"""Milliseconds of processor time that a request may add."""


@dataclass(frozen=True, slots=True)
class Size:
    requests: int
    callers: int
    documents: int
    rounds: int = ROUNDS


@dataclass(frozen=True, slots=True)
class Round:
    cpu_ms: float
    """User and system time of the node, per request."""
    requests_per_second: float
    p50_ms: float
    p99_ms: float


Rounds = dict[str, list[Round]]
"""Way in → its rounds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000, help="in each round")
    parser.add_argument("--callers", type=int, default=64, help="at the same time")
    parser.add_argument("--documents", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parse(parser, requests=400, documents=500, rounds=1)
    size = Size(arguments.requests, arguments.callers, arguments.documents, arguments.rounds)
    ready = replace(size, requests=READY_TIMES * size.requests)
    # As `thread` sets them for itself; the search in process is to run under the same conditions.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    queries = Source().queries()
    alone = _in_turn(ready, queries, partial(started, serve_front_ends))
    frameworks = _in_turn(ready, queries, partial(started, serve_frameworks))
    searches: dict[str, Rounds] = {}
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as name:
        folder = Path(name)
        run_apart(_fill, folder, size)
        for search, options in SEARCHES.items():
            in_process = partial(run_apart, _search_in_process, folder, size, options)
            searches[search] = _in_turn(size, queries, partial(started_node, folder, options), in_process)
    measured = {
        "size": {"requests": size.requests, "callers": size.callers, "documents": size.documents, "width": WIDTH},
        "rounds": size.rounds,
        "wanted_added_cpu_ms": WANTED,
        "front end": _summary(alone, 0.0),
        **{search: _summary(rounds, _cpu_ms(rounds[IN_PROCESS])) for search, rounds in searches.items()},
        "framework": _summary(frameworks, None),
    }
    show(measured)
    path = write_results("service", measured, ratios=ratios(measured), quick=arguments.quick)
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


# ---------------------------------------------------------------------------------------------------- measuring


def _in_turn(
    size: Size,
    queries: Queries,
    start: Callable[[int], AbstractContextManager[int]],
    in_process: Callable[[], Round] | None = None,
) -> Rounds:
    rounds: Rounds = {}
    for _ in range(size.rounds):
        if in_process is not None:
            rounds.setdefault(IN_PROCESS, []).append(in_process())
        for way, found in run(_from_outside(size, queries, start)).items():
            rounds.setdefault(way, []).append(found)
    return rounds


async def _fill(folder: Path, size: Size) -> None:
    async with opened_node(folder, {}) as node:
        await file_all(node, Source().documents(size.documents))


async def _search_in_process(folder: Path, size: Size, options: dict[str, Any]) -> Round:
    async with opened_node(folder, options) as node:
        requests = Source().queries().requests
        assert (await node.search(requests[0])).passages
        return await _round([node.search] * size.callers, requests, size, os.getpid())


async def _from_outside(
    size: Size, queries: Queries, start: Callable[[int], AbstractContextManager[int]]
) -> dict[str, Round]:
    found: dict[str, Round] = {}
    async with mothership() as (peer, peer_port):
        with start(peer_port) as pid:
            node = await asyncio.wait_for(peer.registered, START_SECONDS)
            await asyncio.to_thread(wait_ready, node.http_port)
            async with http_callers(node.http_port, size.callers) as callers:
                found["HTTP"] = await _round(callers, queries.http, size, pid)
            async with grpc_callers(node.grpc_port, size.callers) as callers:
                found["gRPC"] = await _round(callers, queries.grpc, size, pid)
                answer = await callers[0](queries.grpc[0])
            # A session has no word for an error: its answer would be empty.
            assert len(await peer.ask(queries.session[0])) > len(answer)
            found["session"] = await _round([peer.ask] * size.callers, queries.session, size, pid)
    return found


def wait_ready(port: int) -> None:
    """Until the model is loaded, which would be measured too."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            if json.load(answer)["embedder"]["phase"] == "ready":
                return
        time.sleep(0.05)
    raise SystemExit("the node's model is not ready")


async def _round(callers: Sequence[Call], requests: Sequence[Any], size: Size, pid: int) -> Round:
    await load(callers, requests, int(WARM_UP_SHARE * size.requests))
    before = _cpu_seconds(pid)
    seen = await load(callers, requests, size.requests)
    cpu_ms = 1e3 * (_cpu_seconds(pid) - before) / size.requests
    return Round(cpu_ms, seen.requests_per_second, seen.milliseconds(50), seen.milliseconds(99))


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process: all its threads, also those that have ended."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------------------------------------- showing


def _cpu_ms(rounds: Sequence[Round]) -> float:
    return statistics.median(one.cpu_ms for one in rounds)


def _summary(rounds: Rounds, without: float | None) -> dict[str, dict[str, Any]]:
    """`without`: processor time of the same operation without the service; None adds no comparison."""
    rows: dict[str, dict[str, Any]] = {}
    for way, found in rounds.items():
        times = sorted(one.cpu_ms for one in found)
        rows[way] = {
            "cpu_ms": round(_cpu_ms(found), 3),
            "cpu_ms_range": [round(times[0], 3), round(times[-1], 3)],
            "requests_per_second": round(statistics.median(one.requests_per_second for one in found)),
            "p50_ms": round(statistics.median(one.p50_ms for one in found), 1),
            "p99_ms": round(statistics.median(one.p99_ms for one in found), 1),
        }
        if without is not None and way != IN_PROCESS:
            rows[way]["added_cpu_ms"] = round(_cpu_ms(found) - without, 3)
    return rows


def ratios(measured: dict[str, Any]) -> dict[str, float]:
    """Of processor time a request."""
    over = {"front end": lambda way: measured["framework"][way]} | {
        search: lambda _, search=search: measured[search][IN_PROCESS] for search in SEARCHES
    }
    return {
        f"{name}, {way} / {'framework' if name == 'front end' else IN_PROCESS}": measured[name][way]["cpu_ms"]
        / find(way)["cpu_ms"]
        for name, find in over.items()
        for way in WANTED
    }


def show(measured: dict[str, Any]) -> None:
    print(f"{'':24}{'CPU ms':>8}{'range':>16}{'added':>8}{'wanted':>8}{'per s':>8}{'p50 ms':>8}{'p99 ms':>8}")
    for name in ("front end", *SEARCHES, "framework"):
        for way, row in measured[name].items():
            low, high = row["cpu_ms_range"]
            added = f"{row['added_cpu_ms']:8.3f}{WANTED[way]:8.1f}" if "added_cpu_ms" in row else " " * 16
            print(
                f"{f'{name}, {way}':24}{row['cpu_ms']:8.3f}{f'{low:.3f}-{high:.3f}':>16}{added}"
                f"{row['requests_per_second']:8}{row['p50_ms']:8.1f}{row['p99_ms']:8.1f}"
            )


if __name__ == "__main__":
    main()
