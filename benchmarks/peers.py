"""What would a user pick instead? Thread beside vector stores and libraries, the same vectors, filters and recall.

    python benchmarks/peers.py [--rows N] [--data DIR] [--only NAME ...]

Each peer builds its store in a process of its own and is opened again in another, so that memory is its own and nothing
is warm but the files. One query at a time, over every row, those of one owner of twenty, and one row in a thousand.
Settings are swept from fast to thorough; what counts is the fastest whose recall@10 is at least 0.95, by the peer's own
distance. Without `--data` the vectors are clustered ones of 1,024 components; with it, embeddings of real sentences.

- **filing**: rows a second until everything is searchable and on disk, texts and owners included where a store keeps
  them;
- **disk**: bytes over those of float32 vectors and, in a store, texts, at rest: a node gives space back by itself some
  half a minute after filing, and codes its tables anew;
- **memory**: private memory (RssAnon) of the process that has opened it and answered everything;
- **first answer**: seconds from opening, the package already imported.
"""

from __future__ import annotations

import os

# As the node sets them for itself: one thread a product, and no spinning between them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from harness import anonymous_bytes, parse, peers, write_results
from peer_stores import PEERS, K, Mask, Records, ThreadNode, Vectors, Which, timed
from vector_data import VectorSet, clustered, sentences

from thread_kernels.blockwise import block_count

