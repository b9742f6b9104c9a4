"""Every number of every request, over HTTP and gRPC: negative, huge and not finite. Found in the interfaces' own
descriptions, so that a new field is covered from its first day."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_caller import Caller, serving
from in_process import InProcess, opened
from litestar.testing import TestClient
from openapi import body_schemas, numbers_in, put
from rpcs import NODE_RPCS, named, request, values_in

from thread_service.settings import Settings
from thread_service.wire.http import create_app

WIDTH = 16
USUAL = {"owner_id": "ann", "query_text": "heron", "texts": ["heron"], "document_id": "a"}
MANY_INTEGERS = [0, -1, 1, 2**31 - 1, -(2**31)]
NO_INTEGERS = [2**31, -(2**31) - 1, 2**63, 10**40, 1.5, 1e300, "1", True, [1]]
USABLE = [0.0, -1.0, 1e15, 1e-45, 2]
UNUSABLE = ["NaN", "Infinity", "-Infinity", "1e400", "1e39", "-3.5e38", '"1"', "true", "[1]"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    path: Path = tmp_path_factory.mktemp("numbers")
    with opened(path) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: InProcess) -> Iterator[TestClient[Any]]:
    with TestClient(create_app(node.node, Settings()), raise_server_exceptions=False) as client:
        yield client


def _no_number(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_http_integers_of_any_size_are_taken_or_named(client: TestClient[Any]) -> None:
    seen = set()
    for method, path, schema, example in body_schemas(client):
        for field, kind in numbers_in(client, schema):
            if kind != "integer":
                continue
            seen.add(field)
            for value in [*MANY_INTEGERS, *NO_INTEGERS]:
                answer = client.request(method, path, json=put(example, field, value))
                assert answer.status_code in (200, 400), (path, field, value, answer.text)
                if answer.status_code == 400:
                    assert answer.json()["errors"][0]["field"].startswith(field), (path, value, answer.text)
                else:
                    assert value in MANY_INTEGERS, (path, field, value)
                    json.loads(answer.content, parse_constant=_no_number)
    assert seen >= {"thread.top_k", "hops", "limit"}


def test_http_vectors_hold_finite_numbers_or_are_refused_by_name(client: TestClient[Any]) -> None:
    seen = set()
    for method, path, schema, example in body_schemas(client):
        for field, kind in numbers_in(client, schema):
            if kind != "number":
                continue
            vector = field.removesuffix("[0]")
            seen.add(vector)

            def send(literal: str, vector: str = vector, *, where: Any = (method, path, example)) -> Any:
                method, path, example = where
                numbers = ",".join(["0.5"] * (WIDTH - 1) + [literal])
                body = json.dumps(put(example, vector, "MARK")).replace('"MARK"', f"[{numbers}]")
                return client.request(method, path, content=body, headers={"content-type": "application/json"})

            for number in USABLE:
                assert send(repr(number)).status_code == 200, (path, vector, number)
            for literal in UNUSABLE:
                answer = send(literal)
                assert answer.status_code == 400, (path, vector, literal, answer.text)
                assert answer.json()["errors"][0]["field"].startswith(vector), (literal, answer.text)
    assert seen == {"query_embedding", "partitions[0][0].embedding"}


def test_grpc_numbers_of_any_size_are_taken_or_named(node: InProcess) -> None:
    seen = set()
    with serving(node.node) as caller:
        for rpc, request_type in NODE_RPCS.items():
            for path in values_in(request_type):
                kind = path[-1].type
                if kind == FieldDescriptor.TYPE_FLOAT:
                    _try_vectors(caller, rpc, request_type, path)
                elif kind in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64):
                    for value in MANY_INTEGERS:
                        caller.call(rpc, request(request_type, path, value, USUAL))
                elif kind in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_BOOL):
                    continue
                seen.add(f"{rpc} {named(path)}")
    assert {"ThreadQuery/Search top_k", "ThreadQuery/Search query_embedding", "ThreadGraph/Query hops"} <= seen
    assert {"ThreadLibrary/Library limit", "ThreadQuery/Index items.partitions.embedding"} <= seen


def _try_vectors(caller: Caller, rpc: str, request_type: str, path: Any) -> None:
    for value in USABLE:
        caller.call(rpc, request(request_type, path, [value] * WIDTH, USUAL))
    for value in (math.nan, math.inf, -math.inf, 3e38, -1e16):
        asked = request(request_type, path, [0.5] * (WIDTH - 1) + [value], USUAL)
        if path[-1].name == "query_entity_embedding":  # nobody reads it
            caller.call(rpc, asked)
            continue
        error = caller.refusal(rpc, asked)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (named(path), value)
        assert path[-1].name in error.details()
