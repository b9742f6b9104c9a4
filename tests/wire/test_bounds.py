"""Every string, list and number of every request, just inside its bound and just outside of it, at the defaults.

The fields are found in the interfaces' own descriptions, so that a new field without a bound fails here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from fake_node import FakeNode
from grpc_caller import Caller, serving
from litestar.testing import TestClient
from msgspec import inspect as types
from openapi import body_schemas, put
from rpcs import NODE_RPCS, named, request, values_in

from thread_service.settings import Settings
from thread_service.wire import limits
from thread_service.wire.grpc_server import METADATA_BYTES_MAX
from thread_service.wire.http import create_app

Json = Any

BY_THE_BODY = {"inputs[0]", "inputs[0][0]", "metadata[0]"}
"""Texts and metadata: as large as the body may be."""


@dataclass(frozen=True)
class Bound:
    """`inside` and `outside`: values of the field on either side of it."""

    field: str
    inside: Json
    outside: Json
    is_in_bytes: bool = False


def bounds(kind: Any, field: str = "") -> Iterator[Bound]:
    """Of everything in a request body of this type; `[0]` stands for any place in a list."""
    if isinstance(kind, types.UnionType):
        for part in kind.types:
            yield from bounds(part, field)
    elif isinstance(kind, types.StructType):
        for inner in kind.fields:
            yield from bounds(inner.type, f"{field}.{inner.encode_name}".removeprefix("."))
    elif isinstance(kind, types.ListType):
        assert kind.max_length is not None, f"the list {field} has no bound"
        item = sample(kind.item_type)
        yield Bound(field, [item] * kind.max_length, [item] * (kind.max_length + 1))
        yield from bounds(kind.item_type, f"{field}[0]")
    elif isinstance(kind, types.DictType):
        assert kind.max_length is not None, f"the object {field} has no bound"
        inside = {f"key {number}": sample(kind.value_type) for number in range(kind.max_length)}
        yield Bound(field, inside, {**inside, "one more": sample(kind.value_type)})
        yield from bounds(kind.value_type, f"{field}.key")
    elif isinstance(kind, types.StrType | types.BytesType):
        if field not in BY_THE_BODY:
            assert kind.max_length is not None, f"the text {field} has no bound"
            yield Bound(field, "x" * kind.max_length, "x" * (kind.max_length + 1))
            if kind.max_length == limits.ID_BYTES_MAX:
                yield Bound(field, "é" * (kind.max_length // 2), "é" * (kind.max_length // 2 + 1), is_in_bytes=True)
    elif isinstance(kind, types.IntType):
        assert kind.ge is not None, f"the number {field} has no bound"
        assert kind.le is not None, f"the number {field} has no bound"
        yield Bound(field, kind.le, kind.le + 1)
        yield Bound(field, kind.ge, kind.ge - 1)
    else:
        assert isinstance(
            kind, types.NoneType | types.BoolType | types.FloatType | types.LiteralType | types.CustomType
        )


def sample(kind: Any) -> Json:
    """Something small of a type."""
    if isinstance(kind, types.UnionType):
        return sample(kind.types[0])
    if isinstance(kind, types.StructType):
        return {inner.encode_name: sample(inner.type) for inner in kind.fields if inner.required}
    if isinstance(kind, types.ListType):
        return []
    if isinstance(kind, types.BytesType):
        return ""
    return 0.5 if isinstance(kind, types.FloatType) else "x"


@pytest.fixture
def client(node: FakeNode) -> Iterator[TestClient[Any]]:
    admin = AsyncMock()
    for name in ("rename_entity", "set_entity_kind", "merge_entities"):
        getattr(admin, name).return_value = None
    admin.re_extract.return_value = 0
    node.graph_admin = admin  # type: ignore[attr-defined]
    with TestClient(create_app(node, Settings()), raise_server_exceptions=False) as test_client:
        yield test_client


def bodies(client: TestClient[Any]) -> Iterator[tuple[str, str, Json, Any]]:
    """(method, path, an example that works, its type) of every request that has a body."""
    handlers = {
        (method, route.path): handler
        for route in client.app.routes
        for method, handler in getattr(route, "route_handler_map", {}).items()
    }
    for method, path, _, example in body_schemas(client):
        handler = handlers[method, path]
        handler = handler[0] if isinstance(handler, tuple) else handler
        yield method, path, example, types.type_info(handler.parsed_data_field.annotation)


OPERATION = {"/v1/batch/embeddings": {"update": {"operation": "remove", "document_id": "gone"}}}
"""What an example leaves out and a field needs beside it."""


def test_http_fields_are_taken_up_to_their_bounds_and_named_beyond(client: TestClient[Any], node: FakeNode) -> None:
    seen = 0
    for method, path, example, kind in bodies(client):
        example |= OPERATION.get(path, {})
        for bound in bounds(kind):
            answer = client.request(method, path, json=put(example, bound.field, bound.inside))
            assert answer.status_code in (200, 400), (path, bound.field, answer.text)
            if answer.status_code == 400:  # for what it says, or for another field that it does not fit beside
                assert not is_about_a_bound(answer.json()), (path, bound.field, answer.text)
            node.asked.clear()
            node.graph_admin.reset_mock()  # type: ignore[attr-defined]
            answer = client.request(method, path, json=put(example, bound.field, bound.outside))
            if (
                bound.is_in_bytes and answer.status_code == 200
            ):  # of an id that nobody reads only its letters are counted
                assert bound.outside not in repr((node.asked, node.graph_admin.mock_calls)), (path, bound.field)  # type: ignore[attr-defined]
                continue
            assert answer.status_code == 400, (path, bound.field)
            [error] = answer.json()["errors"]
            assert error["field"] == bound.field.replace(".key", "[...]"), path  # as the decoder says it
            assert is_about_a_bound(answer.json()), (path, error)
            assert node.asked == []
            seen += 1
    assert seen > 130


def is_about_a_bound(problem: Json) -> bool:
    message = problem["errors"][0]["message"]
    return any(words in message for words in (" of at most ", " of at least ", "longer than", "out of range"))


# ---------------------------------------------------------------------------------------------------- gRPC

TEXTS = {
    limits.ID_BYTES_MAX: {
        "owner_id", "group_id", "document_id", "after_id", "document_id_prefix", "group_ids", "document_ids",
    },
    limits.NAME_CHARS_MAX: {
        "name", "kind", "subject", "predicate", "object", "tags", "kinds", "label", "group_label", "entities",
    },
    limits.QUERY_CHARS_MAX: {"query_text", "query", "entity"},
    limits.URL_CHARS_MAX: {"url"},
    limits.DESCRIPTION_CHARS_MAX: {"group_description"},
}  # fmt: skip
COUNTS = {
    "items": limits.INPUTS_MAX,
    "document_ids": limits.INPUTS_MAX,
    "texts": limits.PARTITIONS_MAX,
    "partitions": limits.PARTITIONS_MAX,
    "entities": limits.ENTITIES_MAX,
    "tags": limits.ENTITIES_MAX,
    "kinds": limits.ENTITIES_MAX,
    "relationships": limits.RELATIONSHIPS_MAX,
    "group_ids": limits.GROUPS_MAX,
    "embedding": limits.WIDTH_MAX,
    "query_embedding": limits.WIDTH_MAX,
}
BY_THE_MESSAGE = {"texts", "metadata"}
NOT_KEPT = {"scope", "media_type", "access", "thread_id", "query_entity_embedding"}
"""Words that are compared with the known ones, and what nobody reads."""
USUAL = {"name": "n", "query_text": "q", "texts": ["x"], "update_metadata": True, "document_ids": ["x"]}


def refused(caller: Caller, rpc: str, asked: Any, field: str) -> None:
    error = caller.refusal(rpc, asked)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (rpc, field)
    assert field in error.details(), (rpc, field, error.details())
    assert "longer than" in error.details() or "entries" in error.details(), (rpc, error.details())


def taken(caller: Caller, rpc: str, asked: Any) -> None:
    """Taken, or refused for something else."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        caller.call(rpc, asked)
        return
    error = caller.refusal(rpc, asked)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, rpc
    assert "longer than" not in error.details(), rpc
    assert "at most" not in error.details(), rpc


