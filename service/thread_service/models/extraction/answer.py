"""How the reply of an instruct model is read.

The reply is the text of a stranger's program about the text of a stranger: of it counts only what has the form that was
asked for, within the bounds of the policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from thread_service.models.extraction.interface import Entity, Found, Relationship
from thread_service.models.extraction.prompt import entities_max, relationships_max
from thread_service.text.ids import DEFAULT_KIND, normalise_kind
from thread_service.text.policy import Policy
from thread_service.text.resolution import resolution_key

NAME_CHARACTERS_MAX = 512
"""Of a longer name or predicate it is not a name."""


class InvalidAnswer(Exception):
    """The reply is not what was asked for. `str(error)` names what is wrong, for the model to read too."""


def parse(reply: str, policy: Policy) -> Found:
    """What the outermost braces of the reply say; prose and fences around them are passed over.

    Blank names are dropped, kinds that are not the policy's become `concept`, of an entity listed twice counts the
    first; relationships count when both ends are listed, each once. Raises InvalidAnswer.
    """
    start, end = reply.find("{"), reply.rfind("}")
    if start < 0 or end < start:
        raise InvalidAnswer("it holds no JSON object")
    try:
        said: Any = msgspec.json.decode(reply[start : end + 1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidAnswer(f"it is not valid JSON ({error})") from None
    listed = said.get("entities")
    if not isinstance(listed, list):
        raise InvalidAnswer('it has no list called "entities"')
    edges = said.get("relationships") or []
    if not isinstance(edges, list):
        raise InvalidAnswer('"relationships" is not a list')
    named = [pair for pair in map(_entity, listed) if pair is not None]
    if listed and not named:
        raise InvalidAnswer('no element of "entities" has a "name" that is text')
    collected = _Collected()
    allowed = {kind.name for kind in policy.kinds}
    for name, kind in named:
        if len(collected.entities) == entities_max(policy):
            break
        collected.add(Entity(name, kind if kind in allowed else DEFAULT_KIND))
    by_name = {resolution_key(entity.name): index for index, entity in enumerate(collected.entities)}
    for edge in edges:
        if len(collected.relationships) == relationships_max(policy):
            break
        ends = [by_name.get(resolution_key(_text(edge, end))) for end in ("subject", "object")]
        predicate = policy.canonical(_text(edge, "predicate"))
        if predicate and ends[0] is not None and ends[1] is not None:
            collected.link(ends[0], predicate, ends[1])
    return collected.found


def merged(parts: Iterable[Found]) -> Found:
    """What the windows of one document say together: names that are one are written as they were first."""
    collected = _Collected()
    for part in parts:
        places = [collected.add(entity) for entity in part.entities]
        for edge in part.relationships:
            collected.link(places[edge.subject], edge.predicate, places[edge.object])
    return collected.found


class _Collected:
    """Entities and relationships, each once, in the order in which they came."""

    def __init__(self) -> None:
        self.entities: list[Entity] = []
        self.relationships: dict[Relationship, None] = {}
        self._places: dict[tuple[str, str], int] = {}

    def add(self, entity: Entity) -> int:
        place = self._places.setdefault((entity.kind, resolution_key(entity.name)), len(self.entities))
        if place == len(self.entities):
            self.entities.append(entity)
        return place

    def link(self, subject: int, predicate: str, object_: int) -> None:
        if subject != object_:
            self.relationships[Relationship(subject, predicate, object_)] = None

    @property
    def found(self) -> Found:
        return Found(tuple(self.entities), tuple(self.relationships))


def _entity(element: Any) -> tuple[str, str] | None:
    """(name, normalised kind) of an element that has a name. Some models list bare names."""
    name = element.strip() if isinstance(element, str) else _text(element, "name")
    if not name or len(name) > NAME_CHARACTERS_MAX:
        return None
    return name, normalise_kind(_text(element, "kind"))


def _text(element: Any, member: str) -> str:
    """Trimmed; empty where there is no such text, or one that is too long."""
    value = element.get(member) if isinstance(element, dict) else None
    return value.strip() if isinstance(value, str) and len(value) <= NAME_CHARACTERS_MAX else ""
