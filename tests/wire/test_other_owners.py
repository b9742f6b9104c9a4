"""Ids of another owner in every id field of every route and call: nothing of his is shown, changed or removed.

The fields are found in the interfaces' own descriptions, so that a new route is covered from its first day.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_caller import serving
from in_process import InProcess, document, group, opened
from litestar.testing import TestClient
from openapi import body_schemas, leaves, put
from rpcs import NODE_RPCS, named, request, values_in

from thread_service.settings import Settings
from thread_service.text import ids
from thread_service.wire.http import create_app

WHOLE_NODE = {"/v1/clear", "/v1/graph/policy"}
"""Routes that belong to whoever may call the node at all, not to an owner."""

PERSON, PLACE = ids.entity_id("person", "Ada Quill"), ids.entity_id("place", "Port Selwyn")
ANNS = ("ann-doc", "ann-group", "Ada Quill", PERSON, PLACE, ids.relationship_id(PERSON, "keeps", PLACE))
"""Ids of ann's document and group, the name of an entity of hers, and the ids of her entities and her relationship."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    path: Path = tmp_path_factory.mktemp("owners")
    with opened(path) as node:
        entities = [("Ada Quill", "person"), ("Port Selwyn", "place"), "SECRET"]
        said = document(
            "Ada Quill keeps the SECRET light.", id="ann-doc", name="SECRET", metadata=b"SECRET", entities=entities,
            edges=[("Ada Quill", "keeps", "Port Selwyn")],
        )  # fmt: skip
        node.file("ann", said, group=group("ann-group", label="SECRET", description="SECRET", tags=("SECRET",)))
        node.settle()
        yield node


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
        node.documents("ann", "ann-doc", embeddings=True),
        [(passage.document_id, passage.text, passage.distance, passage.group) for passage in found],
        node.documents("nobody", "ann-doc"),
        node.library("nobody", include_available=True, document_ids=("ann-doc",)),
    ]
    return repr((rows, seen))


def is_id(field: str) -> bool:
    """Whether a field takes the id of something that somebody owns."""
    name = field.replace("[0]", "").rpartition(".")[2]
    return name != "owner_id" and (
        name in ("id", "group", "groups", "from", "into", "entity") or name.endswith(("_id", "_ids", "_prefix"))
    )


def test_over_http(node: InProcess) -> None:
    before, asked = anns(node), set()
    with TestClient(create_app(node.node, Settings()), raise_server_exceptions=False) as client:
        schemas = client.get("/schema").json()["components"]["schemas"]
        for method, path, schema, example in body_schemas(client):
            fields = list(dict.fromkeys(field for field, _ in leaves(schema, schemas)))
            owners = [field for field in fields if field in ("owner_id", "thread.owner_id")]
            if path in WHOLE_NODE:
                continue
            assert owners, f"{path} names no owner; say in this test that it belongs to the whole node, if it does"
            for field in filter(is_id, fields):
                for given in ANNS:
                    answer = client.request(method, path, json=put(put(example, owners[0], "eve"), field, given))
                    assert answer.status_code in (200, 400, 404), (path, field, answer.text)
                    assert "SECRET" not in answer.text, (path, field)
                    asked.add(f"{path} {field}")
            assert anns(node) == before, path
    assert {"/v1/document/update group_id", "/v1/batch/embeddings update.document_id"} <= asked
    assert {"/v1/search thread.groups[0].id", "/v1/export after_id", "/v1/library/document document_id"} <= asked


def test_over_grpc(node: InProcess) -> None:
    usual = {
        "owner_id": "eve", "query_text": "Ada", "texts": ["eve's"], "access": "available", "label": "eve's",
        "document_id": "eve-doc", "group_id": "eve-group", "include_available": True, "include_embeddings": True,
        "include_documents": True, "update_metadata": True,
    }  # fmt: skip
    before, asked = anns(node), set()
    with serving(node.node) as caller:
        for rpc, request_type in NODE_RPCS.items():
            for path in values_in(request_type):
                if path[-1].type != FieldDescriptor.TYPE_STRING or not is_id(named(path)):
                    continue
                for given in ANNS:
                    answer = caller.call(rpc, request(request_type, path, given, usual))
                    assert b"SECRET" not in answer.SerializeToString(), (rpc, named(path))
                asked.add(f"{rpc} {named(path)}")
            assert anns(node) == before, rpc
    assert {"ThreadQuery/Remove document_ids", "ThreadUpdate/UpdateDocument group_id"} <= asked
    assert {"ThreadQuery/Index items.document_id", "ThreadGraph/Query entity"} <= asked
