"""The JSON bodies of graph administration and of the policy. As in `schemas`."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from thread_service.wire import limits
from thread_service.wire.schemas import Description, Name

Key = Annotated[str, Meta(min_length=1, max_length=limits.ID_BYTES_MAX)]
Word = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS_MAX)]


class Caller(Struct):
    """Whose contributions are changed."""

    owner_id: Key


class RenameEntityRequest(Struct):
    thread: Caller
    id: Key
    name: Word


class SetKindRequest(Struct):
    thread: Caller
    id: Key
    kind: Word


class MergeEntitiesRequest(Struct, rename={"from_id": "from"}):
    """What the caller's documents say of `from` they say of `into` from now on."""

    thread: Caller
    from_id: Key
    into: Key


class DeleteRequest(Struct):
    thread: Caller
    id: Key


class ReExtractRequest(Struct):
    thread: Caller
    document_id: Key


class EditAnswer(Struct, kw_only=True):
    """`success`: there was such an entity among what the caller's documents say. `surviving_id`: its id now."""

    success: bool
    surviving_id: str | UnsetType = UNSET


class ReExtractAnswer(Struct):
    """`success`: something was found in the document's texts. `entity_count`: how much."""

    success: bool
    entity_count: int


# ---------------------------------------------------------------------------------------------------- policy


class Kind(Struct):
    name: Name
    description: Description = ""


class CoMention(Struct, rename="camel"):
    enabled: bool
    predicate: Name = "appears with"
    skip_explicitly_linked: bool = True


Aliases = Annotated[dict[str, Name], Meta(max_length=limits.ALIASES_MAX)]
HubDegreeCap = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Policy(Struct, kw_only=True):
    """How a graph is made of what is filed from now on. What may be left out counts as none when it is."""

    kinds: Annotated[list[Kind], Meta(max_length=limits.KINDS_MAX)]
    prompt_template: Description | UnsetType | None = UNSET
    predicate_aliases: Aliases
    max_entities: Annotated[int, Meta(ge=0, le=limits.ENTITIES_MAX)]
    max_relationships: Annotated[int, Meta(ge=0, le=limits.RELATIONSHIPS_MAX)]
    co_mention: CoMention | UnsetType | None = UNSET
    hub_degree_cap: HubDegreeCap | UnsetType | None = UNSET
