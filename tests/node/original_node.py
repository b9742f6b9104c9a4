"""A data directory as a node of the original kind leaves it: binary property lists, from what is known of it."""

from __future__ import annotations

import plistlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thread_service.text.ids import decimal_hash, entity_id, predicate_id, relationship_id

NODE = "1B4E28BA-2FA1-11D2-883F-0016D3CCA427"
FILED_AT = datetime(2025, 3, 4, 5, 6, 7)


@dataclass
class OriginalNode:
    """What such a node keeps; `write` leaves it in a directory."""

    files: dict[str, Any] = field(default_factory=dict)
    indexes: dict[str, Any] = field(default_factory=dict)
    entities: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: dict[str, dict[str, Any]] = field(default_factory=dict)
    registry: dict[str, Any] = field(
        default_factory=lambda: {
            "ownerDocuments": {},
            "documentOwners": {},
            "documentGroups": {},
            "ownerPrimaryGroups": {},
            "ownerGroups": {},
            "groupOwner": {},
            "groupDocuments": {},
            "groupAccess": {},
            "documentAccess": {},
            "availableDocuments": [],
            "availableGroups": [],
            "documentStats": {},
        }
    )

    def group(self, owner: str, id: str, *, access: str = "restricted", **more: Any) -> None:
        entry = {"id": id, "label": more.pop("label", id), "owner": owner, "metadata": more}
        self.registry["ownerGroups"].setdefault(owner, []).append(entry)
        self.registry["groupOwner"][id] = owner
        self.registry["groupAccess"][id] = access

    def file(
        self,
        owner: str,
        id: str,
        *texts: str,
        groups: tuple[str, ...] = (),
        access: str = "restricted",
        name: str | None = None,
        metadata: bytes | None = None,
        media_type: str = "text",
        entities: tuple[tuple[str, str], ...] = (),
        edges: tuple[tuple[tuple[str, str], str, tuple[str, str]], ...] = (),
        vectors: tuple[NDArray[np.float32] | None, ...] = (),
        urls: tuple[str | None, ...] = (),
    ) -> None:
        address = {"relative": f"file:///data/documents/{id}"}
        record = {"id": id, "url": address, "owner_id": owner, "name": name, "created_at": FILED_AT}
        self.files[f"documents/{id}"] = {key: value for key, value in record.items() if value is not None}
        parts = []
        for number, text in enumerate(texts):
            part: dict[str, Any] = {"id": decimal_hash(f"{number}{id}".encode()), "media_type": media_type}
            part |= {"data": text, "ownerId": owner, "url": address}
            if number < len(vectors) and (vector := vectors[number]) is not None:
                part["embedding"] = vector.astype("<f4").tobytes()
            if number < len(urls) and urls[number] is not None:
                part["url"] = {"relative": urls[number]}
            parts.append(part)
        self.files[f"documents/{id}-parts"] = parts
        quantizer = {"numSubvectors": 16, "codebookSize": 2, "codebooks": [[[0.5, 0.25]]], "adaptiveThreshold": 8.0}
        slots = [{"id": part["id"], "document": id, "codes": [0] * 16} for part in parts]
        ids = [entity_id(kind, spelled) for spelled, kind in entities]
        self.indexes[id] = {"quantizer": quantizer, "slots": slots, "entity_ids": ids}
        if metadata is not None:
            self.indexes[id]["metadata"] = metadata
        for (spelled, kind), key in zip(entities, ids, strict=True):
            entity = {"id": key, "name": spelled, "kind": kind, "documentIds": [], "mentionCount": 0}
            self.entities.setdefault(key, entity)["documentIds"].append(id)
        for (subject, kind), predicate, (object_, object_kind) in edges:
            ends = entity_id(kind, subject), entity_id(object_kind, object_)
            key = relationship_id(ends[0], predicate, ends[1])
            edge = {"id": key, "subjectId": ends[0], "predicate": predicate, "objectId": ends[1], "weight": 1}
            self.edges.setdefault(key, {**edge, "documentIds": []})["documentIds"].append(id)
        self.registry["documentAccess"][id] = access
        self.registry["documentOwners"].setdefault(id, []).append(owner)
        self.own(owner, id, *groups)

    def own(self, owner: str, id: str, *groups: str) -> None:
        """Another owner of a document, or the first one."""
        self.registry["ownerDocuments"].setdefault(owner, []).append(id)
        if owner not in self.registry["documentOwners"][id]:
            self.registry["documentOwners"][id].append(owner)
        for group in groups:
            self.registry["documentGroups"].setdefault(id, []).append(group)
            self.registry["groupDocuments"].setdefault(group, []).append(id)
            self.registry["ownerPrimaryGroups"].setdefault(owner, {})[id] = group

    def write(self, path: Path) -> Path:
        (path / "documents").mkdir(parents=True)
        (path / "node-id").write_text(NODE)
        predicates = {edge["predicate"] for edge in self.edges.values()}
        graph = {
            "entities": [*self.entities.values()],
            "relationships": [*self.edges.values()],
            "predicates": [{"id": predicate_id(each), "name": each, "relationshipCount": 1} for each in predicates],
        }
        whole = {
            **self.files,
            f"table-{NODE}": {"keys": [*self.indexes], "indexes": self.indexes},
            f"graph-{NODE}": graph,
            f"registry-{NODE}": self.registry,
            f"embedder-{NODE}": {"vectorSpace": "mistral-embed@1024", "model": "mistral-embed", "stampedAt": FILED_AT},
        }
        for name, value in whole.items():
            (path / name).write_bytes(plistlib.dumps(value, fmt=plistlib.FMT_BINARY))
        return path
