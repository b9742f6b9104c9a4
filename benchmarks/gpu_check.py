"""Everything that only a machine with a GPU can say, in one call of under ten minutes.

    python benchmarks/gpu_check.py [--wheels DIR]

1. the tests marked `gpu`; 2. `scan_gpu.py`; 3. a whole node with `--device cuda`: files 10,000 documents that bring
their vectors, and answers 64 clients over HTTP. Goes on when a part fails, and says at the end which did. Runs from a
checkout where the messages of `protos/` were generated; what a machine without a network lacks comes from DIR, as
wheels. Not run on a card yet.

    python benchmarks/gpu_check.py --device cpu --documents 300 --clients 8 --searches 5

tries the node without one. The vectors of what is not brought come from a stand-in for an API of embeddings.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
TESTS_SECONDS, SCAN_SECONDS, START_SECONDS = 150, 330, 60
WIDTH, BATCH = 1_024, 100
OWNER = "gpu-check"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--searches", type=int, default=50, help="of each client")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to install first, apart from the environment")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # the parts write beside it, and what was measured outlives a kill

    with tempfile.TemporaryDirectory(prefix="thread-gpu-check-") as name:
        folder = Path(name)
        path = [ROOT / "kernels", ROOT / "service"]
        if arguments.wheels:
            path.append(folder / "site")
            wheels = [str(each) for each in sorted(arguments.wheels.glob("*.whl"))]
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target"]
            subprocess.run([*pip, str(path[-1]), *wheels], check=True)
        own = {key: value for key, value in os.environ.items() if not key.startswith(("THREAD_", "RAO_"))}
        environment = own | {"PYTHONPATH": os.pathsep.join(map(str, path)), "OPENAI_API_KEY": "none"}

        parts = {}
        if arguments.device == "cuda":
            # Only files with such tests, without the project's own configuration of pytest: others want packages that
            # this machine need not have.
            pytest = ["-m", "pytest", "-q", "-rs", "-m", "gpu", "-c", os.devnull, "--rootdir", str(ROOT)]
            also = ["--continue-on-collection-errors", *files_with_gpu_tests()]  # whatever one of them may want
            parts["tests"] = ran([*pytest, *also], environment, TESTS_SECONDS)
            parts["scan_gpu.py"] = ran([str(ROOT / "benchmarks" / "scan_gpu.py")], environment, SCAN_SECONDS)
        parts["node"] = node_answers(arguments, environment, folder)
    failed = [name for name, succeeded in parts.items() if not succeeded]
    print(f"failed: {', '.join(failed)}" if failed else "everything succeeded")
    return int(bool(failed))


def files_with_gpu_tests() -> list[str]:
    marked = re.compile(r"mark\.gpu|\bdevice: str|\bengine: TestedEngine")  # or by a fixture that is run on a card too
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(each) for each in files if marked.search(each.read_text())]


def ran(arguments: list[str], environment: dict[str, str], seconds: float) -> bool:
    try:
        return subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"not done after {seconds} s: {arguments[0]}")
        return False


# ---------------------------------------------------------------------------------------------------- the node


def node_answers(arguments: argparse.Namespace, environment: dict[str, str], folder: Path) -> bool:
    try:
        with embeddings_api() as api, started_node(arguments.device, api, environment, folder) as port:
            file_documents(port, arguments.documents)
            search(port, arguments.documents, arguments.clients, arguments.searches)
            report(port)
    except (AssertionError, OSError, http.client.HTTPException) as error:
        print(f"the node: {error!r}")
        print((folder / "node.log").read_text()[-4_000:])
        return False
    return True


@contextlib.contextmanager
def started_node(device: str, api: str, environment: dict[str, str], folder: Path) -> Iterator[int]:
    """Its port, once it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = {
        "--device": device,
        "--port": port,
        "--grpc-port": 0,
        "--data-dir": folder / "data",
        "--embedder": "openai",
        "--embedding-model": "stand-in",
        "--embedding-url": api,
        "--graph-backend": "keyword",
    }
    command = [sys.executable, "-m", "thread_service.cli", *(str(part) for flag in flags.items() for part in flag)]
    with (
        (folder / "node.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder) as process,
    ):
        try:
            until = time.monotonic() + START_SECONDS
            while not is_ready(port):
                assert process.poll() is None, "the node ended"
                assert time.monotonic() < until, f"the node is not ready after {START_SECONDS} s"
                time.sleep(0.2)
            yield port
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def is_ready(port: int) -> bool:
    try:
        return asked(http.client.HTTPConnection("127.0.0.1", port, timeout=5), "GET", "/readyz")[0] == 200
    except OSError:
        return False


def asked(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def vector(number: int) -> list[float]:
    """Of document `number`: unit length, always the same."""
    values = np.random.default_rng(number).standard_normal(WIDTH)
    return [round(float(value), 5) for value in values / np.linalg.norm(values)]


def file_documents(port: int, count: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    started = time.perf_counter()
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        body = {
            "inputs": [f"Text {number} tells of the lake at Velmora and of house {number % 97}." for number in numbers],
            "document_ids": [f"document-{number}" for number in numbers],
            "partitions": [[{"embedding": vector(number)}] for number in numbers],
            "thread": {"owner_id": OWNER},
            "wait": True,
        }
        status, answer = asked(connection, "POST", "/v1/batch/embeddings", body)
        assert status == 200, answer
        assert json.loads(answer)["success"], answer
    seconds = time.perf_counter() - started
    print(f"filed {count:,} documents in {seconds:.1f} s, {count / seconds:,.0f} a second")


def search(port: int, documents: int, clients: int, searches: int) -> None:
    """Every client looks for documents by their own vectors, which must come first."""

    def client(number: int) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        taken = []
        for turn in range(searches):
            wanted = (number * 7_919 + turn * 104_729) % documents
            body = {"query": "house", "query_embedding": vector(wanted), "thread": {"owner_id": OWNER, "top_k": 10}}
            started = time.perf_counter()
            status, answer = asked(connection, "POST", "/v1/search", body)
            taken.append(time.perf_counter() - started)
            assert status == 200, answer
            assert f'"document-{wanted}"' in answer.decode(), f"document-{wanted} was not found by its own vector"
        return taken

    with ThreadPoolExecutor(clients) as pool:
        started = time.perf_counter()
        taken = [each for several in pool.map(client, range(clients)) for each in several]
        seconds = time.perf_counter() - started
    median, slow = 1e3 * np.percentile(taken, (50, 99))
    print(f"{clients} clients: {len(taken) / seconds:,.0f} searches a second, p50 {median:.1f} ms, p99 {slow:.1f} ms")


def report(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    print(asked(connection, "GET", "/health")[1].decode())
    metrics = asked(connection, "GET", "/metrics")[1].decode().splitlines()
    shown = tuple(f"thread_{part}_" for part in ("scan", "table", "engine", "gpu"))
    print("\n".join(line for line in metrics if line.startswith(shown)))


class EmbeddingsApi(http.server.BaseHTTPRequestHandler):
    """Answers as OpenAI's API does, with a vector made from the text's hash."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        hashes = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
        data = [{"object": "embedding", "index": at, "embedding": vector(each)} for at, each in enumerate(hashes)]
        answer = {"object": "list", "data": data, "model": "stand-in", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the node's log is enough."""


@contextlib.contextmanager
def embeddings_api() -> Iterator[str]:
    """Its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmbeddingsApi) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
