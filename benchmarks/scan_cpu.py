"""How fast is the scan on a CPU? The engine against faiss, hnswlib and usearch, at equal recall@10.

    python benchmarks/scan_cpu.py [--rows N]

Clustered vectors of 1,024 components (`vector_data.py`), one query at a time, without a filter and with filters that
pass half, a hundredth and a thousandth of the rows. The engine runs as it calibrates itself. Every peer is swept, and
takes part with its fastest setting whose recall is at least the engine's (and at least 0.95). An index that takes no
filter, or gives fewer than 10 rows that pass, is left out there. hnswlib is built up to 200,000 rows.
"""

from __future__ import annotations

import os

# As the node sets them for itself: one thread a product, and no spinning between them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from harness import parse, peers, rest_soon, wait_for_table, write_results
from numpy.typing import NDArray
from recall import exact
from vector_data import Vectors, VectorSet, clustered

from thread_kernels import Filter, create_engine

with peers():
    import hnswlib
    from usearch.index import Index as UsearchIndex

QUERIES = 500
K = 10
WANTED = 0.95
PASSING = (1.0, 0.5, 0.01, 0.001)
HNSWLIB_ROWS = 200_000
_BLOCK = 20_000
_WARM = 20
_FEWEST, _SECONDS = 100, 2

Rows = NDArray[np.int64]
Ask = Callable[[Vectors], Rows]
"""float32[1, width] → int64[≤ 10]"""


