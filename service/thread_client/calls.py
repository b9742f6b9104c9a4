"""What can be asked of a node: each operation as a function from its arguments to the request, once for both clients.

The first argument of each is the owner, whom the client fills in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from thread_client import answers
from thread_client.errors import FieldError, InvalidRequest

T = TypeVar("T")

MediaType = Literal["text", "image", "code"]
Access = Literal["available", "restricted"]
FactIn = tuple[str, str, str]
"""Subject, predicate and object; the two ends are names of entities."""


class EntityIn(msgspec.Struct, frozen=True):
    """`kind`: any word, `concept` when there is none."""

    name: str
    kind: str = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group to file into, made when it is not there. `access`: of the group and of everything in it."""

    id: str
    label: str = ""
    access: Access | None = None
    description: str | None = None
    tags: Sequence[str] | None = None


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What to file. `texts`: one, or several passages in order.

    `id`: filed again under the same one, the document is replaced; without, it is the SHA-256 of the texts.
    `entities`, `facts`: what the texts say, where known; without `entities` the node looks for itself. An end
    of a fact that is not among `entities` becomes one, of kind `concept`.
    """

    texts: str | Sequence[str]
    id: str | None = None
    name: str | None = None
    entities: Sequence[EntityIn | str] | None = None
    facts: Sequence[FactIn] = ()
    metadata: bytes | None = None


class Call(Generic[T]):
    """One request. `read` makes the result of the answer's body. `takes_long`: until documents can be searched."""

    def __init__(
        self, path: str, body: Any, read: Callable[[bytes], T], *, method: str = "POST", takes_long: bool = False
    ) -> None:
        self.method = method
        self.path = path
        self.body = body
        self.read = read
        self.takes_long = takes_long


