"""How does a node grow? Filing, start-up and memory at 10,000, 100,000 and 1,000,000 rows of 1,024 dimensions.

    python benchmarks/growth.py

One store grows from size to size. Its documents bring their vectors (16 a document), so no model is needed. After each
size the store is closed, which writes the cache of codes, and opened again three times in processes of their own.

- **filing**: from handing over a request to its rows being searchable, making the vectors left out;
- **start-up**: from opening the data directory until the store can answer, the files in the page cache;
- **bytes a row**: private anonymous memory (RssAnon) of a process that has just opened the store, less that of one that
  has opened the smallest size, over the rows that are more. Vectors are read through memory maps, which do not count:
  the kernel takes their pages back whenever it needs them.

Vectors are clustered as in the other benchmarks: normalise(z·B + 0.3·g), z 128 normals scaled by rank^−0.5, seed 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import OWNER, write_results
from numpy.typing import NDArray

from thread_kernels import create_engine
from thread_service.batching.embed import EmbeddingQueue
from thread_service.models.embedder import Role, Stamp, Status
from thread_service.node.node import Node
from thread_service.node.operations import DocumentIn, FileRequest, PartitionIn
from thread_service.store import sql
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store

WIDTH = 1024
LATENT = 128
PARTITIONS = 16
DOCUMENTS_A_REQUEST = 64
ROWS_A_STEP = 16_384
"""Vectors made, then filed and timed, at a time."""
WORDS = 20
VOCABULARY = 50_000
OPENINGS = 3
CODING_SECONDS = 3_600

Vectors = NDArray[np.float32]


class NoModel:
    """Every vector is brought, so the model is never asked."""

    model = "none"
    stamp: Stamp | None = None
    status = Status("ready")

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str], role: Role) -> Vectors:
        raise AssertionError("every vector is brought")

    def count_tokens(self, texts: Sequence[str]) -> int:
        return 0

    def close(self) -> None: ...


class Maker:
    """Documents, the same ones for the same size."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._basis = self._random.standard_normal((LATENT, WIDTH), np.float32)
        self._scale = np.arange(1, LATENT + 1, dtype=np.float32) ** -0.5
        self._made = 0

    def documents(self, rows: int) -> list[DocumentIn]:
        vectors = self._vectors(rows)
        words = self._random.integers(VOCABULARY, size=(rows, WORDS))
        texts = [" ".join(f"word{number:x}" for number in row) for row in words.tolist()]
        found: list[DocumentIn] = []
        for start in range(0, rows, PARTITIONS):
            part = slice(start, min(start + PARTITIONS, rows))
            brought = tuple(PartitionIn(vector) for vector in vectors[part])
            found.append(DocumentIn(tuple(texts[part]), f"d{self._made}", entities=(), partitions=brought))
            self._made += 1
        return found

    def _vectors(self, rows: int) -> Vectors:
        latent = self._random.standard_normal((rows, LATENT), np.float32) * self._scale
        vectors: Vectors = latent @ self._basis
        vectors += 0.3 * self._random.standard_normal((rows, WIDTH), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="ascending sizes")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open is not None:
        print(json.dumps(open_once(arguments.open)))
        return
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as folder:
        sizes = [*measure(Path(folder), arguments.rows)]
    path = write_results("growth", {"width": WIDTH, "partitions_a_document": PARTITIONS, "sizes": sizes})
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


