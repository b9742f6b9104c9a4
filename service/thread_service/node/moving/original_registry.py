"""Who owns what, who reads what and what lies in which group, from the original's registry.

The maps of a registry are told apart by what they hold, not only by their names: which keys and which values are ids of
documents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from thread_service.node.moving.plists import entries, letters, pick, text, texts
from thread_service.node.moving.records import Group, Unread
from thread_service.node.operations import Access, owner_id

_ACCESS = {"available", "restricted", "unknown"}


@dataclass(slots=True)
class Registry:
    """Owners are trimmed and lower-cased. `owners` and `groups` are of a document; `owned`: the owners in their order,
    with their documents in theirs; `primary`: of (owner, document); `group_owner` and `entries`: of a group."""

    owned: dict[str, list[str]] = field(default_factory=dict)
    owners: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    groups: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    primary: dict[tuple[str, str], str] = field(default_factory=dict)
    group_owner: dict[str, str] = field(default_factory=dict)
    labels: dict[str, tuple[str, str | None, list[str]]] = field(default_factory=dict)
    access: dict[str, Access] = field(default_factory=dict)
    group_access: dict[str, Access] = field(default_factory=dict)

    @property
    def documents(self) -> list[str]:
        """Ids of everything that somebody owns, in the order of owners."""
        return list(dict.fromkeys(id for ids in self.owned.values() for id in ids))

    def own(self, owner: str, document: str) -> None:
        owned = self.owned.setdefault(owner_id(owner), [])
        if owner_id(owner) not in self.owners[document]:
            self.owners[document].append(owner_id(owner))
            owned.append(document)

    def put(self, group: str, document: str) -> None:
        if group not in self.groups[document]:
            self.groups[document].append(group)

    def group_records(self) -> list[Group]:
        known = dict.fromkeys([*self.group_owner, *self.labels])
        found: list[Group] = []
        for group in known:
            label, description, tags = self.labels.get(group, ("", None, []))
            owner = self.group_owner.get(group)
            if owner is not None:
                access = self.group_access.get(group, "restricted")
                found.append(Group(owner, group, label, description, sorted({*tags}), access))
        return found


def read(value: Any, known: Collection[str], note: Callable[[Unread], None], name: str) -> Registry:
    """`known`: ids of documents that have files or an index. What is not understood is noted."""
    registry = Registry()
    if not isinstance(value, dict):
        note(Unread(name, "is no dictionary"))
        return registry
    ids = set(known)
    for key, each in value.items():
        if not _take(registry, letters(str(key)), each, ids):
            note(Unread(name, f"{str(key)[:80]!a} is not understood and was left out"))
    return registry


def _take(registry: Registry, key: str, value: Any, ids: set[str]) -> bool:
    """Take up one map; whether it is one that is known."""
    if "stats" in key or "version" in key or (isinstance(value, list) and "available" in key):
        return True  # nothing that is kept, or said elsewhere too
    found = [(name, each) for name, each in entries(value) if name is not None]
    if not found:
        return isinstance(value, dict | list) and not value
    values = [each for _, each in found]
    if all(isinstance(each, str) for each in values):
        return _take_strings(registry, key, found, ids)
    if all(isinstance(each, list) and all(isinstance(item, dict) for item in each) for each in values) and any(values):
        _take_entries(registry, found)
    elif all(isinstance(each, dict) for each in values):
        if "primary" not in key and "group" not in key:
            return False
        for owner, by_document in found:
            for document, group in entries(by_document):
                if document is not None and (place := text(group)) is not None:
                    registry.primary[owner_id(owner), document] = place
    elif all(isinstance(each, list) for each in values):
        _take_lists(registry, key, [(name, texts(each)) for name, each in found], ids)
    else:
        return False
    return True


def _take_strings(registry: Registry, key: str, found: list[tuple[str, Any]], ids: set[str]) -> bool:
    if {each for _, each in found} <= _ACCESS and "owner" not in key:
        is_of_groups = "group" in key if not _mostly([name for name, _ in found], ids) else False
        target = registry.group_access if is_of_groups else registry.access
        target.update((name, "available" if each == "available" else "restricted") for name, each in found)
    elif "group" in key or "owner" in key:
        registry.group_owner.update((name, owner_id(each)) for name, each in found if text(each) is not None)
    else:
        return False
    return True


def _take_lists(registry: Registry, key: str, found: list[tuple[str, list[str]]], ids: set[str]) -> None:
    """Documents of an owner or a group, or owners or groups of a document."""
    is_of_groups = "group" in key
    by_document = _mostly([name for name, _ in found], ids)
    if not by_document and not _mostly([each for _, values in found for each in values], ids):
        by_document = key.startswith("document")
    for name, values in found:
        if not by_document and not is_of_groups:
            registry.owned.setdefault(owner_id(name), [])
        for value in values:
            outer, document = (value, name) if by_document else (name, value)
            if is_of_groups:
                registry.put(outer, document)
            else:
                registry.own(outer, document)


def _take_entries(registry: Registry, found: list[tuple[str, Any]]) -> None:
    """Groups by owner: id, label, owner, metadata {description, tags}."""
    for owner, groups in found:
        for each in groups:
            group = text(pick(each, "id", "groupid"))
            if group is None:
                continue
            metadata = pick(each, "metadata") or each
            description = text(pick(metadata, "description"))
            registry.labels[group] = (
                text(pick(each, "label", "name")) or "",
                description or None,
                texts(pick(metadata, "tags")),
            )
            registry.group_owner.setdefault(group, owner_id(text(pick(each, "ownerid", "owner")) or owner))


def _mostly(names: list[str], ids: set[str]) -> bool:
    return bool(names) and 2 * sum(name in ids for name in names) >= len(names)
