"""What the node's own OpenAPI document says about request bodies, for tests that must hold for every route."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from litestar.testing import TestClient

Json = Any


def body_schemas(client: TestClient[Any]) -> Iterator[tuple[str, str, Json, Json]]:
    """(method, path, schema, an example that works) of every request that has a body."""
    for path, operations in client.get("/schema").json()["paths"].items():
        for method, operation in operations.items():
            if "requestBody" in operation:
                [content] = operation["requestBody"]["content"].values()
                yield method.upper(), path, content["schema"], content["schema"]["examples"][0]


def leaves(schema: Json, schemas: Json, field: str = "") -> Iterator[tuple[str, Json]]:
    """(field, schema) of everything that is neither an object nor a list; `[0]` stands for any place in a list."""
    if "$ref" in schema:
        yield from leaves(schemas[schema["$ref"].rpartition("/")[2]], schemas, field)
    elif parts := schema.get("oneOf") or schema.get("allOf"):
        for part in parts:
            yield from leaves(part, schemas, field)
    elif "properties" in schema:
        for name, inner in schema["properties"].items():
            yield from leaves(inner, schemas, f"{field}.{name}".removeprefix("."))
    elif schema.get("type") == "array":
        yield from leaves(schema["items"], schemas, f"{field}[0]")
    else:
        yield field, schema


def numbers_in(client: TestClient[Any], schema: Json) -> list[tuple[str, str]]:
    """(field, `integer` or `number`) of a request."""
    schemas = client.get("/schema").json()["components"]["schemas"]
    found = ((field, leaf.get("type")) for field, leaf in leaves(schema, schemas))
    return [(field, kind) for field, kind in found if kind in ("integer", "number")]


def put(body: Json, field: str, value: Json) -> Json:
    """A copy of `body` with `value` at a field such as `partitions[0][0].url`; what is missing on the way is made."""
    steps: list[str | int] = [
        int(part[1:-1]) if part[0] == "[" else part for part in re.findall(r"\[\d+\]|[^.\[]+", field)
    ]
    root = here = copy.deepcopy(body)
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        empty: Json = [] if isinstance(following, int) else {}
        if isinstance(step, int) and step >= len(here):
            here.append(None)
        elif isinstance(step, str):
            here.setdefault(step, None)
        if following is None:
            here[step] = value
        elif not isinstance(here[step], type(empty)):
            here[step] = empty
        here = here[step]
    return root
