"""Everything that only a machine with a GPU can say, in one call of under ten minutes.

    python benchmarks/gpu_check.py [--wheels DIR]

1. the tests marked `gpu`; 2. `scan_gpu.py`; 3. a whole node with `--device cuda`: files 10,000 documents that bring
their vectors, waits for their codes, and answers 64 clients over HTTP. Each part has its time, a part that fails or
takes longer is said at the end, and the next one is tried. Not run on a card yet.

It runs from a checkout in which the messages of `protos/` were generated (`service/thread_service/wire/v1/*_pb2*.py`,
which an installation makes and Git does not hold). What a machine without a network lacks comes from DIR, as wheels for
its own Python (`pip download --only-binary=:all: --python-version 3.12 -d DIR NAME...` where that is 3.12), installed
without what they depend on; what is missing is said before a part begins. Beside torch, triton, CuPy and NumPy that is
pytest, hypothesis and pyroaring for the tests, and for the node apsw, grpcio, grpcio-health-checking,
grpcio-reflection, httptools, httpx, huggingface-hub, litestar, msgspec, onnxruntime, prometheus-client, protobuf,
pyroaring, regex, rich, tokenizers, uvicorn, uvloop and what those depend on.

    python benchmarks/gpu_check.py --device cpu --documents 300 --clients 8 --searches 5

tries the node without one. The vectors of what is not brought come from a stand-in for an API of embeddings.
"""

from __future__ import annotations

import argparse
import ast
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
INSTALL_SECONDS, TESTS_SECONDS, SCAN_SECONDS = 40, 140, 240
START_SECONDS, WORK_SECONDS, STOP_SECONDS = 45, 90, 15
"""Together under ten minutes."""
WIDTH, BATCH = 1_024, 100
CODES_ABOVE = 4_096
"""Documents from which the table of their vectors has codes."""
NODE_MODULES = [
    "apsw",
    "grpc",
    "grpc_health",
    "grpc_reflection",
    "httptools",
    "httpx",
    "huggingface_hub",
    "litestar",
    "msgspec",
    "numpy",
    "onnxruntime",
    "prometheus_client",
    "pyroaring",
    "regex",
    "rich",
    "tokenizers",
    "uvicorn",
    "uvloop",
]
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
            subprocess.run([*pip, str(path[-1]), *wheels], check=True, timeout=INSTALL_SECONDS)
        own = {key: value for key, value in os.environ.items() if not key.startswith(("THREAD_", "RAO_"))}
        environment = own | {"PYTHONPATH": os.pathsep.join(map(str, path)), "OPENAI_API_KEY": "none"}

        parts = {}
        if arguments.device == "cuda":
            parts["tests"] = tests_pass(environment)
            parts["scan_gpu.py"] = ran([str(ROOT / "benchmarks" / "scan_gpu.py")], environment, SCAN_SECONDS)
        parts["node"] = node_answers(arguments, environment, folder)
    failed = [name for name, succeeded in parts.items() if not succeeded]
    print(f"failed: {', '.join(failed)}" if failed else "everything succeeded")
    return int(bool(failed))


def tests_pass(environment: dict[str, str]) -> bool:
    """Those marked `gpu`; a file that wants a package which is not here is left out, and that is said."""
    chosen = []
    for file in files_with_gpu_tests():
        if lacking := missing(packages_of(file), environment):
            print(f"left out for want of {', '.join(lacking)}: {file.relative_to(ROOT)}")
        else:
            chosen.append(str(file))
    # Without the project's own configuration of pytest, which wants packages that this machine need not have.
    pytest = ["-m", "pytest", "-q", "-rsE", "-m", "gpu", "-c", os.devnull, "--rootdir", str(ROOT)]
    return bool(chosen) and ran([*pytest, "--continue-on-collection-errors", *chosen], environment, TESTS_SECONDS)


def files_with_gpu_tests() -> list[Path]:
    marked = re.compile(r"mark\.gpu|\bdevice: str|\bengine: TestedEngine")  # or by a fixture that is run on a card too
    return [each for each in sorted((ROOT / "tests").rglob("test_*.py")) if marked.search(each.read_text())]


def packages_of(file: Path) -> list[str]:
    """What a test file imports when it is loaded, less the modules beside it and what all of them need."""
    found = {"pytest", "numpy", "pyroaring"}
    for each in ast.parse(file.read_text()).body:
        if isinstance(each, ast.Import):
            found.update(name.name.split(".")[0] for name in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module:
            found.add(each.module.split(".")[0])
    return sorted(name for name in found if not (file.parent / f"{name}.py").exists())


def missing(modules: list[str], environment: dict[str, str]) -> list[str]:
    """Those that a process of this environment would not find."""
    script = "import sys, importlib.util as u; print(*(m for m in sys.argv[1:] if u.find_spec(m) is None))"
    found = subprocess.run([sys.executable, "-c", script, *modules], env=environment, capture_output=True, check=True)
    return found.stdout.decode().split()


def ran(arguments: list[str], environment: dict[str, str], seconds: float) -> bool:
    try:
        return subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"not done after {seconds} s: {arguments[0]}")
        return False


