"""Does extraction hold up filing, and does it keep its server busy?

    python benchmarks/catching_up.py [--documents 1000] [--seconds 2] [--slots 16]

The same documents, which nobody described, are filed twice through a node in this process: with keywords only, and with
an instruct model behind a server on loopback that takes so many seconds for every answer, however many it is asked at a
time. Measured are the time until all of them are searchable, either way; the time until all are read; and how many
answers the server was busy with in the mean, from its first request to its last answer: as many as slots is all it can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness import Opened, file_all, opened_node, parse, write_results

from thread_service.models.extraction.chat_api import ChatApi
from thread_service.models.extraction.extractor import InstructExtractor
from thread_service.models.local import local_embedder
from thread_service.models.sources import PACKAGED_MINILM
from thread_service.node.operations import DocumentIn
from thread_service.settings import Settings

ANSWER = {
    "entities": [{"name": "Ada Quill", "kind": "person"}, {"name": "Tidal Ledger", "kind": "work"}],
    "relationships": [{"subject": "Ada Quill", "predicate": "keeps", "object": "Tidal Ledger"}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="that the server takes for an answer")
    parser.add_argument("--slots", type=int, default=16, help="documents that are read at a time")
    arguments = parse(parser, documents=150, seconds=0.5)
    measured: dict[str, Any] = {name: getattr(arguments, name) for name in ("documents", "seconds", "slots")}
    measured["keywords"] = asyncio.run(run(arguments.documents, None))
    with slow_server(arguments.seconds) as server:
        extractor = InstructExtractor(ChatApi(server.url, "slow", lambda: ""), slots=arguments.slots)
        measured["model"] = asyncio.run(run(arguments.documents, extractor))
    measured["searchable, with the model / without"] = round(
        measured["model"]["searchable_seconds"] / measured["keywords"]["searchable_seconds"], 3
    )
    busy = arguments.documents * arguments.seconds / (max(server.times) - min(server.times))
    measured["answers at a time, mean"] = round(busy, 1)
    for name, value in measured.items():
        print(f"{name:38} {value}")
    ratios = {
        "searchable, with the model / without": measured["searchable, with the model / without"],
        "answers at a time / slots": busy / arguments.slots,
    }
    print(write_results("catching-up", measured, ratios=ratios, quick=arguments.quick))


async def run(count: int, extractor: InstructExtractor | None) -> dict[str, float]:
    documents = [
        DocumentIn((f"Note {number}: Ada Quill keeps the Tidal Ledger, page {number * 7}.",)) for number in range(count)
    ]
    async with opened_node(local_embedder(PACKAGED_MINILM, models_dir=Settings().models_dir), extractor) as opened:
        started = time.perf_counter()
        await file_all(opened.node, documents)
        searchable = time.perf_counter() - started
        found = {"searchable_seconds": round(searchable, 2), "documents/s": round(count / searchable, 1)}
        if extractor is not None:
            while waiting(opened):  # noqa: ASYNC110 - what is waited for happens in the store
                await asyncio.sleep(0.05)
            found["read_seconds"] = round(time.perf_counter() - started, 2)
        return found


def waiting(opened: Opened) -> int:
    with opened.store.read() as connection:
        return int(connection.execute("SELECT count(*) FROM unextracted").get)


class SlowServer(ThreadingHTTPServer):
    """`times`: of every request and answer. `seconds`: how long it thinks about one."""

    daemon_threads = True

    def __init__(self, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Slow)
        self.seconds = seconds
        self.times: list[float] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Slow(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SlowServer

    def do_POST(self) -> None:
        self.server.times.append(time.perf_counter())
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.seconds)
        message = {"role": "assistant", "content": json.dumps(ANSWER)}
        body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.times.append(time.perf_counter())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def slow_server(seconds: float) -> Iterator[SlowServer]:
    server = SlowServer(seconds)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    main()
