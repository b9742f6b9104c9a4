"""One example body for each request of the HTTP interface, shown in the OpenAPI document and tested to be accepted."""

from __future__ import annotations

from typing import Any

BATCH: dict[str, Any] = {
    "inputs": ["Ada Quill keeps the Tidal Ledger in the harbour office.", ["First chunk.", "Second chunk."]],
    "thread": {
        "owner_id": "ada",
        "group": {"id": "notes", "label": "Notes", "owner_id": "ada", "access": "restricted"},
    },
    "names": ["harbour.md"],
    "metadata": ["eyJwYWdlIjogM30="],
    "entities": [[{"name": "Ada Quill", "kind": "person"}, {"name": "Tidal Ledger", "kind": "work"}]],
    "relationships": [[{"subject": "Ada Quill", "predicate": "keeps", "object": "Tidal Ledger"}]],
    "wait": True,
}

SEARCH: dict[str, Any] = {
    "query": "who keeps the Tidal Ledger?",
    "thread": {"owner_id": "ada", "scope": "personal", "top_k": 5, "media_type": "text"},
}

GRAPH: dict[str, Any] = {"thread": {"owner_id": "ada"}, "entity": "Ada Quill", "hops": 1, "limit": 20}

LIBRARY: dict[str, Any] = {"owner_id": "ada", "include_available": True}

LIBRARY_DOCUMENT: dict[str, Any] = {"document_id": "harbour-1", "owner_id": "ada"}

DOCUMENTS: dict[str, Any] = {"owner_id": "ada", "document_ids": ["harbour-1"], "include_embeddings": True}

EXPORT: dict[str, Any] = {"owner_id": "ada", "document_id_prefix": "harbour-", "after_id": "harbour-1", "limit": 200}

UPDATE_GROUP: dict[str, Any] = {
    "owner_id": "ada",
    "group_id": "notes",
    "access": "available",
    "label": "Harbour notes",
    "group_description": "What was found in the harbour office.",
    "tags": ["harbour"],
    "update_metadata": True,
}

UPDATE_DOCUMENT: dict[str, Any] = {"owner_id": "ada", "document_id": "harbour-1", "group_id": "notes"}

REMOVE: dict[str, Any] = {"owner_id": "ada", "document_ids": ["harbour-1"]}

CLEAR: dict[str, Any] = {"confirm": True}

AVAILABILITY: dict[str, Any] = {"accepting_storage": False}
