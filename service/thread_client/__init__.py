"""A Thread node from Python: `Client` waits for each answer, `AsyncClient` is awaited.

    with Client(owner_id="me") as memory:
        memory.remember("Ada Quill keeps the Tidal Ledger.", facts=[("Ada Quill", "keeps", "Tidal Ledger")])
        for passage in memory.search("Who keeps the ledger?").passages:
            print(passage.distance, passage.text)

Nothing here needs the rest of the node: httpx and msgspec are all it imports.
"""

from __future__ import annotations

from thread_client.answers import (
    Documents,
    Entity,
    Fact,
    Filed,
    FiledDocument,
    Found,
    Graph,
    GraphEntity,
    Health,
    Library,
    LibraryGroup,
    Passage,
    Relationship,
    Removed,
    StoredDocument,
)
from thread_client.calls import Document, EntityIn, Group
from thread_client.client import AsyncClient, Client
from thread_client.errors import (
    Busy,
    FieldError,
    IndexMismatch,
    InvalidRequest,
    NodeError,
    NodeFailed,
    NotANode,
    NotAuthorised,
    NotFound,
    NotReady,
    StorageFull,
    TooLarge,
    Unreachable,
)
from thread_client.retries import Retries

__all__ = [
    "AsyncClient",
    "Busy",
    "Client",
    "Document",
    "Documents",
    "Entity",
    "EntityIn",
    "Fact",
    "FieldError",
    "Filed",
    "FiledDocument",
    "Found",
    "Graph",
    "GraphEntity",
    "Group",
    "Health",
    "IndexMismatch",
    "InvalidRequest",
    "Library",
    "LibraryGroup",
    "NodeError",
    "NodeFailed",
    "NotANode",
    "NotAuthorised",
    "NotFound",
    "NotReady",
    "Passage",
    "Relationship",
    "Removed",
    "Retries",
    "StorageFull",
    "StoredDocument",
    "TooLarge",
    "Unreachable",
]
