"""A data directory of the original kind as records: property lists, one for each document and its texts, and of a node
its registry, its table and its graph.

What cannot be read is noted, item by item, and everything else is taken. Vectors of the original's model are gone (it
keeps codes only), so texts are embedded again; vectors that callers brought are kept bit for bit. What the registry
does not know was removed or cleared, and stays behind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thread_service.errors import InvalidRequest
from thread_service.node.moving import original_graph, original_registry, plists
from thread_service.node.moving.original_graph import OriginalGraph
from thread_service.node.moving.original_parts import read_parts
from thread_service.node.moving.original_registry import Registry
from thread_service.node.moving.plists import Unreadable, entries, pick, text, texts
from thread_service.node.moving.records import Document, Group, Owner, Policy, Unread
from thread_service.node.operations import Access, owner_id
from thread_service.store.verification import Progress

_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_SUFFIX = "-parts"


@dataclass(slots=True)
class _Index:
    """What the table has of a document: ids of its entities, None when it does not say, and its metadata."""

    entity_ids: list[str] | None
    metadata: bytes


@dataclass(slots=True)
class Original:
    """A data directory of the original. `unread`: what could not be read of it until now."""

    path: Path
    node_id: str
    unread: list[Unread] = field(default_factory=list)

    def note(self, unread: Unread) -> None:
        self.unread.append(unread)

    def noted(self) -> Iterator[Unread]:
        noted, self.unread = self.unread, []
        yield from noted

    def records(self, progress: Progress) -> Iterator[Owner | Group | Policy | Document | Unread]:
        """Everything that can be read, in the order in which it can be filed."""
        progress("reading the registry, the table and the graph")
        files = self._files()
        table = self._table()
        registry = self._registry({*files, *table})
        graph = original_graph.read(self._load(f"graph-{self.node_id}", {}), self.note, f"graph-{self.node_id}")
        if policy := self._policy():
            yield policy
        yield from (Owner(owner) for owner in registry.owned)
        yield from registry.group_records()
        yield from self.noted()
        progress("documents")
        ids = registry.documents
        for number, id in enumerate(ids, 1):
            yield from self._document(id, registry, graph, table.get(id))
            yield from self.noted()
            progress("documents", number / len(ids))

    def _load(self, name: str, default: Any) -> Any:
        try:
            return plists.load(self.path / name)
        except Unreadable as error:
            self.note(Unread(name, str(error)))
            return default

    def _policy(self) -> Policy | None:
        name = "graph-extraction-policy"
        if not (self.path / name).exists():
            return None
        return original_graph.read_policy(self._load(name, None), self.note, name)

    def _files(self) -> set[str]:
        """Names of the documents' own files, which are their ids."""
        try:
            with os.scandir(self.path / "documents") as found:
                names = {entry.name for entry in found if entry.is_file(follow_symlinks=False)}
        except OSError as error:
            self.note(Unread("documents", f"cannot be read: {error.strerror}"))
            return set()
        # An id may end like the name of another's texts.
        return {
            name
            for name in names
            if not name.endswith(_SUFFIX) or name.removesuffix(_SUFFIX) not in names or name + _SUFFIX in names
        }

    def _table(self) -> dict[str, _Index]:
        name = f"table-{self.node_id}"
        if not (self.path / name).exists():
            self.note(Unread(name, "is missing: metadata and entities of documents are not there"))
            return {}
        value = self._load(name, {})
        if not isinstance(value, dict):
            self.note(Unread(name, "is no dictionary"))
            return {}
        keys = texts(pick(value, "keys"))
        found: dict[str, _Index] = {}
        for key, each in value.items():
            if plists.letters(str(key)) == "keys":
                continue
            indexes = [*entries(each)]
            if indexes and len(indexes) == len(keys) and all(id is None for id, _ in indexes):
                indexes = list(zip(keys, (index for _, index in indexes), strict=True))
            for id, index in indexes:
                if isinstance(index, dict) and (known := id if id is not None else _document_of(index)) is not None:
                    found[known] = self._index(name, known, index)
        return found

    def _index(self, name: str, id: str, index: dict[str, Any]) -> _Index:
        metadata = pick(index, "metadata")
        if metadata is not None and not isinstance(metadata, bytes):
            self.note(Unread(name, f"metadata of document {id[:80]!a} is no data"))
            metadata = None
        listed = pick(index, "entityids")
        return _Index(texts(listed) if isinstance(listed, list) else None, metadata or b"")

    def _registry(self, known: set[str]) -> Registry:
        for name in (f"registry-{self.node_id}", "registry"):
            if not (self.path / name).exists():
                continue
            try:
                value = plists.load(self.path / name)
            except Unreadable as error:
                self.note(Unread(name, str(error)))
                break
            registry = original_registry.read(value, known, self.note, name)
            if registry.owned or not known:
                return registry
            self.note(Unread(name, "names no owner of a document"))
            break
        else:
            self.note(Unread(f"registry-{self.node_id}", "is missing"))
        return self._without_registry(known)

    def _without_registry(self, known: Iterable[str]) -> Registry:
        """Each document is its depositor's, restricted, in no group."""
        registry = Registry()
        for id in sorted(known):
            try:
                record = plists.load(self.path / "documents" / id) if "/" not in id else None
            except Unreadable:
                record = None
            registry.own(text(pick(record, "ownerid")) or self._own_owner, id)
        self.note(
            Unread("registry", "every document is its depositor's alone, restricted and in no group, also removed ones")
        )
        return registry

    @property
    def _own_owner(self) -> str:
        return f"{self.node_id}-thread"

    # ------------------------------------------------------------------------------------------ documents

    def _document(self, id: str, registry: Registry, graph: OriginalGraph, index: _Index | None) -> Iterator[Document]:
        name = f"documents/{id[:200]}"
        if "/" in id or id in ("", ".", ".."):
            self.note(Unread(name, "is no name of a file; the document is left out"))
            return
        record = self._load(f"documents/{id}", {})
        parts = read_parts(
            self._load(f"documents/{id}{_SUFFIX}", []), text(pick(record, "url")), self.note, f"{name}{_SUFFIX}"
        )
        if not parts:
            self.note(Unread(name, "no text of it can be read; it is left out"))
            return
        brought = [part.vector for part in parts]
        urls = [part.url for part in parts]
        said = graph.said_of(id, None if index is None else index.entity_ids, [part.text for part in parts])
        owners = registry.owners[id]
        access = self._access(id, owners, text(pick(record, "ownerid")), registry)
        for owner in owners:
            groups = sorted(group for group in registry.groups[id] if registry.group_owner.get(group) == owner)
            primary = registry.primary.get((owner, id))
            yield Document(
                owner=owner,
                id=id,
                access=access[owner],
                created_at=self._created_at(name, pick(record, "createdat")),
                texts=[part.text for part in parts],
                media_type=parts[0].media_type,
                name=text(pick(record, "name")) or None,
                metadata=b"" if index is None else index.metadata,
                groups=groups,
                primary_group=primary if primary in groups else (groups[0] if groups else None),
                urls=urls if any(urls) else None,
                vectors=brought if any(vector is not None for vector in brought) else None,
                graph=said,
            )

    def _access(self, id: str, owners: list[str], depositor: str | None, registry: Registry) -> dict[str, Access]:
        """Of each owner's document: what was available by its depositor, or by an owner's available group."""
        restricted: dict[str, Access] = dict.fromkeys(owners, "restricted")
        if registry.access.get(id) != "available":
            return restricted
        open_by = {
            owner
            for owner in owners
            if owner == owner_id(depositor or "")
            or any(
                registry.group_owner.get(group) == owner and registry.group_access.get(group) == "available"
                for group in registry.groups[id]
            )
        }
        return {**restricted, **dict.fromkeys(open_by or owners, "available")}

    def _created_at(self, name: str, value: Any) -> int:
        if isinstance(value, datetime):
            return int(value.replace(tzinfo=UTC).timestamp())
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**40:
            return int(value)
        self.note(Unread(name, "does not say when it was filed; it counts as filed in 1970"))
        return 0


def find(path: Path, node_id: str | None) -> Original:
    """The data directory of a node: `node_id`, else the one in its file, else the only one. InvalidRequest: none."""
    try:
        names = os.listdir(path)
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read: {error.strerror}") from None
    present = {
        name.partition("-")[2].upper()
        for name in names
        if name.partition("-")[0] in ("table", "registry", "graph") and _UUID.fullmatch(name.partition("-")[2])
    }
    stored = ""
    if "node-id" in names:
        stored = (path / "node-id").read_bytes()[:64].decode("utf-8", "replace").strip().upper()
    chosen = (node_id or "").upper() or (stored if stored in present else "")
    if not chosen and len(present) == 1:
        [chosen] = present
    if chosen not in present:
        which = ", ".join(sorted(present)) or "none"
        raise InvalidRequest(f"{path} holds no such node of the original kind; nodes here: {which} (see --node-id)")
    return Original(path, chosen)


def _document_of(index: dict[str, Any]) -> str | None:
    """The document that the slots of an index name."""
    slots = pick(index, "slots")
    first = slots[0] if isinstance(slots, list) and slots else None
    return text(pick(first, "document", "documentid")) or text(pick(index, "id", "documentid"))
