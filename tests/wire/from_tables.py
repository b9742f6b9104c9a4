"""The protocol as its tables state it (`tables/*.tsv`): descriptors, and a client that shares no code with the node.

`wire.tsv`: message, field, number, type, label or `oneof:NAME`, deprecated. `wire-reserved.tsv`: message, `range` or
`name`, what. `rpcs.tsv`: service, rpc, request, response, whether the client streams, whether the server streams.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

PACKAGE = "thread.v1"
_TABLES = Path(__file__).parent / "tables"


def _rows(name: str) -> list[list[str]]:
    with (_TABLES / name).open(encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def file_descriptor() -> FileDescriptorProto:
    """The whole protocol, as a compiler would describe it."""
    file = FileDescriptorProto(name="from_tables.proto", package=PACKAGE, syntax="proto3")
    messages: dict[str, DescriptorProto] = {}

    def message(name: str) -> DescriptorProto:
        if name not in messages:
            messages[name] = file.message_type.add(name=name)
        return messages[name]

    for owner, name, number, kind, label, is_deprecated in _rows("wire.tsv"):
        field = message(owner).field.add(name=name, number=int(number))
        if (scalar := f"TYPE_{kind.upper()}") in Field.Type.keys():  # noqa: SIM118 - an enum wrapper
            field.type = Field.Type.Value(scalar)
        else:
            field.type, field.type_name = Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            message(kind)
        field.label = Field.LABEL_REPEATED if label == "repeated" else Field.LABEL_OPTIONAL
        if is_deprecated == "1":
            field.options.deprecated = True
        if label.startswith("oneof:"):
            oneofs = [oneof.name for oneof in message(owner).oneof_decl]
            if label[6:] not in oneofs:
                message(owner).oneof_decl.add(name=label[6:])
                oneofs.append(label[6:])
            field.oneof_index = oneofs.index(label[6:])
    for owner, what, value in _rows("wire-reserved.tsv"):
        if what == "range":
            first, last = map(int, value.split("-"))
            message(owner).reserved_range.add(start=first, end=last + 1)
        else:
            message(owner).reserved_name.append(value)
    for name, rpc, request, response, client_streams, server_streams in _rows("rpcs.tsv"):
        service = next((known for known in file.service if known.name == name), None) or file.service.add(name=name)
        method = service.method.add(
            name=rpc,
            input_type=f".{PACKAGE}.{message(request).name}",
            output_type=f".{PACKAGE}.{message(response).name}",
        )
        method.client_streaming, method.server_streaming = client_streams == "1", server_streams == "1"
    return file


class Protocol:
    """Message classes by name (`protocol.ThreadSearchRequest`), in a pool of their own."""

    def __init__(self) -> None:
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file_descriptor())
        self._file = pool.FindFileByName("from_tables.proto")
        self._classes = {
            name: message_factory.GetMessageClass(descriptor)
            for name, descriptor in self._file.message_types_by_name.items()
        }

    def __getattr__(self, name: str) -> Any:
        return self._classes[name]

    async def call(self, channel: grpc.aio.Channel, rpc: str, request: Any = None, **options: Any) -> Any:
        """One unary call; `rpc` is `Service/Rpc`. `request` is a message, bytes, or a dict of its fields."""
        service, _, name = rpc.partition("/")
        method = self._file.services_by_name[service].methods_by_name[name]
        if request is None or isinstance(request, dict):
            request = self._classes[method.input_type.name](**(request or {}))
        call = channel.unary_unary(
            f"/{PACKAGE}.{rpc}",
            request_serializer=lambda sent: sent if isinstance(sent, bytes) else sent.SerializeToString(),
            response_deserializer=self._classes[method.output_type.name].FromString,
        )
        return await call(request, **{"timeout": 20, **options})