# ---------------------------------------------------------------------------------------------------- the node


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._seconds, self._until = seconds, time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, more than none. AssertionError when there are none."""
        left = self._until - time.monotonic()
        assert left > 0, f"not done after {self._seconds} s"
        return left

    def connection(self, port: int) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=self.left())


def node_answers(arguments: argparse.Namespace, environment: dict[str, str], folder: Path) -> bool:
    if lacking := missing(NODE_MODULES, environment):
        print(f"the node is not started for want of {', '.join(lacking)}")
        return False
    if not list((ROOT / "service" / "thread_service" / "wire" / "v1").glob("*_pb2.py")):
        print("the node is not started: the messages of protos/ have not been generated in this checkout")
        return False
    log = folder / "node.log"
    try:
        with embeddings_api() as api, started_node(arguments.device, api, environment, folder) as port:
            until = Deadline(WORK_SECONDS)
            file_documents(port, arguments.documents, until)
            if arguments.documents > CODES_ABOVE:
                wait_for_codes(port, until)
            search(port, arguments.documents, arguments.clients, arguments.searches, until)
            report(port, by_code=arguments.documents > CODES_ABOVE)
    except (AssertionError, OSError, http.client.HTTPException) as error:
        print(f"the node: {error!r}")
        print(log.read_text()[-4_000:])
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
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise AssertionError(f"the node does not stop within {STOP_SECONDS} s") from None


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


def file_documents(port: int, count: int, until: Deadline) -> None:
    connection = until.connection(port)
    started = time.perf_counter()
    for first in range(0, count, BATCH):
        until.left()
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


def wait_for_codes(port: int, until: Deadline) -> None:
    """Until all tables that are large enough have them, of all rows that get them at once."""
    started = time.perf_counter()
    connection = until.connection(port)
    while True:
        until.left()
        tables = [(labels, value) for name, labels, value in metrics_of(connection) if name == "thread_table_state"]
        states = {state for labels, value in tables if value and (state := re.search('state="([a-z]+)"', labels)[1])}
        assert "failed" not in states, "the codes could not be made"
        if "coded" in states and "training" not in states:
            break
        time.sleep(0.2)
    print(f"codes were there {time.perf_counter() - started:.1f} s after the last document was filed")


def search(port: int, documents: int, clients: int, searches: int, until: Deadline) -> None:
    """Every client looks for documents by their own vectors, which must come first."""

    def client(number: int) -> list[float]:
        connection = until.connection(port)
        taken = []
        for turn in range(searches):
            wanted = (number * 7_919 + turn * 104_729) % documents
            body = {"query": "house", "query_embedding": vector(wanted), "thread": {"owner_id": OWNER, "top_k": 10}}
            until.left()
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
    assert len(taken) == clients * searches, f"{clients * searches - len(taken)} searches were not answered"
    median, slow = 1e3 * np.percentile(taken, (50, 99))
    print(f"{clients} clients: {len(taken) / seconds:,.0f} searches a second, p50 {median:.1f} ms, p99 {slow:.1f} ms")


def report(port: int, *, by_code: bool) -> None:
    """Print what the node says of itself. AssertionError for a lost card, failed codes, a search that was refused or
    left, and where codes answered none though they are there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    status, health = asked(connection, "GET", "/health")
    print(health.decode())
    metrics = metrics_of(connection)
    shown = tuple(f"thread_{part}_" for part in ("scan", "table", "engine", "gpu"))
    print("\n".join(f"{name}{labels} {value:g}" for name, labels, value in metrics if name.startswith(shown)))

    def total(name: str, label: str = "") -> float:
        assert any(each == name for each, _, _ in metrics), f"no {name}"
        return sum(value for each, labels, value in metrics if each == name and label in labels)

    assert status == 200, "the node is not healthy"
    assert not total("thread_engine_lost"), "the card was lost"
    assert not total("thread_table_state", 'state="failed"'), "codes could not be made"
    assert not total("thread_scan_refused_total"), "searches were refused"
    assert not total("thread_scan_abandoned_total"), "searches were abandoned"
    assert not by_code or total("thread_table_queries_total", 'plan="code'), "no search was answered by codes"


def metrics_of(connection: http.client.HTTPConnection) -> list[tuple[str, str, float]]:
    """The name, the labels in braces, and the value of each."""
    text = asked(connection, "GET", "/metrics")[1].decode()
    return [
        (found[1], found[2] or "", float(found[3]))
        for found in re.finditer(r"^(\w+)(\{.*\})? (\S+)$", text, flags=re.MULTILINE)
    ]


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
