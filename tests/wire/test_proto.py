"""`thread.proto` is the protocol of the tables, field by field, and its generated code runs with what is installed."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import from_tables
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from thread_service.wire.v1 import thread_pb2, thread_pb2_grpc

ROOT = Path(__file__).parents[2]
METADATA = ("metadata", 10, FieldDescriptorProto.TYPE_BYTES, "", FieldDescriptorProto.LABEL_OPTIONAL, False, None)


def _messages(file: FileDescriptorProto) -> dict[str, Any]:
    return {
        message.name: {
            "fields": {
                (
                    field.name,
                    field.number,
                    field.type,
                    field.type_name,
                    field.label,
                    field.options.deprecated,
                    message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None,
                )
                for field in message.field
            },
            "reserved": {(gap.start, gap.end) for gap in message.reserved_range},
            "names": set(message.reserved_name),
            "inside": (len(message.nested_type), len(message.enum_type), len(message.extension)),
        }
        for message in file.message_type
    }


def _rpcs(file: FileDescriptorProto) -> dict[str, set[Any]]:
    return {
        service.name: {
            (rpc.name, rpc.input_type, rpc.output_type, rpc.client_streaming, rpc.server_streaming)
            for rpc in service.method
        }
        for service in file.service
    }


def _own() -> FileDescriptorProto:
    file = FileDescriptorProto()
    thread_pb2.DESCRIPTOR.CopyToProto(file)
    return file


def test_every_field_and_reserved_range_is_that_of_the_tables_and_metadata_is_added() -> None:
    stated = _messages(from_tables.file_descriptor())
    assert len(stated) > 40
    stated["ThreadDocumentContent"]["fields"].add(METADATA)
    assert _messages(_own()) == stated


def test_every_rpc_is_that_of_the_tables() -> None:
    stated = _rpcs(from_tables.file_descriptor())
    assert sum(map(len, stated.values())) == 14
    assert _rpcs(_own()) == stated


def test_it_is_one_plain_proto3_file() -> None:
    file = _own()
    assert (file.package, file.syntax, len(file.dependency), len(file.enum_type)) == ("thread.v1", "proto3", 0, 0)


def test_the_generator_is_pinned_and_no_newer_than_what_is_required_at_run_time() -> None:
    pinned = re.search(r'"grpcio-tools==([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    generated = re.search(r"Protobuf Python Version: ([\d.]+)", Path(thread_pb2.__file__).read_text(encoding="utf-8"))
    lowest = dict(re.findall(r"^(grpcio|protobuf)\W.*?>=([\d.]+)", "\n".join(requires("thread-node") or ()), re.M))
    assert pinned is not None
    assert generated is not None
    assert lowest == {"grpcio": pinned[1], "protobuf": generated[1]}
    assert pinned[1] == thread_pb2_grpc.GRPC_GENERATED_VERSION
