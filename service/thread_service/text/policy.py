"""The policy of extraction: what a text may say about the graph, and what is made of what it says.

One policy for the whole node. It affects what is filed from then on, and nothing that is filed already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thread_service.text.ids import normalise_predicate

AUTOMATIC = "auto:"
"""What the predicates of edges begin with that nobody said."""

HUB_DEGREE_CAP = 24


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entity that an extractor may use, and what belongs to it."""

    name: str
    description: str = ""


KINDS = (
    Kind("person", "a human being, real or fictional"),
    Kind("organization", "a company, institution, team or other group of people"),
    Kind("place", "a location, building, region or country"),
    Kind("event", "something that happens at a time"),
    Kind("work", "a book, article, product, program or other thing that was made"),
    Kind("concept", "an idea, topic, method or technical term"),
    Kind("other", "anything that is worth naming and is none of these"),
)


@dataclass(frozen=True, slots=True)
class CoMention:
    """Edges between all entities of one document. `skip_explicitly_linked`: not between two that it links itself."""

    enabled: bool = False
    predicate: str = "appears with"
    skip_explicitly_linked: bool = True

    @property
    def edge_predicate(self) -> str:
        return AUTOMATIC + normalise_predicate(self.predicate)


@dataclass(frozen=True, slots=True)
class Policy:
    """`kinds`, `prompt_template` (None: the program's own) and `max_relationships` tell an instruct model what to look
    for. `max_entities` bounds what is found in one document, by a model (in each window of a long one) or as keywords.

    `predicate_aliases`: alias → what is stored for it, both normalised. `hub_degree_cap`: an entity with that many
    edges is a hub, which gets no more edges by co-mention; None: there are no hubs.
    """

    kinds: tuple[Kind, ...] = KINDS
    prompt_template: str | None = None
    predicate_aliases: Mapping[str, str] = field(default_factory=dict)
    max_entities: int = 12
    max_relationships: int = 15
    co_mention: CoMention | None = CoMention()
    hub_degree_cap: int | None = HUB_DEGREE_CAP

    def canonical(self, predicate: str) -> str:
        """The predicate that is stored for one that was said; what begins with `auto:` is nobody's alias."""
        said = normalise_predicate(predicate)
        return said if said.startswith(AUTOMATIC) else self.predicate_aliases.get(said, said)
