"""Does a node hold out? Reads and writes at 80 % of what it can take, for an hour, and then more than it can take.

    python benchmarks/soak.py [--minutes 60] [--documents 5000]

A node of its own process is filled with documents that bring their vectors. Of every twenty requests over HTTP sixteen
are searches with ready vectors, three file a document with another text and one removes one, all among the same
thousand documents, so that what the node keeps stays as large as it is: memory that grows all the same is a leak.
Requests are sent when they are due, whether or not earlier ones were answered, as callers do who do not know of each
other.

- **capacity**: the rate is raised step by step until the node falls behind;
- **soak**: 80 % of that. No errors, p99 stable, memory and descriptors flat;
- **above**: three times that for half a minute. What is too much is refused at once with 429, and as much as before is
  answered.

The callers are one process with one thread; what they take of the processor is missing to the node where there are no
cores to spare. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness import OWNER, file_all, write_results
from load import http_request, mothership
from service import START_SECONDS, wait_ready
from service_data import WIDTH, Source
from service_nodes import opened_node, run, run_apart, started_node

from thread_service.node.operations import DocumentIn

OPTIONS: dict[str, Any] = {"graph_mode": "boost", "lexical": True}
MIX = (
    ("search",) * 4
    + ("file",)
    + ("search",) * 4
    + ("file",)
    + ("search",) * 4
    + ("file",)
    + ("search",) * 4
    + ("remove",)
)
REWRITTEN = 1_000
"""Documents that are filed and removed again and again."""
FIRST_RATE = 40.0
STEP = 1.25
STEP_SECONDS = 6.0
ABOVE_SECONDS = 30.0
SOAK_SHARE = 0.8
ABOVE = 3.0
IDLE_SECONDS = 2.0
"""A connection is not used again after so long, before the node closes it."""
KEEPS_UP = 0.97
"""A rate is held when so much of it was answered while it lasted."""
WINDOWS = 20
WARM_WINDOWS = 2
DRAIN_SECONDS = 180.0

P99_GROWTH_MAX = 2.0
"""The median p99 of the last quarter of the windows over that of the first."""
MEMORY_GROWTH_MAX = 1.1
DESCRIPTORS_GROWTH_MAX = 1.1
REFUSED_P99_MS_MAX = 1_000.0
GOODPUT_MIN = 0.9
"""Above capacity, of the goodput at capacity."""


@dataclass(slots=True)
class Window:
    """What was sent in a stretch of time, and what became of it, then or later. `answered_per_second` counts the
    answers 200 that came in that time. Memory and descriptors are the node's at its end, the callers' connections left
    out: how many there are says how many waited."""

    seconds: float
    offered_per_second: float
    answered_per_second: float
    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]
    refused_p99_ms: float
    resident_mb: float
    descriptors: int


@dataclass(slots=True)
class Seen:
    """`latencies`: of answers 200; `refusals`: of answers 429; seconds. `statuses` by code, or by the error's name."""

    latencies: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    in_time: int = 0