def test_grpc_texts_are_taken_up_to_their_bounds_and_named_beyond(node: FakeNode) -> None:
    seen = set()
    with serving(node) as caller:
        for rpc, request_type in NODE_RPCS.items():
            for path in values_in(request_type):
                field = path[-1]
                if field.type not in (field.TYPE_STRING, field.TYPE_BYTES) or field.name in BY_THE_MESSAGE | NOT_KEPT:
                    continue
                [most] = [most for most, names in TEXTS.items() if field.name in names]
                taken(caller, rpc, request(request_type, path, "x" * most, USUAL))
                refused(caller, rpc, request(request_type, path, "x" * (most + 1), USUAL), field.name)
                seen.add(f"{rpc} {named(path)}")
                if most == limits.ID_BYTES_MAX:
                    refused(caller, rpc, request(request_type, path, "é" * (most // 2 + 1), USUAL), field.name)
    assert {"ThreadLibrary/ExportCorpus document_id_prefix", "ThreadQuery/Index items.relationships.object"} <= seen


def test_grpc_lists_are_taken_up_to_their_bounds_and_named_beyond(node: FakeNode) -> None:
    seen = set()
    with serving(node) as caller:
        for rpc, request_type in NODE_RPCS.items():
            for path in values_in(request_type):
                for depth, field in enumerate(path):
                    name = named(path[: depth + 1])
                    if not field.is_repeated or field.name in NOT_KEPT or f"{rpc} {name}" in seen:
                        continue
                    most = COUNTS[field.name]
                    taken(caller, rpc, repeated(request_type, path[: depth + 1], most))
                    refused(caller, rpc, repeated(request_type, path[: depth + 1], most + 1), field.name)
                    seen.add(f"{rpc} {name}")
    assert {"ThreadQuery/Index items", "ThreadQuery/Index items.partitions.embedding"} <= seen


def repeated(request_type: str, path: Any, count: int) -> Any:
    """A request with so many entries in the list at the path."""
    field = path[-1]
    if field.type != field.TYPE_MESSAGE:
        one = 0.5 if field.type == field.TYPE_FLOAT else "x"
        return request(request_type, path, [one] * count, USUAL)
    inner = next(inner for inner in field.message_type.fields if inner.type == inner.TYPE_STRING)
    asked = request(request_type, (*path, inner), "x", USUAL)
    holder = asked
    for above in path[:-1]:
        holder = getattr(holder, above.name)
        holder = holder[0] if above.is_repeated else holder
    entries = getattr(holder, field.name)
    one = entries[0]
    del entries[:]
    entries.extend([one] * count)
    return asked


def test_a_policys_alias_has_a_bound_too(client: TestClient[Any]) -> None:
    [(method, path, example)] = [(m, p, e) for m, p, _, e in body_schemas(client) if p == "/v1/graph/policy"]
    for length, status in ((limits.NAME_CHARS_MAX, 200), (limits.NAME_CHARS_MAX + 1, 400)):
        body = {**example, "predicate_aliases": {"x" * length: "wrote"}}
        answer = client.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        assert status == 200 or answer.json()["errors"][0]["field"].startswith("predicate_aliases.x")


def test_a_calls_metadata_have_a_bound(node: FakeNode) -> None:
    with serving(node) as caller:
        for size, is_taken in ((15_000, True), (METADATA_BYTES_MAX, False)):
            metadata = (("note", "x" * size),)
            if is_taken:
                caller.call("ThreadUpdate/Stats", metadata=metadata)
            else:
                error = caller.refusal("ThreadUpdate/Stats", metadata=metadata)
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        caller.call("ThreadUpdate/Stats")
