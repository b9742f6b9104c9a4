"""How fast is the scan on a GPU? Both kernels against torch's float16 product with topk, and against the limit.

    python benchmarks/scan_gpu.py [--rows 1000000 10000000] [--centroids 256]

Clustered vectors of 1,024 components, drawn on the card; codes of 64 bytes over the strongest principal components.
Batches of 1 to 256 queries, without a filter and with four filters that pass a hundredth or a thousandth of the rows, a
query's own each. `look-ups`, `fp16` and `int8` are whole searches for the best 512: by `scan_lut` (tables included), by
`scan_exact` over float16 rows, which is what a node runs for large batches, and by it over int8 rows, which no node
runs. recall@10 is that of the faster of a node's two ways, after rescoring. The limit is the larger share of what the
hardware allows: reading the codes once at the bandwidth of a copy for batches up to 16, the int8 product at the rate of
a large one above; both are measured in the same run. Wished for is 15 times the speed of torch for one query, 3 times
for 16 and once for 256, and from ten million rows on six tenths of the limit; the last column says what of it a node's
faster way misses. The results are written after each size; what does not fit on a card is left out. Needs torch, triton
and cupy only. Codes of more than 256 centroids take two bytes a sub-space, and their look-ups are those of `scan_wide`.

    TRITON_INTERPRET=1 python benchmarks/scan_gpu.py

runs every line of it without a GPU, on a few rows, by Triton's interpreter and the tests' build of the CUDA C source:
its times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thread_kernels import lookup, scan_exact, scan_lut, scan_wide
from thread_kernels.clustering import train_centroids
from thread_kernels.encode import encode
from thread_kernels.selection import EVERY_ROW, Launch, best_rows, pack_mask

REHEARSES = os.environ.get("TRITON_INTERPRET") == "1"
if REHEARSES:
    arrays: Any = np
else:
    import cupy as arrays

DEVICE = "cpu" if REHEARSES else "cuda"
WIDTH, LATENT, SUBSPACES, CENTROIDS = (64, 16, 8, 16) if REHEARSES else (1_024, 128, 64, 256)
BATCHES = (1, 3) if REHEARSES else (1, 16, 64, 256)
KEEP, K = (64, 10) if REHEARSES else (512, 10)
SHARES = (1.0, 0.01, 0.001)
FILTERS = 4
WISHED = {1: 15.0, 16: 3.0, 256: 1.0}
"""Times the speed of torch, by batch."""
WISHED_OF_LIMIT, FROM_ROWS = 0.6, 10_000_000
ROWS = [700] if REHEARSES else [1_000_000, 10_000_000]
SAMPLE = 600 if REHEARSES else 20_000
CHUNK = 100_000
TIMES = 1 if REHEARSES else 5
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Launches:
    lookups: Launch[scan_lut.Scan]
    product: Launch[scan_exact.Scan]
    wide: Launch[scan_wide.Scan]

    @classmethod
    def made(cls) -> Launches:
        if not REHEARSES:
            return cls(scan_lut.CudaLaunch(), scan_exact.TritonLaunch(), scan_wide.TritonLaunch())
        sys.path.append(str(Path(__file__).parent.parent / "tests" / "kernels"))
        import host_scan

        with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as folder:
            lookups = host_scan.HostLaunch(host_scan.build(Path(folder)))
            return cls(lookups, scan_exact.TritonLaunch(tiles=8), scan_wide.TritonLaunch())


@dataclass(frozen=True, slots=True)
class Limits:
    copied_bytes: float
    """A second: read and written ones together."""
    int8_products: float
    """Multiplications with their additions, a second."""

    def seconds(self, table: Table, batch: int) -> float:
        rows = table.rows
        reading = rows * SUBSPACES * (2 if table.is_wide else 1) / self.copied_bytes
        return reading if batch <= 16 else max(reading, batch * rows * WIDTH / self.int8_products)


@dataclass(frozen=True, slots=True)
class Line:
    """Milliseconds; None for what does not fit on the card."""

    rows: int
    batch: int
    passing: float
    lookups: float
    fp16: float | None
    int8: float | None
    torch: float | None
    limit: float
    recall: float

    @property
    def ours(self) -> float:
        """The faster way of a node, which keeps no int8 rows."""
        return min(self.lookups, self.fp16 or self.lookups)

    @property
    def missed(self) -> list[str]:
        """Of what is wished for, with what is wished."""
        missed = []
        wished = WISHED.get(self.batch)
        if wished and self.torch and self.torch / self.ours < wished:
            missed.append(f"{wished:.0f}×")
        if self.rows >= FROM_ROWS and self.limit / self.ours < WISHED_OF_LIMIT:
            missed.append(f"{WISHED_OF_LIMIT:.0%}")
        return missed

    def cells(self) -> list[str]:
        return [
            f"{self.rows:,}",
            str(self.batch),
            f"{self.passing:.1%}",
            *(f"{each:.2f}" if each is not None else "—" for each in (self.lookups, self.fp16, self.int8, self.torch)),
            f"{self.torch / self.ours:.1f}×" if self.torch else "—",
            f"{self.limit:.2f}",
            f"{self.limit / self.ours:.0%}",
            f"{self.recall:.3f}",
            " and ".join(self.missed) or "—",
        ]


HEAD = ["rows", "queries", "pass", "look-ups,ms", "fp16,ms", "int8,ms", "torch,ms", "faster", "limit,ms", "reached"]
HEAD += ["recall", "missed"]


class Law:
    """x = normalise(z·B + 0.3·g): z of 128 normals scaled by rank^−0.5."""

    def __init__(self) -> None:
        self._random = torch.Generator(DEVICE).manual_seed(0)
        self._basis = self._normals(LATENT, WIDTH)
        self._scales = torch.arange(1, LATENT + 1, device=DEVICE) ** -0.5

    def __call__(self, count: int) -> torch.Tensor:
        vectors = (self._normals(count, LATENT) * self._scales) @ self._basis + 0.3 * self._normals(count, WIDTH)
        return vectors / vectors.norm(dim=1, keepdim=True)

    def _normals(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._random, device=DEVICE)


def principal(sample: torch.Tensor) -> torch.Tensor:
    """float32[width, 2 × subspaces]: the strongest principal components, each beside a weak one."""
    _, directions = torch.linalg.eigh(sample.T @ sample)
    strongest = directions.flip(1)[:, : 2 * SUBSPACES]
    return torch.stack([strongest[:, :SUBSPACES], strongest.flip(1)[:, :SUBSPACES]], dim=2).flatten(1).contiguous()


class Table:
    def __init__(self, rows: int, law: Law, centroids: int) -> None:
        self.rows = rows
        self.is_wide = centroids > scan_lut.CODES
        sample = law(SAMPLE)
        self.rotation = principal(sample)
        codebook = train_centroids(sample @ self.rotation, SUBSPACES, centroids, seed=0)
        self.centroids = lookup.Centroids.prepare(codebook.cpu().numpy(), DEVICE)
        self.vectors = torch.empty((rows, WIDTH), dtype=torch.float16, device=DEVICE)
        codes = np.empty((rows, SUBSPACES), dtype=np.uint16 if self.is_wide else np.uint8)
        for start in range(0, rows, CHUNK):
            part = slice(start, min(start + CHUNK, rows))
            drawn = law(part.stop - start)
            self.vectors[part] = drawn.half()
            codes[part] = encode(drawn @ self.rotation, codebook).cpu().numpy()
        self.codes = arrays.asarray((scan_wide if self.is_wide else scan_lut).pack_codes(codes))
        # float16 first, as a node has it; int8 where there is room for that too.
        self.packed = {
            each: fitting(partial(scan_exact.pack, self.vectors, each)) for each in (torch.float16, torch.int8)
        }


def fitting(work: Callable[[], Any]) -> Any:
    """What `work` gives; None when the card has no memory for it."""
    try:
        return work()
    except (torch.OutOfMemoryError, MemoryError):  # CuPy's is one of the latter
        if not REHEARSES:
            torch.cuda.empty_cache()
        return None


def synchronise() -> None:
    if not REHEARSES:
        torch.cuda.synchronize()


def milliseconds(work: Callable[[], object]) -> float:
    """The median of a few, after one that compiles and allocates."""
    work()
    taken = []
    for _ in range(TIMES):
        synchronise()
        started = time.perf_counter()
        work()
        synchronise()
        taken.append(1e3 * (time.perf_counter() - started))
    return float(np.median(taken))


def limits() -> Limits:
    size = 64 if REHEARSES else 8_192
    source = torch.zeros(size * size * 8, dtype=torch.int8, device=DEVICE)
    target = torch.empty_like(source)
    square = torch.ones((size, size), dtype=torch.int8, device=DEVICE)
    copy = milliseconds(lambda: target.copy_(source))
    product = milliseconds(lambda: torch._int_mm(square, square.T))
    return Limits(2 * len(source) / copy * 1e3, size**3 / product * 1e3)


class Search:
    """One batch of queries with its filters, by each way."""

    def __init__(self, table: Table, launches: Launches, queries: torch.Tensor, share: float) -> None:
        self._table, self._launches, self._queries = table, launches, queries
        masks = np.random.default_rng(0).random((FILTERS if share < 1 else 0, table.rows)) < share
        self._masks = torch.from_numpy(masks).to(DEVICE)
        words = [pack_mask(mask) for mask in masks] or np.zeros((0, len(pack_mask(np.ones(table.rows, bool)))))
        self._bitmaps = arrays.asarray(np.array(words, dtype=np.uint32))
        numbers = np.arange(len(queries)) % FILTERS if share < 1 else np.full(len(queries), EVERY_ROW)
        self._filter_of = arrays.asarray(numbers.astype(np.int32))
        self._pairs = lookup.new_pairs(len(queries), DEVICE)

    def by_lookups(self) -> Any:
        table = self._table
        if table.is_wide:
            tables = lookup.tables(self._queries @ table.rotation, table.centroids)
            wide = scan_wide.Scan(tables, table.codes, table.rows, self._bitmaps, self._filter_of)
            return best_rows(wide, KEEP, self._launches.wide, arrays).rows
        lookup.fill_pairs(self._queries @ table.rotation, table.centroids, self._pairs)
        pairs = self._pairs.numpy() if REHEARSES else arrays.from_dlpack(self._pairs)
        scan = scan_lut.Scan(pairs, len(self._queries), table.codes, table.rows, self._bitmaps, self._filter_of)
        return best_rows(scan, KEEP, self._launches.lookups, arrays).rows

    def by_product(self, dtype: torch.dtype) -> Any:
        asked = scan_exact.pack(self._queries, dtype)
        scan = scan_exact.Scan(asked, self._table.packed[dtype], self._table.rows, self._bitmaps, self._filter_of)
        return best_rows(scan, KEEP, self._launches.product, arrays).rows

    def by_torch(self) -> torch.Tensor:
        products = self._queries.half() @ self._table.vectors.T
        for number, mask in enumerate(self._masks):
            products[number::FILTERS].masked_fill_(~mask, -torch.inf)
        return products.topk(min(K, self._table.rows), dim=1).indices

    def recall(self, found: Any) -> float:
        """Of the first ten by the vectors in float16 themselves, among so many that pass."""
        rows = torch.from_numpy(found) if REHEARSES else torch.from_dlpack(found)
        missing = rows < 0
        total = right = 0
        for start in range(0, len(rows), 16):
            part = slice(start, start + 16)
            gathered = self._table.vectors[rows[part].clamp(min=0)].float()
            products = torch.einsum("qrd,qd->qr", gathered, self._queries[part])
            products.masked_fill_(missing[part], -torch.inf)
            nearest = rows[part].gather(1, products.topk(K, dim=1).indices)
            truth = self._truth(self._queries[part], start)
            for ours, theirs in zip(nearest.tolist(), truth.tolist(), strict=True):
                wanted = {row for row in theirs if row >= 0}
                total += len(wanted)
                right += len(wanted & set(ours))
        return right / max(1, total)

    def _truth(self, queries: torch.Tensor, first: int) -> torch.Tensor:
        best = torch.full((len(queries), K), -torch.inf, device=DEVICE)
        rows = torch.full((len(queries), K), -1, device=DEVICE)
        for start in range(0, self._table.rows, CHUNK):
            products = queries @ self._table.vectors[start : start + CHUNK].float().T
            for query in range(len(queries) if len(self._masks) else 0):
                mask = self._masks[(first + query) % FILTERS, start : start + CHUNK]
                products[query].masked_fill_(~mask, -torch.inf)
            numbers = torch.arange(start, start + products.shape[1], device=DEVICE).expand_as(products)
            best, places = torch.cat([best, products], dim=1).topk(K, dim=1)
            rows = torch.cat([rows, numbers], dim=1).gather(1, places).masked_fill(best == -torch.inf, -1)
        return rows


def measured(table: Table, launches: Launches, law: Law, found: Limits) -> list[Line]:
    lines = []
    for share in SHARES:
        queries = law(max(BATCHES))
        for batch in BATCHES:
            search = Search(table, launches, queries[:batch], share)
            lookups = milliseconds(search.by_lookups)
            fp16, int8 = (
                None if packed is None else milliseconds(partial(search.by_product, dtype))
                for dtype, packed in table.packed.items()
            )
            baseline = fitting(lambda search=search: milliseconds(search.by_torch))
            if not REHEARSES:
                torch.cuda.empty_cache()  # what torch keeps for later is not there for CuPy
            is_product = fp16 is not None and fp16 < lookups
            recall = search.recall(search.by_product(torch.float16) if is_product else search.by_lookups())
            limit = 1e3 * found.seconds(table, batch)
            lines.append(Line(table.rows, batch, share, lookups, fp16, int8, baseline, limit, recall))
            print(" | ".join(lines[-1].cells()), flush=True)
    return lines


def about() -> dict[str, Any]:
    packages = (
        ("torch", "triton", "numpy") if REHEARSES else ("torch", "triton", "numpy", "cupy-cuda13x", "cupy-cuda12x")
    )
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": "none: a rehearsal" if REHEARSES else torch.cuda.get_device_name(),
        "versions": versions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--centroids", type=int, default=CENTROIDS, help=f"a sub-space, at most {SAMPLE}")
    arguments = parser.parse_args()
    launches, law, found = Launches.made(), Law(), limits()
    print(f"copy {found.copied_bytes / 1e9:,.0f} GB/s, int8 product {2 * found.int8_products / 1e12:,.1f} TOPS")
    print(" | ".join(HEAD))
    RESULTS.mkdir(exist_ok=True)
    name = "scan-gpu" + (f"-{arguments.centroids}" if arguments.centroids != CENTROIDS else "")
    results = RESULTS / f"{name}{'-rehearsal' if REHEARSES else ''}.json"
    lines: list[Line] = []
    for rows in arguments.rows:
        table = fitting(lambda rows=rows: Table(rows, law, arguments.centroids))
        if table is None:
            print(f"{rows:,} rows do not fit on this card")
            continue
        lines += measured(table, launches, law, found)
        del table
        written = [asdict(line) | {"missed": line.missed} for line in lines]
        results.write_text(json.dumps(about() | {"limits": asdict(found), "lines": written}, indent=1) + "\n")


if __name__ == "__main__":
    main()
