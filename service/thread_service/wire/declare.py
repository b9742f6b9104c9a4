"""How a route is declared: what a handler is given, what its OpenAPI entry shows, what a refusal looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import post, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import Body, SkipValidation

from thread_service.settings import Settings
from thread_service.wire import problems, schemas
from thread_service.wire.mothership.availability import Availability
from thread_service.wire.node_protocol import Node
from thread_service.wire.secret import Stack

TheNode = NamedDependency[SkipValidation[Node]]
TheSettings = NamedDependency[SkipValidation[Settings]]
TheStack = NamedDependency[SkipValidation[Stack | None]]
TheAvailability = NamedDependency[SkipValidation[Availability]]


def body(example: dict[str, Any]) -> Any:
    return Body(examples=[Example(summary="A request", value=example)])


def operation(path: str, summary: str) -> Callable[[Any], Any]:
    return post(path, status_code=200, summary=summary, responses=_refused())


def replacement(path: str, summary: str) -> Callable[[Any], Any]:
    return put(path, summary=summary, responses=_refused())


def _refused() -> dict[int, ResponseSpec]:
    return {
        400: ResponseSpec(
            schemas.Problem, description="What was wrong", media_type=problems.MEDIA_TYPE, generate_examples=False
        )
    }
