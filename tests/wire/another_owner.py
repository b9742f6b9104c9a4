"""What ann has filed on a node, and a look at all of it: nobody else may see, change or remove any."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from in_process import InProcess, document, group, opened

from thread_service.text import ids

WHOLE_NODE = {"/v1/clear", "/v1/graph/policy"}
"""Routes that belong to whoever may call the node at all, not to an owner."""

ID = "ann-íd"
PERSON, PLACE = ids.entity_id("person", "Ada Quill"), ids.entity_id("place", "Port Selwyn")
ANNS = (ID, "Ada Quill", PERSON, PLACE, ids.relationship_id(PERSON, "keeps", PLACE))
"""The id of ann's document and her group, the name of an entity of hers, the ids of her entities and relationship."""


@contextlib.contextmanager
def filed(path: Path) -> Iterator[InProcess]:
    with opened(path) as node:
        entities = [("Ada Quill", "person"), ("Port Selwyn", "place"), "SECRET"]
        said = document(
            "Ada Quill keeps the SECRET light.", id=ID, name="SECRET", metadata=b"SECRET", entities=entities,
            edges=[("Ada Quill", "keeps", "Port Selwyn")],
        )  # fmt: skip
        node.file("ann", said, group=group(ID, label="SECRET", description="SECRET", tags=("SECRET",)))
        node.settle()
        yield node


def lookalikes() -> Iterator[str]:
    """What is none of ann's ids and looks, sorts or matches like one."""
    yield from (
        unicodedata.normalize("NFD", ID), ID.upper(), ID.title(), f" {ID}", f"{ID} ", f"{ID}\0", f"{ID}\u200b",
        f"{ID}\ufe0f", f"\u202e{ID}", ID.replace("a", "\u0430"), ID[:-1],
        "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in ID),
    )  # fmt: skip
    yield from ("%", "_" * len(ID), "*", "ann-*", "ann%", "", "./ann-íd", "' OR 1=1 --", "ann-íd:0")


def anns(node: InProcess) -> str:
    """All that is filed of ann's, what she reads back of it, and that nobody else does."""
    owned = "WHERE documents.owner_key = (SELECT owner_key FROM owners WHERE owner_id = 'ann')"
    tables = ("contents", "partitions", "document_groups", "group_tags", "assertions", "mentions")
    rows = [node.rows(f"SELECT * FROM documents {owned}"), node.rows("SELECT * FROM groups WHERE label = 'SECRET'")]
    for table in tables:
        key = "content_key" if table in ("contents", "partitions") else "document_key"
        rows.append(node.rows(f"SELECT {table}.* FROM {table} JOIN documents USING ({key}) {owned}"))
    edges = (
        "FROM relationship_assertions JOIN documents USING (document_key) JOIN relationships USING (relationship_key)"
    )
    rows.append(node.rows(f"SELECT relationship_id, subject_key, predicate_key, object_key, weight {edges} {owned}"))
    found = node.search("ann", "Ada Quill", graph_mode="off", lexical=False).passages
    seen = [
        node.library("ann"),
        node.documents("ann", ID, embeddings=True),
        [(passage.document_id, passage.text, passage.distance, passage.group) for passage in found],
        node.documents("nobody", ID),
        node.library("nobody", include_available=True, document_ids=(ID,)),
    ]
    return repr((rows, seen))


def is_id(field: str) -> bool:
    """Whether a field takes the id of something that somebody owns."""
    name = field.replace("[0]", "").rpartition(".")[2]
    return name != "owner_id" and (
        name in ("id", "group", "groups", "from", "into", "entity") or name.endswith(("_id", "_ids", "_prefix"))
    )
