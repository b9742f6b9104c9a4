"""How does a node grow? Filing, start-up, memory, disk and searches at 10,000, 100,000 and 1,000,000 rows of 1,024
dimensions.

    python benchmarks/growth.py

One store grows from size to size. Its documents bring their vectors (16 a document), so no model is needed. Every other
document asserts 8 names nobody has asserted before, and every text of the others mentions 2 of them by Zipf's law: a
million rows are of 250,000 entities (`names.py` has a million). After each size the store is closed, which writes the
cache of codes, and opened again three times in processes of their own.

- **filing**: from handing over a request to its rows being searchable, making the vectors left out; linking earlier
  texts to new names goes on beside it, and what is left of it then is given apart;
- **start-up**: from opening the data directory until the store can answer, the files in the page cache;
- **bytes a row**: private anonymous memory (RssAnon) of a process that has just opened the store, less that of one that
  has opened the smallest size, over the rows that are more. Vectors are read through memory maps, which do not count:
  the kernel takes their pages back whenever it needs them;
- **disk**: bytes that the directory takes, and over those of float32 vectors and texts;
- **search**: of a text that names two entities and brings its vector, words and graph included, one at a time, the
  files in the page cache; **evidence**, the part of it that the graph takes; **graph**, a query for one entity and what
  is one step away;
- **exponent**: the slope of the least squares line of log quantity over log rows, so 1 is linear and 0 does not grow.
  Of start-up and memory only what is above an empty store's counts. `last step` has the slope between the two largest
  sizes alone, where fixed costs hide least.

Vectors are clustered as in the other benchmarks: normalise(z·B + 0.3·g), z 128 normals scaled by rank^−0.5, seed 0.
"""

from __future__ import annotations

import os

# As the node sets them for itself: one thread a product, and no spinning between them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from evidence_time import timed_evidence
from growth_data import PARTITIONS, QUERIES, WIDTH, Maker, name, names_in
from harness import OWNER, NoModel, anonymous_bytes, parse, rest_soon, wait_for_rest, write_results

from thread_kernels import create_engine
from thread_service.batching.embed import EmbeddingQueue
from thread_service.node.node import Node
from thread_service.node.operations import DocumentIn, FileRequest, GraphRequest
from thread_service.store import sql
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store

DOCUMENTS_A_REQUEST = 64
ROWS_A_STEP = 16_384
"""Vectors made, then filed and timed, at a time."""
OPENINGS = 3
WAITING_SECONDS = 3_600
WANTED = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="ascending sizes")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    arguments = parse(parser, rows=[2_000, 8_000, 24_000])
    if arguments.open is not None:
        print(json.dumps(asyncio.run(open_once(arguments.open, arguments.rows[0]))))
        return
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as folder:
        empty, sizes = measure(Path(folder), arguments.rows)
    exponents = fitted(empty, sizes)
    show(sizes, exponents)
    measured = {
        "width": WIDTH, "partitions_a_document": PARTITIONS, "wanted_exponent": WANTED, "exponents": exponents,
        "empty": empty, "sizes": sizes,
    }  # fmt: skip
    path = write_results("growth", measured, ratios=ratios(sizes), quick=arguments.quick)
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


# ---------------------------------------------------------------------------------------------- measuring