class Callers:
    """Sends requests when they are due, each on a connection that nobody uses at the moment."""

    def __init__(self, port: int, pid: int, requests: Iterator[bytes]) -> None:
        self._port = port
        self._pid = pid
        self._requests = requests
        self._idle: deque[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = deque()
        self._open = 0

    async def window(self, rate: float, seconds: float) -> Window:
        """Offer so many requests a second for so long; returns when all have their answers."""
        seen = Seen()
        started = time.perf_counter()
        end = started + seconds
        sent: list[asyncio.Task[None]] = []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
            sent.append(asyncio.create_task(self._ask(next(self._requests), seen, end)))
        await asyncio.sleep(max(0.0, end - time.perf_counter()))
        lasted = time.perf_counter() - started
        resident_mb, descriptors = usage(self._pid)
        connections = self._open
        _, late = await asyncio.wait(sent, timeout=DRAIN_SECONDS)
        for task in late:
            seen.statuses["no answer"] += 1
            task.cancel()
        return Window(
            seconds=round(lasted, 1),
            offered_per_second=round(int(rate * seconds) / lasted, 1),
            answered_per_second=round(seen.in_time / seconds, 1),
            p50_ms=round(percentile(seen.latencies, 50), 1),
            p99_ms=round(percentile(seen.latencies, 99), 1),
            statuses=dict(seen.statuses),
            refused_p99_ms=round(percentile(seen.refusals, 99), 1),
            resident_mb=round(resident_mb, 1),
            descriptors=descriptors - connections,
        )

    def close(self) -> None:
        for *_, writer in self._idle:
            self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._open -= 1

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle and self._idle[0][0] < time.perf_counter() - IDLE_SECONDS:
            self._end(self._idle.popleft()[-1])
        if self._idle:
            _, reader, writer = self._idle.pop()
            return reader, writer
        opened = await asyncio.open_connection("127.0.0.1", self._port)
        self._open += 1
        return opened

    async def _ask(self, request: bytes, seen: Seen, end: float) -> None:
        started = time.perf_counter()
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._connection()
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            now = time.perf_counter()
            status = head[9:12].decode()
            if status == "200":
                seen.latencies.append(now - started)
                seen.in_time += now <= end
            elif status == "429":
                seen.refusals.append(now - started)
            seen.statuses[status] += 1
            if b"connection: close" in head:
                self._end(writer)
            else:
                self._idle.append((now, reader, writer))
        except (OSError, asyncio.IncompleteReadError) as error:
            seen.statuses[type(error).__name__] += 1
            if writer is not None:
                self._end(writer)


def percentile(seconds: list[float], percent: float) -> float:
    """In milliseconds; 0 of nothing."""
    return float(1e3 * np.percentile(seconds, percent)) if seconds else 0.0


def usage(pid: int) -> tuple[float, int]:
    """Resident megabytes and open descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir(f"/proc/{pid}/fd"))


def mixed() -> Iterator[bytes]:
    """Requests without end. A document gets one text and another in turn; what is removed is filed again."""
    source = Source()
    documents = source.documents(2 * REWRITTEN)
    ids = [each.document_id for each in documents[:REWRITTEN]]
    # The node is filled with the first half.
    turns = zip([*ids, *ids], documents[REWRITTEN:] + documents[:REWRITTEN], strict=True)
    kinds = {
        "search": itertools.cycle(source.queries().http),
        "file": itertools.cycle([http_request("/v1/batch/embeddings", deposit(*turn)) for turn in turns]),
        "remove": itertools.cycle(
            [http_request("/v1/remove", {"owner_id": OWNER, "document_ids": [each]}) for each in ids[::-1]]
        ),
    }
    return (next(kinds[kind]) for kind in itertools.cycle(MIX))


def deposit(document_id: str, document: DocumentIn) -> dict[str, Any]:
    return {
        "inputs": [list(document.texts)],
        "document_ids": [document_id],
        "names": [document.name],
        "entities": [[{"name": each.name, "kind": each.kind} for each in document.entities or ()]],
        "partitions": [
            [{"embedding": each.embedding.tolist()} for each in document.partitions if each.embedding is not None]
        ],
        "thread": {"owner_id": OWNER},
    }


async def fill(folder: Path, count: int) -> None:
    async with opened_node(folder, OPTIONS) as node:
        await file_all(node, Source().documents(count))


async def measure(folder: Path, minutes: float) -> dict[str, Any]:
    async with mothership() as (peer, peer_port):
        with started_node(folder, OPTIONS, peer_port) as pid:
            node = await asyncio.wait_for(peer.registered, START_SECONDS)
            await asyncio.to_thread(wait_ready, node.http_port)
            callers = Callers(node.http_port, pid, mixed())
            try:
                return await _measure(callers, minutes)
            finally:
                callers.close()


async def _measure(callers: Callers, minutes: float) -> dict[str, Any]:
    steps: list[Window] = []
    rate = FIRST_RATE
    while True:
        steps.append(await callers.window(rate, STEP_SECONDS))
        show(f"step to {rate:.0f}/s", steps[-1])
        if steps[-1].answered_per_second < KEEPS_UP * rate:
            break
        rate *= STEP
    capacity = rate / STEP
    soak: list[Window] = []
    for number in range(WINDOWS):
        soak.append(await callers.window(SOAK_SHARE * capacity, 60 * minutes / WINDOWS))
        show(f"soak {number + 1} of {WINDOWS}", soak[-1])
    above = await callers.window(ABOVE * capacity, ABOVE_SECONDS)
    show(f"{ABOVE:g} times the capacity", above)
    wrong = [*wrong_in_soak(soak), *wrong_above(above, capacity)]
    return {
        "capacity_per_second": round(capacity, 1),
        "steps": [asdict(each) for each in steps],
        "soak": [asdict(each) for each in soak],
        "above": asdict(above),
        "wrong": wrong,
    }


def wrong_in_soak(windows: list[Window]) -> list[str]:
    warm = windows[WARM_WINDOWS:]
    quarter = max(1, len(warm) // 4)
    first, last = warm[:quarter], warm[-quarter:]
    errors = sum((Counter(each.statuses) for each in windows), Counter())
    del errors["200"]
    wrong = [f"errors in the soak: {dict(errors)}"] if errors.total() else []
    for name, most in (
        ("p99_ms", P99_GROWTH_MAX),
        ("resident_mb", MEMORY_GROWTH_MAX),
        ("descriptors", DESCRIPTORS_GROWTH_MAX),
    ):
        before, after = (float(np.median([getattr(each, name) for each in some])) for some in (first, last))
        if after > most * before:
            wrong.append(f"{name} went from {before:g} to {after:g}, more than {most:g} times as much")
    return wrong


def wrong_above(window: Window, capacity: float) -> list[str]:
    wrong = []
    if others := window.statuses.keys() - {"200", "429"}:
        wrong.append(f"above the capacity: {', '.join(sorted(others))}")
    if "429" not in window.statuses:
        wrong.append("above the capacity nothing was refused")
    if window.answered_per_second < GOODPUT_MIN * capacity:
        wrong.append(f"above the capacity only {window.answered_per_second:g}/s were answered")
    if window.refused_p99_ms > REFUSED_P99_MS_MAX:
        wrong.append(f"above the capacity a refusal took {window.refused_p99_ms:g} ms (p99)")
    return wrong


def show(what: str, window: Window) -> None:
    print(
        f"{what:24}{window.offered_per_second:8.1f}/s offered{window.answered_per_second:8.1f}/s answered"
        f"   p50 {window.p50_ms:7.1f} ms   p99 {window.p99_ms:7.1f} ms{window.resident_mb:7.0f} MB"
        f"{window.descriptors:6} descriptors   {window.statuses}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of the soak itself")
    parser.add_argument("--documents", type=int, default=5_000)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as name:
        run_apart(fill, Path(name), arguments.documents)
        found = run(measure(Path(name), arguments.minutes))
    size = {"minutes": arguments.minutes, "documents": arguments.documents, "width": WIDTH}
    path = write_results("soak", {"size": size, **found})
    print(f"\n{'FAILED: ' + '; '.join(found['wrong']) if found['wrong'] else 'passed'}")
    print(f"written: {path.relative_to(path.parents[2])}")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