def _reads(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(kind).decode


# ------------------------------------------------------------------------------------------------------ filing


def file(
    owner_id: str,
    documents: Iterable[Document],
    *,
    group: Group | str | None = None,
    wait: bool = True,
    cut: bool = True,
    media_type: MediaType = "text",
) -> Call[answers.Filed]:
    """File documents, all of them or, when the node refuses, none.

    Returned when they are on the node's disk and, with `wait`, can be searched. `cut`: texts longer than the node's
    passages (1,200 characters) are cut at paragraphs and sentences; without, each text stays one passage.
    """
    sent = list(documents)
    for index, item in enumerate(sent):
        _check(item, f"documents[{index}].")
    body = {
        "thread": {"owner_id": owner_id, **({} if group is None else {"group": _group(group)})},
        "inputs": [item.texts if isinstance(item.texts, str) else list(item.texts) for item in sent],
        "document_ids": [item.id for item in sent],
        "names": [item.name for item in sent],
        "metadata": [item.metadata for item in sent],
        "entities": [_entities(item) for item in sent],
        "relationships": [
            [
                {"subject": subject, "predicate": predicate, "object": object}
                for subject, predicate, object in item.facts
            ]
            for item in sent
        ],
        "media_type": media_type,
        "wait": wait,
        "sanitize": cut,
    }
    return Call("/v1/batch/embeddings", body, _reads(answers.Filed), takes_long=wait)


def remember(
    owner_id: str,
    text: str | Sequence[str],
    *,
    id: str | None = None,
    name: str | None = None,
    group: Group | str | None = None,
    entities: Sequence[EntityIn | str] | None = None,
    facts: Sequence[FactIn] = (),
    metadata: bytes | None = None,
    wait: bool = True,
) -> Call[answers.FiledDocument]:
    """File one document; what became of it. See `Document` for what it takes, `file` for `group` and `wait`."""
    document = Document(texts=text, id=id, name=name, entities=entities, facts=facts, metadata=metadata)
    _check(document)
    call = file(owner_id, [document], group=group, wait=wait)
    return Call(call.path, call.body, lambda body: call.read(body).documents[0], takes_long=wait)


def _check(document: Document, prefix: str = "") -> None:
    """What types would say to whom they are checked for, said to everybody else."""
    if not isinstance(document.texts, Sequence) or isinstance(document.texts, bytes | bytearray):
        field = f"{prefix}texts" if prefix else "text"
        raise _refused(field, f"must be a text or a list of texts, not {type(document.texts).__name__}")
    for index, fact in enumerate(document.facts):
        if not isinstance(fact, Sequence) or isinstance(fact, str) or len(fact) != 3:
            raise _refused(f"{prefix}facts[{index}]", "must be three texts: (subject, predicate, object)")
    if not isinstance(document.metadata, bytes | None):
        raise _refused(f"{prefix}metadata", f"must be bytes, not {type(document.metadata).__name__}")


def _refused(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {message}", fields=(FieldError(field, message),))


def _group(group: Group | str) -> dict[str, Any] | str:
    if isinstance(group, str):
        return group
    metadata = {"description": group.description, "tags": None if group.tags is None else list(group.tags)}
    return {"id": group.id, "label": group.label, "access": group.access, "metadata": metadata}


def _entities(document: Document) -> list[dict[str, str]] | None:
    if document.entities is None:
        return None
    given = (item if isinstance(item, EntityIn) else EntityIn(item) for item in document.entities)
    return [{"name": item.name, "kind": item.kind} for item in given]


def remove(owner_id: str, document_ids: Iterable[str]) -> Call[answers.Removed]:
    """Remove documents of the owner; ids that the owner does not hold are passed over."""
    return Call("/v1/remove", {"owner_id": owner_id, "document_ids": list(document_ids)}, _reads(answers.Removed))


def remove_all(owner_id: str) -> Call[answers.Removed]:
    """Remove every document and group of the owner."""
    return Call("/v1/remove", {"owner_id": owner_id, "all": True}, _reads(answers.Removed))


# ------------------------------------------------------------------------------------------------------ searching


def search(
    owner_id: str,
    query: str,
    *,
    top_k: int = 10,
    groups: Sequence[str] = (),
    entities: Sequence[str] = (),
    everybody: bool = False,
    media_type: MediaType | None = None,
) -> Call[answers.Found]:
    """The passages that answer a question, best first.

    `groups`: only documents of these. `entities`: documents linked to these come first. `everybody`: also what other
    owners made available.
    """
    thread = {
        "owner_id": owner_id,
        "top_k": top_k,
        "groups": list(groups),
        "entities": list(entities),
        "scope": "global" if everybody else "personal",
        "media_type": media_type,
    }
    decode = _reads(answers.SearchAnswer)
    return Call("/v1/search", {"query": query, "thread": thread}, lambda body: decode(body).found())


def graph(
    owner_id: str,
    entity: str = "",
    *,
    query: str = "",
    kinds: Sequence[str] | None = None,
    hops: int = 1,
    limit: int = 20,
) -> Call[answers.Graph]:
    """Entities by name (`entity`) or in words (`query`), or those mentioned most, and what is up to `hops` edges away.

    `limit`: entities to start from; `kinds`: only those.
    """
    body = {
        "thread": {"owner_id": owner_id},
        "entity": entity,
        "query": query,
        "kinds": None if kinds is None else list(kinds),
        "hops": hops,
        "limit": limit,
    }
    return Call("/v1/graph", body, _reads(answers.Graph))


# ------------------------------------------------------------------------------------------------------ reading back


def library(
    owner_id: str, *, include_available: bool = False, after_id: str = "", limit: int = 0
) -> Call[answers.Library]:
    """The owner's groups and what is in them. `limit`: groups on a page, 0 for all."""
    body = {"owner_id": owner_id, "include_available": include_available, "after_id": after_id, "limit": limit}
    return Call("/v1/library", body, _reads(answers.Library))


def documents(owner_id: str, document_ids: Iterable[str]) -> Call[tuple[answers.StoredDocument, ...]]:
    """Documents in the order of the ids; unknown ones and those the owner may not read are left out."""
    decode = _reads(answers.Documents)
    body = {"owner_id": owner_id, "document_ids": list(document_ids)}
    return Call("/v1/documents", body, lambda data: decode(data).documents)


def export(
    owner_id: str, *, prefix: str = "", groups: Sequence[str] = (), after_id: str = "", limit: int = 200
) -> Call[answers.Documents]:
    """A page of the owner's documents, ascending by id: those whose id starts with `prefix`, in `groups` if any."""
    body = {
        "owner_id": owner_id,
        "document_id_prefix": prefix,
        "group_ids": list(groups),
        "after_id": after_id,
        "limit": limit,
    }
    return Call("/v1/export", body, _reads(answers.Documents))


def health(owner_id: str) -> Call[answers.Health]:
    """How the node and its embedding model are. Needs no key."""
    return Call("/health", None, _reads(answers.Health), method="GET")
