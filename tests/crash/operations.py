"""Random operations of one owner: deposits of every kind, re-deposits of the same ids, removals."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from ledger import Document, Edge, Effect, Json, Ledger, Operation

from thread_service.text.ids import content_id

WIDTH = 32
LIVE_MAX = 30
COMMON_WORD = "harbour"
ENTITIES = tuple(f"Quorvane {number}" for number in range(8))
PREDICATES = ("keeps", "signed", "inherited")

_WORDS = ("tide", "ledger", "clock", "lantern", "brass", "window", "orchard", "letter", "winter", "captain", "salt")
_HOSTILE = ("\0", "👩‍👩‍👧", "\u202eabc", "' OR 1=1 --", 'NEAR("x" AND', "e\u0301\u0301", "<b>&amp;", "a\r\nb", "\ufffe")
_SHARED = tuple(f"{COMMON_WORD} shared{number} {' '.join(_WORDS[number : number + 5])}" for number in range(6))


class Operations:
    """The operations of one owner, drawn by `rng`."""

    def __init__(self, ledger: Ledger, rng: random.Random) -> None:
        self._ledger = ledger
        self._rng = rng
        self._own = [f"doc {number}" for number in range(20)]

    def next(self) -> Operation:
        draw = self._rng.random()
        if self._ledger.documents and (draw < 0.2 or len(self._ledger.documents) > LIVE_MAX):
            return self._remove()
        if draw < 0.4:
            return self._deposit_by_content()
        return self._deposit()

    def _deposit(self) -> Operation:
        """One to three documents under ids of the owner's own, new or replacing."""
        ids = self._rng.sample(self._own, self._rng.choice((1, 1, 1, 2, 3)))
        group = self._rng.choice(("", "", "alpha", "beta"))
        body = self._body(group)
        body |= {"document_ids": ids, "inputs": [], "names": [], "metadata": [], "partitions": []}
        body |= {"entities": [], "relationships": []}
        after: dict[str, Document | None] = {}
        for document_id in ids:
            document = self._document(document_id, group)
            after[document_id] = document
            body["inputs"].append(list(document.texts))
            body["names"].append(document.name)
            body["metadata"].append(base64.b64encode(document.metadata).decode() or None)
            brought = any(document.vectors)
            partitions = [{"embedding": list(vector)} if vector else {} for vector in document.vectors]
            body["partitions"].append(partitions if brought else None)
            said = document.entities
            body["entities"].append(None if said is None else [{"name": name} for name in sorted(said)])
            body["relationships"].append(
                [
                    {"subject": subject, "predicate": predicate, "object": end}
                    for subject, predicate, end in document.edges
                ]
            )
        expected = ["replaced" if key in self._ledger.documents else "new" for key in ids]
        fresh = {
            key: replace(each, group=group, groups=frozenset({group} - {""})) for key, each in after.items() if each
        }
        return Operation(
            "/v1/batch/embeddings",
            body,
            Effect(after, _filed(ids, expected)),
            Effect(fresh, _filed(ids, ["new"] * len(ids))),
        )

    def _deposit_by_content(self) -> Operation:
        """A text without an id: what is held already is left as it is, and at most joins the group."""
        text = self._rng.choice(_SHARED) if self._rng.random() < 0.4 else f"{COMMON_WORD} {self._text()}"
        document_id = content_id([text])
        group = self._rng.choice(("", "alpha"))
        held = self._ledger.documents.get(document_id)
        groups = frozenset({group} - {""})
        fresh = Document((text,), None, b"", ((),), group, groups)
        if held is None:
            outcome, document = "new", fresh
        elif groups <= held.groups:
            outcome, document = "skipped", held
        else:
            outcome = "linked"
            document = Document(held.texts, None, b"", held.vectors, group, held.groups | groups)
        body = self._body(group) | {"inputs": [text]}
        return Operation(
            "/v1/batch/embeddings",
            body,
            Effect({document_id: document}, _filed([document_id], [outcome])),
            Effect({document_id: fresh}, _filed([document_id], ["new"])),
        )

    def _remove(self) -> Operation:
        held = sorted(self._ledger.documents)
        ids = self._rng.sample(held, min(len(held), self._rng.choice((1, 1, 2, 5))))
        body = {"owner_id": self._ledger.owner, "document_ids": [*ids, "never filed"]}
        gone: dict[str, Document | None] = dict.fromkeys(ids)
        return Operation("/v1/remove", body, Effect(gone, _removed(len(ids))), Effect(gone, _removed(0)))

    def _body(self, group: str) -> Json:
        thread: Json = {"owner_id": self._ledger.owner}
        if group:
            thread["group"] = {"id": group, "label": f"label of {group}"}
        return {"thread": thread, "wait": self._rng.random() < 0.1}

    def _document(self, document_id: str, group: str) -> Document:
        held = self._ledger.documents.get(document_id)
        texts = tuple(f"{COMMON_WORD} {self._text()}" for _ in range(self._rng.choice((1, 1, 2, 4))))
        odds = self._rng.choice((0.0, 0.0, 0.5, 1.0))
        vectors = tuple(self._vector() if self._rng.random() < odds else () for _ in texts)
        entities: frozenset[str] | None = None
        edges: frozenset[Edge] = frozenset()
        if self._rng.random() < 0.5:
            names = self._rng.sample(ENTITIES, self._rng.randint(0, 3))
            entities = frozenset(names)
            if len(names) > 1:
                edges = frozenset({(names[0], self._rng.choice(PREDICATES), names[1])})
        return Document(
            texts,
            name=self._rng.choice((None, f"file {self._rng.randrange(10**6)} {self._rng.choice(_HOSTILE)}")),
            metadata=self._rng.choice((b"", self._rng.randbytes(40))),
            vectors=vectors,
            group=group or (held.group if held else ""),
            groups=(held.groups if held else frozenset()) | ({group} - {""}),
            entities=entities,
            edges=edges,
        )

    def _text(self) -> str:
        words = [f"mark{self._rng.randrange(10**9)}", *self._rng.choices(_WORDS, k=self._rng.randint(4, 20))]
        if self._rng.random() < 0.3:
            words.append(self._rng.choice(_HOSTILE))
        return " ".join(words)

    def _vector(self) -> tuple[float, ...]:
        values = np.array([self._rng.gauss(0, 1) for _ in range(WIDTH)], np.float32)
        return tuple(float(value) for value in values)


def _filed(ids: list[str], outcomes: list[str]) -> Callable[[Json], bool]:
    expected = [{"id": key, "outcome": outcome} for key, outcome in zip(ids, outcomes, strict=True)]
    return lambda answer: answer["success"] is True and answer["documents"] == expected


def _removed(count: int) -> Callable[[Json], bool]:
    return lambda answer: bool(answer["removed_count"] == count)
