"""What `service.py` files and asks: clustered vectors, and texts of made-up words with names in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from harness import OWNER
from load import http_request
from numpy.typing import NDArray

from thread_service.node.operations import (
    DocumentIn,
    EntityIn,
    EntityRef,
    PartitionIn,
    Passage,
    SearchAnswer,
    SearchRequest,
    Trace,
)
from thread_service.wire.v1 import thread_pb2 as pb

WIDTH = 1024
QUERIES = 512
WORDS_A_TEXT = 40
CLUSTER_DIMENSIONS = 128
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_WORDS = [first + second + end for first in _SYLLABLES for second in _SYLLABLES for end in ("n", "")]

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Queries:
    """The same searches for each way in: as the node, an HTTP connection, a gRPC call and a session take them."""

    requests: list[SearchRequest]
    http: list[bytes]
    grpc: list[bytes]
    session: list[bytes]


class Source:
    """Seeded: the documents come first, then the queries, so that both follow the same law."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(0)
        self._basis = self._generator.standard_normal((CLUSTER_DIMENSIONS, WIDTH))

    def documents(self, count: int) -> list[DocumentIn]:
        return [self._document(number, vector) for number, vector in enumerate(self._vectors(count))]

    def queries(self) -> Queries:
        texts = [f"{self._text(6)} {_name(number)}" for number in range(QUERIES)]
        vectors = self._vectors(QUERIES)
        messages = [
            pb.ThreadSearchRequest(owner_id=OWNER, query_text=text, query_embedding=vector.tolist())
            for text, vector in zip(texts, vectors, strict=True)
        ]
        return Queries(
            [SearchRequest(OWNER, text, vector) for text, vector in zip(texts, vectors, strict=True)],
            list(_http_requests(texts, vectors)),
            [message.SerializeToString() for message in messages],
            [pb.ThreadSessionMessage(search_request=message).SerializeToString() for message in messages],
        )

    def answer(self) -> SearchAnswer:
        """As large as those of the node: ten passages of two entities each."""
        entities = tuple(EntityRef(f"{at:064x}", _name(at), "person") for at in range(2))
        return SearchAnswer(
            tuple(
                Passage(
                    f"document-{at}#0", f"document-{at}", OWNER, self._text(3), text, "text", 0.1 * at, entities, None
                )
                for at, text in enumerate(self._text(WORDS_A_TEXT) for _ in range(10))
            ),
            Trace(entities),
        )

    def _document(self, number: int, vector: Vectors) -> DocumentIn:
        return DocumentIn(
            (self._text(WORDS_A_TEXT),),
            f"document-{number}",
            self._text(3),
            entities=(EntityIn(_name(number), "person"), EntityIn(_name(number + 1), "person")),
            partitions=(PartitionIn(vector),),
        )

    def _vectors(self, count: int) -> Vectors:
        """[count, WIDTH], unit length."""
        spread = np.arange(1, CLUSTER_DIMENSIONS + 1) ** -0.5
        vectors = (self._generator.standard_normal((count, CLUSTER_DIMENSIONS)) * spread) @ self._basis
        vectors += 0.3 * self._generator.standard_normal((count, WIDTH))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    def _text(self, words: int) -> str:
        # Some words are common and most are rare, as in any language.
        ranks = np.minimum(self._generator.zipf(1.3, words), len(_WORDS)) - 1
        return " ".join(_WORDS[rank] for rank in ranks)


def _http_requests(texts: Iterable[str], vectors: Vectors) -> Iterable[bytes]:
    for text, vector in zip(texts, vectors, strict=True):
        body = {"thread": {"owner_id": OWNER}, "query": text, "query_embedding": vector.tolist()}
        yield http_request("/v1/search", body)


def _name(number: int) -> str:
    first, last = _SYLLABLES[number % 70], _SYLLABLES[number // 70 % 70]
    return f"{first.title()}lor {last.title()}quist"
