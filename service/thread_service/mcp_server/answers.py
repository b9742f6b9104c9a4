"""What the tools answer: bounded, so that no answer fills the context of an assistant; what was left out is said."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from thread_client import Fact, Found, Graph, Passage

TEXT_CHARS_MAX = 2_000
"""Characters of one passage that are shown."""
NAME_CHARS_MAX = 200
ENTITIES_OF_PASSAGE_MAX = 8
FACTS_MAX = 40
DOCUMENTS_OF_ENTITY_MAX = 10


class Remembered(BaseModel, frozen=True):
    """`outcome`: `new`; `replaced`, another text had this id; `skipped`, the same text is known already."""

    id: str
    outcome: str


class RecalledPassage(BaseModel, frozen=True):
    """`distance`: lower is nearer to the question. `id`: of its document, for `forget` and for replacing it."""

    text: str
    id: str
    distance: float
    name: str | None
    group: str | None
    entities: list[str]


class Recalled(BaseModel, frozen=True):
    """Nearest first. `facts` led to passages. `left_out`: what did not fit into this answer."""

    passages: list[RecalledPassage]
    facts: list[str]
    left_out: str | None


class KnownEntity(BaseModel, frozen=True):
    """`mentions`: how often documents name it. `document_ids`: which ones do."""

    name: str
    kind: str
    mentions: int
    document_ids: list[str]


class Known(BaseModel, frozen=True):
    """`total`: entities in the whole memory."""

    entities: list[KnownEntity]
    facts: list[str]
    total: int
    left_out: str | None


class Forgotten(BaseModel, frozen=True):
    """How many documents were there and are gone now."""

    removed: int


def recalled(found: Found) -> Recalled:
    cut = sum(len(passage.text) > TEXT_CHARS_MAX for passage in found.passages)
    left = [f"{cut} passages are cut at {TEXT_CHARS_MAX:,} characters"] if cut else []
    return Recalled(
        passages=[_passage(passage) for passage in found.passages],
        facts=_facts(found.facts, left),
        left_out="; ".join(left) or None,
    )


def _passage(passage: Passage) -> RecalledPassage:
    return RecalledPassage(
        text=_short(passage.text, TEXT_CHARS_MAX),
        id=passage.document_id,
        distance=round(passage.distance, 4),
        name=None if passage.name is None else _short(passage.name),
        group=passage.group.id if passage.group else None,
        entities=[_short(entity.name) for entity in passage.entities[:ENTITIES_OF_PASSAGE_MAX]],
    )


def known(graph: Graph, limit: int) -> Known:
    left = [f"{len(graph.entities) - limit} more entities near these"] if len(graph.entities) > limit else []
    entities = [
        KnownEntity(
            name=_short(entity.name),
            kind=_short(entity.kind),
            mentions=entity.mention_count,
            document_ids=list(entity.document_ids[:DOCUMENTS_OF_ENTITY_MAX]),
        )
        for entity in graph.entities[:limit]
    ]
    if any(len(entity.document_ids) > DOCUMENTS_OF_ENTITY_MAX for entity in graph.entities[:limit]):
        left.append(f"of each entity {DOCUMENTS_OF_ENTITY_MAX} document ids are listed")
    return Known(
        entities=entities,
        facts=_facts(graph.facts(), left),
        total=graph.stats.entity_count,
        left_out="; ".join(left) or None,
    )


def _facts(facts: Sequence[Fact], left: list[str]) -> list[str]:
    """The heaviest as lines; what is left out is added to `left`."""
    if len(facts) > FACTS_MAX:
        left.append(f"{len(facts) - FACTS_MAX} facts")
    heaviest = sorted(facts, key=lambda fact: -fact.weight)[:FACTS_MAX]
    return [" — ".join(_short(part) for part in (fact.subject, fact.predicate, fact.object)) for fact in heaviest]


def _short(text: str, limit: int = NAME_CHARS_MAX) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