QUERIES = 200
WANTED = 0.95
WORDS, VOCABULARY = 20, 50_000
_FEWEST, _SECONDS = 40, 1.5
_BLOCK = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--data", type=Path, help="folder of evaluation sets, whose sentences are embedded")
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), help="peers")
    parser.add_argument("--one", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=("build", "ask"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parse(parser, rows=3_500, queries=50)
    if arguments.one is not None:
        step = build if arguments.step == "build" else ask
        print(json.dumps(step(arguments.one, arguments.folder, arguments.rows)))
        return
    with peers():
        for name in arguments.only:
            PEERS[name]().version  # noqa: B018 - it fails where the peer is not installed
    if arguments.data is None:
        vectors = clustered(arguments.rows, arguments.queries)
    else:
        vectors = sentences(arguments.data, arguments.rows, arguments.queries)
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as folder:
        measured = measure(Path(folder), vectors, arguments.only)
    about = {"vectors": vectors.name, "rows": len(vectors.rows), "width": vectors.rows.shape[1], "k": K}
    path = write_results(
        f"peers-{vectors.name}-{len(vectors.rows)}",
        about | {"peers": measured},
        ratios=ratios(measured),
        quick=arguments.quick,
    )
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


def ratios(measured: dict[str, Any]) -> dict[str, float]:
    """Over the fastest peer: queries a second of those that find enough, and rows filed a second of those that keep
    as much."""
    ours = measured.get(ThreadNode.name)
    others = [peer for name, peer in measured.items() if name != ThreadNode.name]
    found: dict[str, float] = {}
    if ours is None:
        return found
    for which, cell in ours["filters"].items():
        rates = [
            other["filters"][which]["queries_per_second"]
            for other in others
            if other["filters"][which] is not None and other["filters"][which]["recall"] >= WANTED
        ]
        if rates:
            found[f"queries a second, thread / fastest peer, {which}"] = cell["queries_per_second"] / max(rates)
    filed = [other["filed_rows_per_second"] for other in others if other["keeps"] == ours["keeps"]]
    if filed:
        found["rows filed a second, thread / fastest store"] = ours["filed_rows_per_second"] / max(filed)
    return found | {"disk / what is kept, thread": ours["disk_over_payload"]}


def measure(folder: Path, vectors: VectorSet, names: Sequence[str]) -> dict[str, Any]:
    np.save(folder / "rows.npy", vectors.rows)
    np.save(folder / "queries.npy", vectors.queries)
    measured: dict[str, Any] = {}
    for name in names:
        rows = min(len(vectors.rows), PEERS[name]().rows_max)
        built = in_process("build", name, folder, rows)
        measured[name] = built | in_process("ask", name, folder, rows)
        show(name, measured[name])
    return measured


def in_process(step: str, name: str, folder: Path, rows: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, "--step", step, "--folder", str(folder), "--rows", str(rows)]
    found: dict[str, Any] = json.loads(subprocess.check_output(command).splitlines()[-1])
    return found


def build(name: str, folder: Path, rows: int) -> dict[str, Any]:
    peer, records = PEERS[name](), records_in(folder, rows)
    own = folder / name
    own.mkdir()
    started = time.perf_counter()
    peer.build(own, records)
    seconds = time.perf_counter() - started
    if isinstance(peer, ThreadNode):
        peer.rest()  # as a node does that is left running; no other peer does anything by itself
    payload = records.vectors.nbytes
    if peer.keeps == "vectors and texts":
        payload += sum(len(text) for text in records.texts)
    disk = sum(path.stat().st_blocks * 512 for path in own.rglob("*") if path.is_file())
    return {
        "version": peer.version,
        "keeps": peer.keeps,
        "rows": rows,
        "filed_rows_per_second": round(rows / seconds),
        "disk_over_payload": round(disk / payload, 3),
    }


def ask(name: str, folder: Path, rows: int) -> dict[str, Any]:
    peer, records = PEERS[name](), records_in(folder, rows)
    queries: Vectors = np.load(folder / "queries.npy")
    cases: dict[str, Any] = {}
    started = time.perf_counter()
    peer.open(folder / name, records)
    [_, first], *_ = peer.settings("every row")
    first(queries[-1])
    first_answer = time.perf_counter() - started
    for which in get_args(Which):
        # The truth is worked out afterwards: its arrays are none of the peer's memory.
        cases[which] = [
            (setting, *timed(one, queries, fewest=_FEWEST, seconds=_SECONDS)) for setting, one in peer.settings(which)
        ]
    memory = anonymous_bytes()
    return {
        "first_answer_seconds": round(first_answer, 2),
        "private_memory_mb": round(memory / 1e6),
        "filters": {which: best(cases[which], records, queries, peer.by_blocks, which) for which in cases},
    }


def best(
    tried: Sequence[tuple[str, list[list[int]], float]],
    records: Records,
    queries: Vectors,
    by_blocks: bool,
    which: Which,
) -> dict[str, Any] | None:
    """The fastest setting that finds enough, else the one that finds most; None where nothing could be asked."""
    if not tried:
        return None
    truth = nearest(records.vectors, records.passing(which), queries, by_blocks)
    cells = [
        {
            "setting": setting,
            "recall": round(
                float(np.mean([np.isin(hits, got).mean() for hits, got in zip(truth, found, strict=False)])), 3
            ),
            "queries_per_second": round(rate, 1),
        }
        for setting, found, rate in tried
    ]
    enough = [cell for cell in cells if cell["recall"] >= WANTED]
    if enough:
        return max(enough, key=lambda cell: cell["queries_per_second"])
    return max(cells, key=lambda cell: cell["recall"])


def nearest(vectors: Vectors, passing: Mask, queries: Vectors, by_blocks: bool) -> list[np.ndarray]:
    """The `K` passing rows nearest to each query."""
    rows = passing.nonzero()[0]
    distances = np.empty((len(queries), len(rows)), dtype=np.float32)
    blocks = block_count(vectors.shape[1]) if by_blocks else 1
    for start in range(0, len(rows), _BLOCK):
        part = np.asarray(vectors[rows[start : start + _BLOCK]])
        for at, query in enumerate(queries):
            differences = (part - query).reshape(len(part), blocks, -1)
            distances[at, start : start + _BLOCK] = np.sqrt(np.einsum("nbi,nbi->nb", differences, differences)).sum(
                axis=1
            )
    return [rows[np.argpartition(each, min(K, len(rows)) - 1)[:K]] for each in distances]


def records_in(folder: Path, rows: int) -> Records:
    words = np.random.default_rng(1).integers(VOCABULARY, size=(rows, WORDS))
    texts = [
        f"passage {row} " + " ".join(f"word{number:x}" for number in each) for row, each in enumerate(words.tolist())
    ]
    return Records(np.load(folder / "rows.npy", mmap_mode="r")[:rows], texts)


def show(name: str, measured: dict[str, Any]) -> None:
    print(
        f"\n{name} {measured['version']}, {measured['rows']:,} rows, keeps {measured['keeps']}: "
        f"filed {measured['filed_rows_per_second']:,} rows/s, disk {measured['disk_over_payload']} of what is kept, "
        f"first answer {measured['first_answer_seconds']} s, {measured['private_memory_mb']:,} MB",
        flush=True,
    )
    for which, cell in measured["filters"].items():
        if cell is None:
            print(f"  {which:18} takes no filter")
        else:
            mark = "" if cell["recall"] >= WANTED else "   below 0.95"
            rate = f"{cell['queries_per_second']:9,.0f} queries/s"
            print(f"  {which:18}{rate}{cell['recall']:8.3f}   {cell['setting']}{mark}")


if __name__ == "__main__":
    main()
