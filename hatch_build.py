"""Generates the gRPC stubs from `protos/` while a wheel or an editable install is built.

The stubs are never committed: `build-system.requires` pins the generator, and with it the oldest grpcio and protobuf
that the generated code runs with (`dependencies` in `pyproject.toml`, held together by `tests/wire/test_proto.py`).
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "thread_service/wire/v1"


class GenerateStubs(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        protos = Path(self.root, "protos", "thread", "v1")
        sources = Path(self.root, "service")
        arguments = [
            "protoc",
            # The generated modules import one another by this path.
            f"--proto_path={PACKAGE}={protos}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--python_out={sources}",
            f"--pyi_out={sources}",
            f"--grpc_python_out={sources}",
            f"{PACKAGE}/thread.proto",
        ]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc could not generate the stubs of {protos / 'thread.proto'}")
        build_data["artifacts"].append(f"service/{PACKAGE}/*_pb2*")
        if version == "standard":
            build_data["force_include"][str(protos / "thread.proto")] = f"{PACKAGE}/thread.proto"
