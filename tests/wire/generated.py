"""Requests made up from the interfaces' own types: mostly well-formed, with something odd in any place."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from grpc_caller import protocol
from hypothesis import strategies as st
from msgspec import inspect as types

Json = Any

ODD_TEXTS = [
    "", " ", "\0", "a", "ann", "one", "harbour", "\u200b", "é", "e\u0301", "\U0001f600" * 20, "../../x", "%s%n",
    "' OR 1=1 --",
    '"', "\\", "\x1b[31m", "\u202e", "null", "NaN", "-1", "0", "a" * 1_024, "é" * 600, "x" * 5_000, "AND OR NOT NEAR(",
    "available", "restricted", "code", "text", "global", "personal", "boost", "\ufeff", "\uffff", "İ", "K",
]  # fmt: skip
TEXTS = st.sampled_from(ODD_TEXTS) | st.text(max_size=30)
ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.just([])
    | st.just({})
    | st.lists(TEXTS, max_size=2)
)
"""What a field is not meant to hold, mostly."""
SPOILT = st.integers(0, 30).map(lambda number: number == 0)


# ---------------------------------------------------------------------------------------------------- JSON


@st.composite
def json_of(draw: st.DrawFn, kind: Any) -> Json:
    """A value of a type as msgspec describes it; now and then something else."""
    if draw(SPOILT):
        return draw(ODD)
    if isinstance(kind, types.UnionType):
        return draw(json_of(draw(st.sampled_from(kind.types))))
    if isinstance(kind, types.StructType):
        return {
            inner.encode_name: draw(json_of(inner.type))
            for inner in kind.fields
            if (inner.required and not draw(SPOILT)) or draw(st.booleans())
        }
    if isinstance(kind, types.ListType):
        sizes = st.sampled_from([0, 1, 1, 2, 3])
        if isinstance(kind.item_type, types.FloatType):
            return [draw(json_of(kind.item_type))] * draw(st.sampled_from([0, 1, 15, 16, 32, 64]))
        return [draw(json_of(kind.item_type)) for _ in range(draw(sizes))]
    if isinstance(kind, types.DictType):
        return {draw(TEXTS): draw(json_of(kind.value_type)) for _ in range(draw(st.integers(0, 2)))}
    if isinstance(kind, types.LiteralType):
        return draw(st.sampled_from(kind.values))
    return draw(_scalars(kind))


def _scalars(kind: Any) -> st.SearchStrategy[Json]:
    if isinstance(kind, types.StrType):
        return TEXTS
    if isinstance(kind, types.BytesType):
        return st.sampled_from(["", "AAA=", "eA==", "x"])
    if isinstance(kind, types.IntType):
        return st.sampled_from([0, 1, -1, 10, 2**31 - 1, -(2**31), 2**31, 2**63])
    if isinstance(kind, types.FloatType):
        return st.sampled_from([0, 0.5, -1.0, 1e15, 1e16, 1e38, 1e39, 5e-324])
    return st.booleans() | st.none()


@st.composite
def bodies_of(draw: st.DrawFn, kind: Any) -> bytes:
    """A body; now and then with bytes cut out or put in."""
    body = json.dumps(draw(json_of(kind)), ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(SPOILT):
        place = draw(st.integers(0, len(body)))
        odd = [b"", b"\xff", b"\0", b"\\ud800", b"NaN", b"[" * 2_000, b"{", b",", b'"', b"1e999"]
        body = body[:place] + draw(st.sampled_from(odd)) + body[place + draw(st.integers(0, 3)) :]
    return body


# ---------------------------------------------------------------------------------------------------- protobuf

_INTEGERS = {
    FieldDescriptor.TYPE_INT32: [0, 1, -1, 5, 2**31 - 1, -(2**31)],
    FieldDescriptor.TYPE_INT64: [0, 1, -1, 2**63 - 1, -(2**63)],
}
_FLOATS = st.sampled_from([0.0, 0.5, -1.0, 1e15, 1e16, 3e38, 1e-45, float("nan"), float("inf"), float("-inf")])


@st.composite
def messages_of(draw: st.DrawFn, name: str) -> Any:
    """A message of a type, with any of its fields."""
    message = getattr(protocol, name)()
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None or not draw(st.integers(0, 2)):
            continue
        if not field.is_repeated:
            if field.type == field.TYPE_MESSAGE:
                getattr(message, field.name).CopyFrom(draw(messages_of(field.message_type.name)))
            else:
                setattr(message, field.name, draw(_values(field)))
        elif field.type == field.TYPE_MESSAGE:
            for _ in range(draw(st.integers(0, 2))):
                getattr(message, field.name).add().CopyFrom(draw(messages_of(field.message_type.name)))
        elif field.type == field.TYPE_FLOAT:
            getattr(message, field.name).extend([draw(_FLOATS)] * draw(st.sampled_from([0, 1, 16, 17, 64])))
        else:
            getattr(message, field.name).extend(draw(st.lists(_values(field), max_size=3)))
    return message


def _values(field: Any) -> st.SearchStrategy[Any]:
    if field.type == field.TYPE_STRING:
        return TEXTS
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=20)
    if field.type == field.TYPE_BOOL:
        return st.booleans()
    if field.type in _INTEGERS:
        return st.sampled_from(_INTEGERS[field.type])
    return _FLOATS


@st.composite
def encodings_of(draw: st.DrawFn, name: str) -> bytes:
    """A message as it travels; now and then with bytes exchanged, cut off or put in, or no message at all."""
    if draw(SPOILT):
        return draw(st.binary(max_size=60))
    data: bytes = draw(messages_of(name)).SerializeToString()
    if draw(SPOILT):
        place = draw(st.integers(0, len(data)))
        data = data[:place] + draw(st.binary(max_size=4)) + data[place + draw(st.integers(0, 3)) :]
    return data