def measure(folder: Path, sizes: Sequence[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What an empty store takes, and each size."""
    for kind in ("empty", "grown"):
        (folder / kind).mkdir()
    Store(DataDirectory.open(folder / "empty"), create_engine("cpu")).close()
    empty = open_thrice(folder / "empty", 0)
    maker, filed, found = Maker(), 0, list[dict[str, Any]]()
    for rows in sizes:
        started = time.perf_counter()
        filing = asyncio.run(fill(folder / "grown", maker, rows - filed))
        disk = disk_bytes(folder / "grown")
        size: dict[str, Any] = {
            "rows": rows,
            "entities": names_in(rows),
            "filing": filing,
            "disk_mb": round(disk / 1e6, 1),
            "disk_over_payload": round(disk / maker.payload_bytes, 3),
            "opened": open_thrice(folder / "grown", rows),
        }
        if found:
            first = found[0]
            more = size["opened"]["anonymous_mb"] - first["opened"]["anonymous_mb"]
            size["bytes_a_row"] = round(more * 1e6 / (rows - first["rows"]), 1)
        found.append(size)
        filed = rows
        print(f"{rows:,} rows: measured in {time.perf_counter() - started:.0f} s", flush=True)
    return empty, found


async def fill(folder: Path, maker: Maker, rows: int) -> dict[str, Any]:
    """File so many more rows; close when all of them have their codes, every text is linked and the node rests."""
    rest_soon()
    store = Store(DataDirectory.open(folder), create_engine("cpu"))
    node = Node(store, EmbeddingQueue(NoModel()))
    node.start()
    rates: list[float] = []
    filing = 0.0
    try:
        for start in range(0, rows, ROWS_A_STEP):
            documents = maker.documents(min(ROWS_A_STEP, rows - start))
            before = time.perf_counter()
            await file(node, documents)
            seconds = time.perf_counter() - before
            filing += seconds
            rates.append(len(documents) / seconds)
        coding = await asyncio.to_thread(seconds_until, lambda: is_coded(store))
        linking = await asyncio.to_thread(seconds_until, lambda: is_linked(store))
        await asyncio.to_thread(wait_for_rest, store)
    finally:
        closing = time.perf_counter()
        node.close()
    lowest, median, highest = np.percentile(rates, (0, 50, 100))
    return {
        "rows": rows,
        "seconds": round(filing, 2),
        "rows_a_second": round(rows / filing, 1),
        "documents_a_second": {
            "median": round(float(median), 1), "lowest": round(float(lowest), 1), "highest": round(float(highest), 1),
            "first": round(rates[0], 1), "last": round(rates[-1], 1),
        },
        "coding_after_filing_seconds": round(coding, 1),
        "linking_after_coding_seconds": round(linking, 1),
        "closing_seconds": round(time.perf_counter() - closing, 2),
    }  # fmt: skip


async def file(node: Node, documents: Sequence[DocumentIn]) -> None:
    """Hand over all, then wait until the last, and so every one, is searchable."""
    for start in range(0, len(documents), DOCUMENTS_A_REQUEST):
        end = start + DOCUMENTS_A_REQUEST
        await node.file(FileRequest(OWNER, tuple(documents[start:end]), wait=end >= len(documents)))


def seconds_until(condition: Callable[[], bool]) -> float:
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > WAITING_SECONDS:
            raise SystemExit("what was waited for did not happen")
        time.sleep(0.1)
    return time.perf_counter() - started


def is_coded(store: Store) -> bool:
    """The table does not train, and no row was coded within a second."""
    before = table_of(store).table.stats()
    time.sleep(1)
    after = table_of(store).table.stats()
    return after.state != "training" and after.coded_rows == before.coded_rows


def is_linked(store: Store) -> bool:
    with store.read() as connection:
        return not sql.value(connection, "SELECT (SELECT count(*) FROM relink) + count(*) FROM changed_names")


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def table_of(store: Store) -> Any:
    found = store.resident.table("caller", WIDTH)
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------------- opened again


def open_thrice(folder: Path, rows: int) -> dict[str, Any]:
    """Medians over processes that each open the store once."""
    command = [sys.executable, __file__, "--open", str(folder), "--rows", str(rows)]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(OPENINGS)]
    return {key: type(runs[0][key])(np.median([run[key] for run in runs])) for key in runs[0]}


async def open_once(folder: Path, rows: int) -> dict[str, Any]:
    engine = create_engine("cpu")
    started, processor_started = time.perf_counter(), time.process_time()
    store = Store(DataDirectory.open(folder), engine)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor_started
    found: dict[str, Any] = {
        "seconds": round(seconds, 4),
        "processor_seconds": round(processor, 4),
        "anonymous_mb": round(anonymous_bytes() / 1e6, 2),
    }
    if not rows:
        store.close()
        return found
    stats = table_of(store).table.stats()
    found |= {
        "vector_mb": round(stats.vector_bytes / 1e6, 2),
        "coded_rows": stats.coded_rows,
        "code_bytes": stats.code_bytes,
    }
    check(store)
    read_through(folder)
    node = Node(store, EmbeddingQueue(NoModel()))
    node.start()
    try:
        return found | await asked(node, rows)
    finally:
        node.close()


def read_through(folder: Path) -> None:
    """Into the page cache, where the files of a node in use lie: how fast a disk reads is no matter of growth."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(16 << 20):
                    pass


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


async def asked(node: Node, rows: int) -> dict[str, float]:
    """Milliseconds of searches, the graph's part in them, and queries of the graph."""
    queries, random = Maker().queries(rows), np.random.default_rng(2)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    searches, evidence, graph = list[float](), list[float](), list[float]()
    with timed_evidence() as spent:
        for request in queries:
            spent[0] = 0.0
            started = time.perf_counter()
            await node.search(request)
            searches.append(1e3 * (time.perf_counter() - started))
            evidence.append(1e3 * spent[0])
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
    for _ in range(QUERIES):
        entity = name(int(random.integers(names_in(rows))))
        started = time.perf_counter()
        answer = await node.graph(GraphRequest(OWNER, entity))
        graph.append(1e3 * (time.perf_counter() - started))
        assert answer.entities, entity
    return {"read_from_disk_a_search": faults / len(searches)} | {
        f"{what}_{key}_ms": round(float(np.percentile(times, percent)), 3)
        for what, times in (("search", searches), ("evidence", evidence), ("graph", graph))
        for key, percent in (("p50", 50), ("p99", 99))
    }


# ---------------------------------------------------------------------------------------------- growth


def quantities(empty: dict[str, Any], sizes: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Each at every size."""
    filed = np.cumsum([size["filing"]["seconds"] for size in sizes])
    opened = [size["opened"] for size in sizes]
    return {
        "filing, s": [float(seconds) for seconds in filed],
        "start-up, s": [each["seconds"] - empty["seconds"] for each in opened],
        "memory, MB": [each["anonymous_mb"] - empty["anonymous_mb"] for each in opened],
        "disk, MB": [size["disk_mb"] for size in sizes],
        **{
            f"{what} {key}, ms": [each[f"{what}_{key}_ms"] for each in opened]
            for what in ("search", "evidence", "graph")
            for key in ("p50", "p99")
        },
    }


def fitted(empty: dict[str, Any], sizes: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The exponent of each quantity in rows; nothing where there is one size only."""
    if len(sizes) < 2:
        return {}
    rows = np.log([size["rows"] for size in sizes])
    found: dict[str, dict[str, float]] = {}
    for quantity, values in quantities(empty, sizes).items():
        logs = np.log(np.maximum(values, 1e-6))
        found[quantity] = {
            "exponent": round(float(np.polyfit(rows, logs, 1)[0]), 3),
            "last step": round(float(np.polyfit(rows[-2:], logs[-2:], 1)[0]), 3),
        }
    return found


def ratios(sizes: Sequence[dict[str, Any]]) -> dict[str, float]:
    first, last = sizes[0], sizes[-1]
    return {
        "search p50, largest / smallest": last["opened"]["search_p50_ms"] / first["opened"]["search_p50_ms"],
        "evidence / search, largest": last["opened"]["evidence_p50_ms"] / last["opened"]["search_p50_ms"],
        "rows filed a second, largest / smallest": last["filing"]["rows_a_second"] / first["filing"]["rows_a_second"],
        "disk / vectors and texts, largest": last["disk_over_payload"],
    }


def show(sizes: Sequence[dict[str, Any]], exponents: dict[str, dict[str, float]]) -> None:
    print(f"\n{'rows':>10}{'rows/s':>8}{'link s':>8}{'start s':>9}{'MB':>8}{'B/row':>7}{'disk':>7}", end="")
    print(f"{'search p50':>12}{'p99':>8}{'evidence':>10}{'graph':>8} ms")
    for size in sizes:
        filing, opened = size["filing"], size["opened"]
        print(
            f"{size['rows']:10,}{filing['rows_a_second']:8.0f}{filing['linking_after_coding_seconds']:8.0f}"
            f"{opened['seconds']:9.2f}{opened['anonymous_mb']:8.1f}{size.get('bytes_a_row', '-'):>7}"
            f"{size['disk_over_payload']:7.2f}{opened['search_p50_ms']:12.2f}{opened['search_p99_ms']:8.2f}"
            f"{opened['evidence_p50_ms']:10.2f}{opened['graph_p50_ms']:8.2f}"
        )
    print(f"\n{'grows as rows to the power of':32}{'fitted':>8}{'last step':>11}")
    for quantity, found in exponents.items():
        mark = "" if found["exponent"] <= WANTED else f"   above {WANTED}"
        print(f"{quantity:32}{found['exponent']:8.2f}{found['last step']:11.2f}{mark}")


if __name__ == "__main__":
    main()
