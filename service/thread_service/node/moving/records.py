"""What a node holds, record by record: one line of JSON each.

The order is header, policy, owners, groups, documents (each in the order in which they came), end. A record needs
nothing that comes after it. What can be found again by itself is left out: vectors of the model, words, links by name.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from thread_service.node.operations import Access, MediaType
from thread_service.store.pending import KeptGraph, SaidGraph
from thread_service.text.policy import CoMention, Kind

VERSION = 1
Seconds = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class Header(msgspec.Struct, frozen=True, tag_field="type", tag="thread-export"):
    """`node_id`: what an empty data directory takes over."""

    version: int
    node_id: str


class Policy(msgspec.Struct, frozen=True, tag_field="type", tag="policy"):
    """See `text.policy.Policy`."""

    kinds: list[Kind]
    prompt_template: str | None
    predicate_aliases: dict[str, str]
    max_entities: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    max_relationships: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    co_mention: CoMention | None
    hub_degree_cap: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None


class Owner(msgspec.Struct, frozen=True, tag_field="type", tag="owner"):
    id: str


class Group(msgspec.Struct, frozen=True, tag_field="type", tag="group"):
    owner: str
    id: str
    label: str
    description: str | None
    tags: list[str]
    access: Access


class Document(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="document"):
    """`vectors`: what callers brought, one entry for each text, little-endian float32; None for those that the model
    embeds. `groups`: ids of the owner's groups; `group_tags`: what the document adds to the tags of each.

    `graph`: what an indexed document asserts; `waiting`: what was said of one that is not indexed. Neither: nothing.
    `is_named` False: its name is one for people only.
    """

    owner: str
    id: str
    access: Access
    created_at: Seconds
    texts: list[str]
    media_type: MediaType = "text"
    name: str | None = None
    is_named: bool = True
    metadata: bytes = b""
    groups: list[str] = []
    primary_group: str | None = None
    group_tags: dict[str, list[str]] = {}
    urls: list[str | None] | None = None
    vectors: list[bytes | None] | None = None
    graph: KeptGraph | None = None
    waiting: SaidGraph | None = None


class End(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    """How many records of each kind there are before it."""

    owners: int
    groups: int
    documents: int


Record = Header | Policy | Owner | Group | Document | End
"""Decoded, any of them; a line that is none of them is a `msgspec.DecodeError`."""


class Line(msgspec.Struct, frozen=True):
    """A record, and the number of the line that it stands on."""

    number: int
    record: Record


class Unread(msgspec.Struct, frozen=True):
    """Something that could not be read, or not be filed: which, and why."""

    item: str
    what: str