@dataclass(frozen=True, slots=True)
class Asking:
    """One setting of one peer, for one filter. `series`: settings of one series get slower and better."""

    name: str
    setting: str
    ask: Ask
    series: float = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rows that pass, and as FAISS wants them."""

    share: float
    rows: Rows
    mask: NDArray[np.bool_]


class Engine:
    name = "thread"

    def __init__(self, vectors: Vectors) -> None:
        rest_soon()
        self._table = create_engine("cpu").table(vectors.shape[1])
        for start in range(0, len(vectors), _BLOCK):
            self._table.append(vectors[start : start + _BLOCK])
        wait_for_table(self._table)

    def asking(self, chosen: Chosen) -> Iterator[Asking]:
        filter = None
        if chosen.share < 1:
            members = self._table.row_set()
            members.add(chosen.rows)
            filter = Filter.any_of(members)
        yield Asking(self.name, "as calibrated", lambda query: self._table.search(query, K, [filter])[0].rows)


class FaissFlat:
    name = "faiss flat"

    def __init__(self, vectors: Vectors) -> None:
        self._index = faiss.IndexFlatL2(vectors.shape[1])
        self._index.add(vectors)

    def asking(self, chosen: Chosen) -> Iterator[Asking]:
        parameters = faiss.SearchParameters(sel=selector(chosen)) if chosen.share < 1 else None
        yield Asking(self.name, "", lambda query: self._index.search(query, K, params=parameters)[1][0])


class FaissFastScan:
    """4-bit codes of 64 bytes in inverted lists, the best of them measured again in float32."""

    def __init__(self, vectors: Vectors, rotation: str) -> None:
        self.name = f"faiss {rotation}IVF,PQ128x4fs + refine"
        lists = 256 if len(vectors) < 500_000 else 1_024
        self._coded = faiss.index_factory(vectors.shape[1], f"{rotation}IVF{lists},PQ128x4fs")
        self._index = faiss.IndexRefineFlat(self._coded)
        sample = np.random.default_rng(0).permutation(len(vectors))[: max(20_000, 40 * lists)]
        self._coded.train(vectors[np.sort(sample)])
        self._index.is_trained = True
        for start in range(0, len(vectors), _BLOCK):
            self._index.add(vectors[start : start + _BLOCK])
        self._lists = lists

    def asking(self, chosen: Chosen) -> Iterator[Asking]:
        for share in (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1):
            for factor in (2, 4, 8, 16, 32, 64):
                probes = faiss.SearchParametersIVF(nprobe=max(1, int(share * self._lists)))
                if chosen.share < 1:
                    probes.sel = selector(chosen)
                inner = probes
                if isinstance(self._coded, faiss.IndexPreTransform):
                    inner = faiss.SearchParametersPreTransform(index_params=probes)
                parameters = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=inner)
                yield Asking(
                    self.name,
                    f"nprobe {probes.nprobe}, k_factor {factor}",
                    lambda query, parameters=parameters: self._index.search(query, K, params=parameters)[1][0],
                    share,
                )


class Hnswlib:
    name = "hnswlib"

    def __init__(self, vectors: Vectors) -> None:
        self._index = hnswlib.Index("l2", vectors.shape[1])
        self._index.init_index(len(vectors), ef_construction=200, M=16)
        self._index.add_items(vectors)

    def asking(self, chosen: Chosen) -> Iterator[Asking]:
        mask = chosen.mask
        passes = (lambda label: mask[label]) if chosen.share < 1 else None
        for breadth in (20, 50, 100, 200, 400, 800):

            def ask(query: Vectors, breadth: int = breadth) -> Rows:
                self._index.set_ef(breadth)
                return self._index.knn_query(query, K, num_threads=1, filter=passes)[0][0].astype(np.int64)

            yield Asking(self.name, f"ef {breadth}", ask)


class Usearch:
    """Half-precision vectors; it takes no filter in Python."""

    name = "usearch"

    def __init__(self, vectors: Vectors) -> None:
        self._index = UsearchIndex(ndim=vectors.shape[1], metric="l2sq", dtype="f16", connectivity=16)
        self._index.add(np.arange(len(vectors)), vectors)

    def asking(self, chosen: Chosen) -> Iterator[Asking]:
        for breadth in (20, 50, 100, 200, 400, 800) if chosen.share == 1 else ():

            def ask(query: Vectors, breadth: int = breadth) -> Rows:
                self._index.expansion_search = breadth
                return self._index.search(query[0], K).keys.astype(np.int64)

            yield Asking(self.name, f"expansion {breadth}", ask)


def selector(chosen: Chosen) -> Any:
    # FAISS keeps the pointer only, so the selector carries what it points to.
    packed = np.packbits(chosen.mask, bitorder="little")
    found = faiss.IDSelectorBitmap(len(packed), faiss.swig_ptr(packed))
    found.packed = packed
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=QUERIES)
    arguments = parse(parser, rows=12_000, queries=200)
    vectors = clustered(arguments.rows, arguments.queries)
    measured = measure(vectors)
    show(measured)
    name = "scan-cpu" if arguments.rows == 200_000 else f"scan-cpu-{arguments.rows}"
    found = {"rows": arguments.rows, "width": vectors.rows.shape[1], "k": K, "filters": measured}
    path = write_results(name, found, ratios=ratios(measured), quick=arguments.quick)
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


def measure(vectors: VectorSet) -> dict[str, Any]:
    random = np.random.default_rng(2)
    filters = []
    for share in PASSING:
        mask = random.random(len(vectors.rows)) < share
        filters.append(Chosen(share, mask.nonzero()[0], mask))
    truths = [exact(vectors.rows, chosen.rows, vectors.queries, K) for chosen in filters]
    measured: dict[str, Any] = {f"{chosen.share:.1%} of rows": {} for chosen in filters}
    floors = [WANTED] * len(filters)
    builders: list[Callable[[Vectors], Any]] = [
        Engine,
        FaissFlat,
        lambda rows: FaissFastScan(rows, ""),
        lambda rows: FaissFastScan(rows, "PCA256,"),
        Usearch,
    ]
    if len(vectors.rows) <= HNSWLIB_ROWS:
        builders.append(Hnswlib)
    for make in builders:
        started = time.perf_counter()
        peer = make(vectors.rows)
        built = time.perf_counter() - started
        print(f"{peer.name}: built in {built:.0f} s", flush=True)
        for number, (chosen, truth) in enumerate(zip(filters, truths, strict=True)):
            best = fastest(peer.asking(chosen), vectors.queries, truth, floors[number])
            if best is not None:
                measured[f"{chosen.share:.1%} of rows"][peer.name] = best | {"build_seconds": round(built, 1)}
                if peer.name == Engine.name:
                    floors[number] = max(WANTED, best["recall"])
        del peer
    return measured


def ratios(measured: dict[str, Any]) -> dict[str, float]:
    """Of queries a second, at equal recall."""
    return {
        f"engine / fastest peer, {filter}": cells[Engine.name]["queries_per_second"]
        / max(cell["queries_per_second"] for name, cell in cells.items() if name != Engine.name)
        for filter, cells in measured.items()
    }


def fastest(settings: Iterator[Asking], queries: Vectors, truth: list[Rows], floor: float) -> dict[str, Any] | None:
    """The fastest setting that finds enough; one of the engine's own is taken as it is."""
    best: dict[str, Any] | None = None
    ended: float | None = None
    for setting in settings:
        if setting.series == ended:
            continue
        found, rate = timed(setting.ask, queries)
        recall = float(np.mean([np.isin(rows, hits).mean() for rows, hits in zip(truth, found, strict=False)]))
        is_enough = recall >= floor or setting.name == Engine.name
        if is_enough and (best is None or rate > best["queries_per_second"]):
            best = {"setting": setting.setting, "recall": round(recall, 4), "queries_per_second": round(rate)}
        if is_enough or (best is not None and rate < best["queries_per_second"]):
            ended = setting.series  # the rest of the series would be slower still
    return best


def timed(ask: Ask, queries: Vectors) -> tuple[list[Rows], float]:
    """Answers to the queries, or to as many as fit into some seconds, and queries a second."""
    for query in queries[:_WARM]:
        ask(query[None])
    found: list[Rows] = []
    started = time.perf_counter()
    for query in queries:
        found.append(ask(query[None]))
        if len(found) >= _FEWEST and time.perf_counter() - started > _SECONDS:
            break
    return found, len(found) / (time.perf_counter() - started)


def show(measured: dict[str, Any]) -> None:
    for filter, found in measured.items():
        print(f"\n{filter:36}{'queries/s':>10}{'recall':>9}   setting")
        for name, cells in sorted(found.items(), key=lambda item: -item[1]["queries_per_second"]):
            print(f"{name:36}{cells['queries_per_second']:10}{cells['recall']:9.3f}   {cells['setting']}")


if __name__ == "__main__":
    main()