def measure(folder: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    print(
        f"{'rows':>10}{'documents/s':>13}{'rows/s':>9}{'coded':>11}{'start-up s':>12}{'anon. MB':>10}{'bytes/row':>11}"
    )
    maker, filed, smallest = Maker(), 0, 0.0
    for rows in sizes:
        filing = asyncio.run(fill(folder, maker, rows - filed))
        opened = open_thrice(folder)
        found = {"rows": rows, "filing": filing, "opened": opened}
        if filed:
            found["bytes_a_row"] = round((opened["anonymous_mb"] - smallest) * 1e6 / (rows - sizes[0]), 1)
        else:
            smallest = opened["anonymous_mb"]
        print(
            f"{rows:10,}{filing['documents_a_second']['median']:13.0f}{filing['rows_a_second']:9.0f}"
            f"{opened['coded_rows']:11,}{opened['seconds']:12.2f}{opened['anonymous_mb']:10.1f}"
            f"{found.get('bytes_a_row', '-'):>11}",
            flush=True,
        )
        filed = rows
        yield found


async def fill(folder: Path, maker: Maker, rows: int) -> dict[str, Any]:
    """File so many more rows; close when all of them have their codes."""
    store = Store(DataDirectory.open(folder), create_engine("cpu"))
    node = Node(store, EmbeddingQueue(NoModel()))
    node.start()
    rates: list[float] = []
    started = 0.0
    try:
        for start in range(0, rows, ROWS_A_STEP):
            documents = maker.documents(min(ROWS_A_STEP, rows - start))
            before = time.perf_counter()
            await file(node, documents)
            seconds = time.perf_counter() - before
            started += seconds
            rates.append(len(documents) / seconds)
        coding = time.perf_counter()
        wait_for_codes(store)
        coding = time.perf_counter() - coding
    finally:
        closing = time.perf_counter()
        node.close()
    lowest, median, highest = np.percentile(rates, (0, 50, 100))
    return {
        "rows": rows,
        "rows_a_second": round(rows / started, 1),
        "documents_a_second": {
            "median": round(float(median), 1), "lowest": round(float(lowest), 1), "highest": round(float(highest), 1),
            "first": round(rates[0], 1), "last": round(rates[-1], 1),
        },
        "coding_after_filing_seconds": round(coding, 1),
        "closing_seconds": round(time.perf_counter() - closing, 2),
    }  # fmt: skip


async def file(node: Node, documents: Sequence[DocumentIn]) -> None:
    """Hand over all, then wait until the last, and so every one, is searchable."""
    for start in range(0, len(documents), DOCUMENTS_A_REQUEST):
        end = start + DOCUMENTS_A_REQUEST
        await node.file(FileRequest(OWNER, tuple(documents[start:end]), wait=end >= len(documents)))


def wait_for_codes(store: Store) -> None:
    """Until the table rests: not training, and no row has been coded for a second."""
    last, until = -1, time.monotonic() + CODING_SECONDS
    while time.monotonic() < until:
        stats = table_of(store).table.stats()
        if stats.state != "training" and stats.coded_rows == last:
            return
        last = stats.coded_rows
        time.sleep(1)
    raise SystemExit(f"still not coded: {stats}")


def table_of(store: Store) -> Any:
    found = store.resident.table("caller", WIDTH)
    assert found is not None
    return found


def open_thrice(folder: Path) -> dict[str, Any]:
    """Medians over processes that each open the store once."""
    command = [sys.executable, __file__, "--open", str(folder)]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(OPENINGS)]
    return {key: type(runs[0][key])(np.median([run[key] for run in runs])) for key in runs[0]}


def open_once(folder: Path) -> dict[str, Any]:
    engine = create_engine("cpu")
    started, processor_started = time.perf_counter(), time.process_time()
    store = Store(DataDirectory.open(folder), engine)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor_started
    anonymous = anonymous_bytes()
    stats = table_of(store).table.stats()
    check(store)
    found = {
        "seconds": round(seconds, 3),
        "processor_seconds": round(processor, 3),
        "anonymous_mb": round(anonymous / 1e6, 2),
        "vector_mb": round(stats.vector_bytes / 1e6, 2),
        "coded_rows": stats.coded_rows,
        "code_bytes": stats.code_bytes,
    }
    store.close()
    return found


def check(store: Store) -> None:
    """A stored vector is its own nearest neighbour: codes, rows and places fit together."""
    resident = table_of(store)
    with store.read() as connection:
        [last] = sql.column(connection, "SELECT max(vector_key) FROM vectors")
        for key in np.linspace(1, last, 8).astype(np.int64).tolist():
            statement = "SELECT subject_key, segment, slot FROM vectors WHERE vector_key = ?"
            subject, segment, slot = sql.row(connection, statement, (key,))
            query = store.segments.read(segment, np.array([slot]))
            [hits] = resident.table.search(query, 1, [None])
            assert resident.subjects_of(hits.rows).tolist() == [subject], (hits, subject)


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise SystemExit("/proc/self/status has no RssAnon: this runs on Linux only")


if __name__ == "__main__":
    main()
