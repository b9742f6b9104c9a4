"""What `growth.py` files and asks: clustered vectors, texts of made-up words, and names by Zipf's law."""

from __future__ import annotations

import numpy as np
from harness import OWNER
from numpy.typing import NDArray

from thread_service.node.operations import DocumentIn, EntityIn, PartitionIn, SearchRequest

WIDTH = 1024
LATENT = 128
PARTITIONS = 16
WORDS = 20
VOCABULARY = 50_000
NAMES_A_DOCUMENT = 8
MENTIONS_A_TEXT = 2
GIVEN_NAMES = 1_999
QUERIES = 200
QUERY_WORDS = 6

Vectors = NDArray[np.float32]


class Maker:
    """Documents, the same ones for the same size."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._basis = self._random.standard_normal((LATENT, WIDTH), np.float32)
        self._scale = np.arange(1, LATENT + 1, dtype=np.float32) ** -0.5
        self._made = 0
        self.payload_bytes = 0
        """Of the float32 vectors and the texts that were made."""

    def documents(self, rows: int) -> list[DocumentIn]:
        vectors = self._vectors(self._random, rows)
        texts = self._texts(rows)
        found: list[DocumentIn] = []
        for start in range(0, rows, PARTITIONS):
            part = slice(start, min(start + PARTITIONS, rows))
            brought = tuple(PartitionIn(vector) for vector in vectors[part])
            named = texts[part]
            entities: tuple[EntityIn, ...] = ()
            if self._made % 2:
                named = [f"{text} of {self._mentions()}" for text in named]
            else:
                first = self._made // 2 * NAMES_A_DOCUMENT
                entities = tuple(EntityIn(name(first + at), "thing") for at in range(NAMES_A_DOCUMENT))
            found.append(DocumentIn(tuple(named), f"d{self._made}", entities=entities, partitions=brought))
            self.payload_bytes += vectors[part].nbytes + sum(map(len, named))
            self._made += 1
        return found

    def queries(self, rows: int) -> list[SearchRequest]:
        """Of the same law, for a store of that many rows: each names one entity by Zipf's law and one of all alike."""
        random = np.random.default_rng(1)
        names = names_in(rows)
        return [
            SearchRequest(
                OWNER,
                " ".join(f"word{number:x}" for number in random.integers(VOCABULARY, size=QUERY_WORDS).tolist())
                + f" of {name(zipf(random, names))} and {name(int(random.integers(names)))}",
                query_embedding=vector,
            )
            for vector in self._vectors(random, QUERIES)
        ]

    def _texts(self, rows: int) -> list[str]:
        words = self._random.integers(VOCABULARY, size=(rows, WORDS))
        return [" ".join(f"word{number:x}" for number in row) for row in words.tolist()]

    def _mentions(self) -> str:
        names = self._made // 2 * NAMES_A_DOCUMENT + NAMES_A_DOCUMENT
        return " and ".join(name(zipf(self._random, names)) for _ in range(MENTIONS_A_TEXT))

    def _vectors(self, random: np.random.Generator, rows: int) -> Vectors:
        latent = random.standard_normal((rows, LATENT), np.float32) * self._scale
        vectors: Vectors = latent @ self._basis
        vectors += 0.3 * random.standard_normal((rows, WIDTH), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def name(number: int) -> str:
    """Of this entity: two words, the first of which up to some hundred others have too."""
    return f"Given{number % GIVEN_NAMES:x} Family{number // GIVEN_NAMES:x}"


def names_in(rows: int) -> int:
    documents = -(-rows // PARTITIONS)
    return -(-documents // 2) * NAMES_A_DOCUMENT


def zipf(random: np.random.Generator, count: int) -> int:
    """0 … count − 1, with a probability that falls as 1 / (number + 1)."""
    return min(int(np.exp(random.random() * np.log(count + 1))) - 1, count - 1)
