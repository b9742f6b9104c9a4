"""Ids of another owner in every id field of every route and call: nothing of his is shown, changed or removed.

The fields are found in the interfaces' own descriptions, so that a new route is covered from its first day.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from another_owner import ANNS, WHOLE_NODE, anns, filed, is_id, lookalikes
from google.protobuf.descriptor import FieldDescriptor
from grpc_caller import protocol, serving
from in_process import InProcess
from litestar.testing import TestClient
from openapi import body_schemas, leaves, put
from rpcs import NODE_RPCS, named, request, values_in

from thread_service.settings import Settings
from thread_service.wire.dispatch import Dispatch
from thread_service.wire.http import create_app
from thread_service.wire.v1 import thread_pb2 as pb

USUAL = {
    "owner_id": "eve", "query_text": "Ada", "texts": ["eve's"], "access": "available", "label": "eve's",
    "document_id": "eve-doc", "group_id": "eve-group", "include_available": True, "include_embeddings": True,
    "include_documents": True, "update_metadata": True,
}  # fmt: skip
"""What stands in the other fields of eve's messages."""
GIVEN = (*ANNS, *lookalikes())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    path: Path = tmp_path_factory.mktemp("owners")
    with filed(path) as node:
        yield node


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
            example = {**example, "wait": False}
            for field in filter(is_id, fields):
                for given in GIVEN:
                    answer = client.request(method, path, json=put(put(example, owners[0], "eve"), field, given))
                    assert answer.status_code in (200, 400, 404), (path, field, answer.text)
                    assert "SECRET" not in answer.text, (path, field)
                asked.add(f"{path} {field}")
            assert anns(node) == before, path
    assert {"/v1/document/update group_id", "/v1/batch/embeddings update.document_id"} <= asked
    assert {"/v1/search thread.groups[0].id", "/v1/export after_id", "/v1/library/document document_id"} <= asked


def test_over_grpc(node: InProcess) -> None:
    before, asked = anns(node), set()
    with serving(node.node) as caller:
        for rpc, request_type in NODE_RPCS.items():
            for path in values_in(request_type):
                if path[-1].type != FieldDescriptor.TYPE_STRING or not is_id(named(path)):
                    continue
                for given in GIVEN:
                    answer = caller.call(rpc, request(request_type, path, given, USUAL))
                    assert b"SECRET" not in answer.SerializeToString(), (rpc, named(path))
                asked.add(f"{rpc} {named(path)}")
            assert anns(node) == before, rpc
    assert {"ThreadQuery/Remove document_ids", "ThreadUpdate/UpdateDocument group_id"} <= asked
    assert {"ThreadQuery/Index items.document_id", "ThreadGraph/Query entity"} <= asked


def test_over_a_session(node: InProcess) -> None:
    before, asked = anns(node), set()
    dispatch = Dispatch(node.node)
    for arm in protocol.ThreadSessionMessage.DESCRIPTOR.oneofs_by_name["payload"].fields:
        if not arm.name.endswith("_request"):
            continue
        for path in values_in(arm.message_type.name):
            if path[-1].type != FieldDescriptor.TYPE_STRING or not is_id(named(path)):
                continue
            for given in GIVEN:
                message = protocol.ThreadSessionMessage(
                    correlation_id="c", **{arm.name: request(arm.message_type.name, path, given, USUAL)}
                )
                sent = pb.ThreadSessionMessage.FromString(message.SerializeToString())
                answer = node.run(dispatch.answer(sent))
                assert answer is not None, arm.name
                assert b"SECRET" not in answer.SerializeToString(), (arm.name, named(path))
            asked.add(arm.name)
        assert anns(node) == before, arm.name
    assert len(asked) == 8, "a new kind of request: it needs a usual message"


def test_every_route_takes_an_owner_or_is_known_to_be_the_nodes(node: InProcess) -> None:
    app = create_app(node.node, Settings())
    known = {*WHOLE_NODE, "/", "/health", "/livez", "/readyz", "/metrics", "/v1/stats", "/schema", "/page/{name:path}"}
    with TestClient(app) as client:
        owned = {path for _, path, _, _ in body_schemas(client)}
    paths = {route.path for route in app.routes if not route.path.startswith(("/schema/", "/page/"))}
    assert paths - known <= owned, "a route without a body: say whose it is"
