"""Vectors for the benchmarks of search: a law that looks like text embeddings, and the embeddings of real sentences."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from harness import CACHE, MODEL
from numpy.typing import NDArray

from thread_service.models.local import local_embedder

Vectors = NDArray[np.float32]

WIDTH = 1_024
_CHUNK = 20_000
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_CLAUSE_END = re.compile(r"[,;:()]\s*")
_SHORTEST = 25


@dataclass(frozen=True, slots=True)
class VectorSet:
    """`rows` float32[n, width] and `queries` float32[q, width], of unit length and of the same law."""

    name: str
    rows: Vectors
    queries: Vectors


def clustered(rows: int, queries: int) -> VectorSet:
    """x = normalise(z·B + 0.3·g): z of 128 normals scaled by rank^−0.5, B 128×1024 normals, g 1024 normals, seed 0."""
    random = np.random.default_rng(0)
    basis = random.standard_normal((128, WIDTH), dtype=np.float32)
    scales = (np.arange(1, 129) ** -0.5).astype(np.float32)
    vectors = np.empty((rows + queries, WIDTH), dtype=np.float32)
    for start in range(0, len(vectors), _CHUNK):
        part = vectors[start : start + _CHUNK]
        latent = random.standard_normal((len(part), 128), dtype=np.float32) * scales
        part[:] = latent @ basis + 0.3 * random.standard_normal((len(part), WIDTH), dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return VectorSet("clustered", vectors[:rows], vectors[rows:])


def sentences(data: Path, rows: int, queries: int) -> VectorSet:
    """Sentences of every corpus below `data`, their clauses, then pairs of neighbours, embedded by the default model.

    The vectors are kept, since embedding 200,000 takes a quarter of an hour; the queries are drawn from among them.
    """
    texts = list(dict.fromkeys(_texts(data)))
    name = hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()
    texts = texts[: rows + queries]
    cache = CACHE / f"sentences-{name}.npy"
    if not cache.exists() or len(np.load(cache, mmap_mode="r")) < len(texts):
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(cache, _embedded(texts).astype(np.float16))
    vectors = np.load(cache)[: len(texts)].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors[np.random.default_rng(0).permutation(len(vectors))]
    return VectorSet("sentences", vectors[queries : queries + rows], vectors[:queries])


def _texts(data: Path) -> Iterator[str]:
    passages = [_parts(_SENTENCE_END, text) for path in sorted(data.glob("*/corpus.jsonl")) for text in _passages(path)]
    for passage in passages:
        yield from passage
    for passage in passages:
        for sentence in passage:
            yield from _parts(_CLAUSE_END, sentence)
    for passage in passages:
        for first, second in pairwise(passage):
            yield f"{first} {second}"


def _parts(end: re.Pattern[str], text: str) -> list[str]:
    return [part.strip() for part in end.split(text) if len(part.strip()) >= _SHORTEST]


def _passages(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            found = json.loads(line)
            yield found["text"] if "text" in found else found["code"]


def _embedded(texts: list[str]) -> Vectors:
    embedder = local_embedder(MODEL, models_dir=Path())
    embedder.load()
    # Texts of one length together: a batch is padded to its longest.
    order = np.argsort([len(text) for text in texts])
    vectors: Vectors | None = None
    for start in range(0, len(order), 64):
        part = order[start : start + 64]
        embedded = embedder.embed([texts[at] for at in part], "document")
        if vectors is None:
            vectors = np.empty((len(texts), embedded.shape[1]), dtype=np.float32)
        vectors[part] = embedded
    assert vectors is not None
    return vectors
