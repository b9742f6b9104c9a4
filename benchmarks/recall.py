"""What does compression cost? Recall of the engine's search against exact search over the same rows.

    python benchmarks/recall.py --data DIR [--rows N] [--sentences N] [--compress always]

Two kinds of vectors, `vector_data.py` says which. Each is asked without a filter, with filters that pass half, a
hundredth and a thousandth of the rows at random, with one that passes the tenth of the rows at one end of the
strongest direction (an owner with one subject), and all of that again after 30 % of the rows were removed; for k = 10,
and without a filter for 100. With `--compress always` every query must have been answered by codes, or the run fails.
"""

from __future__ import annotations

import os

# As the node sets them for itself: one thread a product, and no spinning between them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import parse, rest_soon, wait_for_table, write_results
from numpy.typing import NDArray
from vector_data import Vectors, VectorSet, clustered, sentences

from thread_kernels import Compress, Filter, Table, create_engine

QUERIES = 500
REMOVED = 0.3
PASSING = (0.5, 0.01, 0.001)
WANTED = 0.95
_BLOCK = 20_000

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    k: int
    passing: NDArray[np.bool_] | None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets whose sentences are embedded")
    parser.add_argument("--rows", type=int, default=200_000, help="of clustered vectors")
    parser.add_argument(
        "--sentences", type=int, default=50_000, help="that are embedded, at most; kept for the next run"
    )
    parser.add_argument("--compress", choices=("auto", "always"), default="auto")
    arguments = parse(parser, rows=20_000, sentences=4_000)
    measured: dict[str, Any] = {"queries": QUERIES, "compress": arguments.compress}
    for vectors in (
        clustered(arguments.rows, QUERIES),
        sentences(arguments.data, arguments.sentences, QUERIES),
    ):
        measured[vectors.name] = measure(vectors, arguments.compress)
        show(vectors.name, measured[vectors.name])
    name = "recall" if arguments.compress == "auto" else "recall-always"
    path = write_results(name, measured, ratios=ratios(measured), quick=arguments.quick)
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


def ratios(measured: dict[str, Any]) -> dict[str, float]:
    return {
        f"{kind}: found / nearest, {case}": measured[kind]["cases"][case]["recall"]
        for kind in ("clustered", "sentences")
        for case in ("all rows", "1.0% of rows", "10 % at one end")
    }


def measure(vectors: VectorSet, compress: Compress) -> dict[str, Any]:
    rest_soon()
    table = create_engine("cpu", compress=compress).table(vectors.rows.shape[1])
    started = time.perf_counter()
    for start in range(0, len(vectors.rows), _BLOCK):
        table.append(vectors.rows[start : start + _BLOCK])
    wait_for_table(table)
    measured: dict[str, Any] = {"rows": table.row_count, "width": table.width, "cases": {}}
    measured["coded_after_seconds"] = round(time.perf_counter() - started, 1)

    live = np.ones(table.row_count, dtype=np.bool_)
    for case in cases(vectors):
        measured["cases"][case.name] = ask(table, vectors, live, case, compress)
    removed = np.random.default_rng(3).random(table.row_count) < REMOVED
    table.remove(removed.nonzero()[0])
    table.compact()
    for case in cases(vectors):
        name = f"{case.name}, {REMOVED:.0%} removed"
        measured["cases"][name] = ask(table, vectors, ~removed, case, compress)
    stats = table.stats()
    measured |= {"code_bytes": stats.code_bytes, "depth": stats.depth, "crossover_rows": stats.crossover_rows}
    table.close()
    return measured


def cases(vectors: VectorSet) -> Iterator[Case]:
    random = np.random.default_rng(2)
    count = len(vectors.rows)
    yield Case("all rows", 10, None)
    yield Case("all rows, k = 100", 100, None)
    for share in PASSING:
        yield Case(f"{share:.1%} of rows", 10, random.random(count) < share)
    strongest = np.linalg.svd(vectors.queries - vectors.queries.mean(axis=0), full_matrices=False)[2][0]
    places = vectors.rows @ strongest
    yield Case("10 % at one end", 10, places < np.quantile(places, 0.1))


def ask(
    table: Table, vectors: VectorSet, live: NDArray[np.bool_], case: Case, compress: Compress
) -> dict[str, float | int]:
    passing = live if case.passing is None else live & case.passing
    filter = None
    if case.passing is not None:
        members = table.row_set()
        members.add(case.passing.nonzero()[0])
        filter = Filter.any_of(members)
    truth = exact(vectors.rows, passing.nonzero()[0], vectors.queries, case.k)
    before = table.stats()
    started = time.perf_counter()
    found = [table.search(query[None], case.k, [filter])[0].rows for query in vectors.queries]
    seconds = time.perf_counter() - started
    after = table.stats()
    by_code = after.by_code - before.by_code
    if compress == "always" and by_code != len(found):
        raise SystemExit(f"{case.name}: {len(found) - by_code} of {len(found)} queries were not answered by codes")
    recall = float(np.mean([np.isin(rows, hits).mean() for rows, hits in zip(truth, found, strict=True)]))
    return {
        "k": case.k,
        "rows": int(passing.sum()),
        "recall": round(recall, 4),
        "queries_per_second": round(len(found) / seconds),
        "by_code": by_code,
    }


def exact(vectors: Vectors, rows: Rows, queries: Vectors, k: int) -> list[Rows]:
    """The `k` of int64[n] rows nearest to each query, block by block."""
    best = [(np.empty(0, dtype=np.int64), np.empty(0)) for _ in queries]
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        block = vectors[part]
        distances = (block**2).sum(axis=1) - 2 * queries @ block.T
        for query, row_distances in enumerate(distances):
            names = np.concatenate([best[query][0], part])
            values = np.concatenate([best[query][1], row_distances])
            kept = np.argsort(values)[:k]
            best[query] = names[kept], values[kept]
    return [names for names, _ in best]


def show(name: str, measured: dict[str, Any]) -> None:
    print(
        f"\n{name}: {measured['rows']} rows of {measured['width']} components, {measured['code_bytes']} bytes a row, "
        f"coded after {measured['coded_after_seconds']} s"
    )
    print(f"{'':36}{'k':>5}{'rows':>9}{'recall':>9}{'queries/s':>11}{'by code':>9}")
    for case, cells in measured["cases"].items():
        mark = "" if cells["recall"] >= WANTED else "   below what is wanted"
        print(
            f"{case:36}{cells['k']:5}{cells['rows']:9}{cells['recall']:9.3f}{cells['queries_per_second']:11}"
            f"{cells['by_code']:9}{mark}"
        )


if __name__ == "__main__":
    main()
