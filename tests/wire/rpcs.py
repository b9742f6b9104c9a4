"""The calls a node serves and what goes into them, from the tables of the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from from_tables import _rows
from grpc_caller import protocol

NODE_RPCS = {
    f"{service}/{rpc}": request for service, rpc, request, *_ in _rows("rpcs.tsv") if service != "ThreadRegistration"
}
"""`Service/Rpc` → the message it takes."""

Path = tuple[Any, ...]
"""The descriptors of fields from a request down to one of its values."""


def values_in(request_type: str) -> Iterator[Path]:
    """The way to every field of a request that is no message."""
    yield from _below(getattr(protocol, request_type).DESCRIPTOR, ())


def _below(message: Any, above: Path) -> Iterator[Path]:
    for field in message.fields:
        if field.type == field.TYPE_MESSAGE:
            yield from _below(field.message_type, (*above, field))
        else:
            yield (*above, field)


def named(path: Path) -> str:
    return ".".join(field.name for field in path)


def request(request_type: str, path: Path, value: Any, usual: Mapping[str, Any]) -> Any:
    """A request with `value` at the path, and what is `usual` wherever a field of that name is on the way."""
    asked = message = getattr(protocol, request_type)()
    for field in [*path[:-1], None]:
        for name, given in usual.items():
            if name in message.DESCRIPTOR.fields_by_name:
                _set(message, message.DESCRIPTOR.fields_by_name[name], given)
        if field is not None:
            below = getattr(message, field.name)
            message = below.add() if field.is_repeated else below
    _set(message, path[-1], value)
    return asked


def _set(message: Any, field: Any, value: Any) -> None:
    if field.is_repeated:
        message.ClearField(field.name)
        getattr(message, field.name).extend(
            value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        )
    else:
        setattr(message, field.name, value)
