"""How a request body becomes the type its handler declares: strictly, and with every failure naming a field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import msgspec
from litestar.dto import AbstractDTO, DTOConfig
from litestar.dto.data_structures import DTOFieldDefinition
from litestar.exceptions import HTTPException
from litestar.openapi.spec import Reference, Schema
from litestar.typing import FieldDefinition

from thread_service.errors import InvalidRequest
from thread_service.text.validate import first_surrogate
from thread_service.wire import mistyped

# A body of more values than this is refused without a search for the one at fault, which would take seconds.
_SEARCHED_COMMAS_MAX = 500_000
_NOT_UNICODE = "holds a lone surrogate or bytes that are not UTF-8"

# The words a field may hold, to say them when it holds another.
_WORDS = {
    "media_type": "text, image or code",
    "scope": "personal or global",
    "graph_mode": "boost, narrow or off",
    "access": "available or restricted",
    "operation": "remove",
}

T = TypeVar("T")


class JSONBody(AbstractDTO[Any]):
    """Litestar's hook for decoding a body. Its own decoder would take `"1"` for 1 and name no index."""

    config = DTOConfig()

    def decode_bytes(self, value: bytes) -> Any:
        media_type = (
            self.asgi_connection.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        )
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise HTTPException("send the body as application/json", status_code=415)
        field = self.asgi_connection.route_handler.parsed_data_field
        return decode(value, field.annotation)

    @classmethod
    def create_for_field_definition(cls, *_: Any, **__: Any) -> None:
        """Nothing is generated: the declared type is the transfer type."""

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any
    ) -> Reference | Schema:
        schema: Reference | Schema = schema_creator.for_field_definition(field_definition)
        return schema

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Generator[DTOFieldDefinition, None, None]:
        raise NotImplementedError("the declared type is the transfer type")

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        return False


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as JSON of type `kind`. Raises `InvalidRequest` naming the field, as a path such as `inputs[2][0]`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except RecursionError:
        raise InvalidRequest.field("body", "is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if found := _unreadable_field(body):
            raise InvalidRequest.field(found[0].removeprefix(".") or "body", found[1]) from None
        raise InvalidRequest.field("body", f"is not JSON: {error}") from None


def _field_error(message: str) -> InvalidRequest:
    """The decoder's sentence, such as "Expected `str`, got `int` - at `$.inputs[1]`", as a field and a message."""
    # The last one: an unknown word is quoted in the sentence, and it is the caller's.
    what, found, path = message.rpartition(" - at `$")
    what, path = (what, path) if found else (message, "")
    field = path.rstrip("`").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        field = f"{field}.{missing[1]}".removeprefix(".")
        return InvalidRequest.field(field, mistyped.is_required(field))
    if what.startswith("Invalid enum value") and (words := _WORDS.get(field.rpartition(".")[2])):
        return InvalidRequest.field(field, f"must be {words}")
    return InvalidRequest.field(field or "body", mistyped.told(what, field))


def _unreadable_field(body: bytes) -> tuple[str, str] | None:
    """The first field that holds what JSON text cannot, and why; None when the body is no JSON for another reason."""
    if body.count(b",") > _SEARCHED_COMMAS_MAX:
        return None
    try:
        return next(_unreadable(json.loads(body.decode("utf-8", "surrogateescape"))), None)
    except (ValueError, RecursionError):
        return None


def _unreadable(value: object) -> Iterator[tuple[str, str]]:
    """Paths are put together on the way out, so that the search costs little for the fields it passes."""
    if isinstance(value, str):
        if first_surrogate(value) is not None:
            yield "", _NOT_UNICODE
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield "", "must be a finite number"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            for path, why in _unreadable(item):
                yield f"[{index}]{path}", why
    elif isinstance(value, dict):
        for key, item in value.items():
            if first_surrogate(key) is not None:
                yield f".{key}", _NOT_UNICODE
            for path, why in _unreadable(item):
                yield f".{key}{path}", why
