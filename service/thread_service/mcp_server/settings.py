"""The settings of `thread mcp`, declared as those of a node are: a flag, else a variable, else the `.env` file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from thread_service.setting_values import http_url, one_of, whole_number
from thread_service.settings import Declaration, Environment, SettingsError, declarations

_SECTION = "Assistant"
_TRANSPORTS = ("stdio", "http")


def _owner(text: str) -> str:
    return text.strip()


def _node_url(environment: Environment) -> str:
    """Where a node with the same environment listens."""
    port = environment.get("THREAD_PORT", "").strip()
    return f"http://127.0.0.1:{port or 8081}"


DECLARATIONS: Mapping[str, Declaration] = {
    "url": Declaration(
        "--url",
        _SECTION,
        "address of the node whose memory it is",
        http_url,
        _node_url,
        "http://127.0.0.1 and THREAD_PORT, else 8081",
        value_name="URL",
    ),
    "owner_id": Declaration(
        "--owner-id",
        _SECTION,
        "whose memory it is: what is remembered and forgotten is this owner's",
        _owner,
        lambda _: "me",
        "me",
        value_name="OWNER",
    ),
    "api_key": replace(declarations()["api_key"], section=_SECTION, help="the node's key, where it has one"),
    "transport": Declaration(
        "--transport",
        _SECTION,
        "how assistants reach it: as a program that they start, or over HTTP on this machine",
        one_of(_TRANSPORTS),
        lambda _: "stdio",
        "stdio",
        words=_TRANSPORTS,
        variable_name="THREAD_MCP_TRANSPORT",
        value_name="|".join(_TRANSPORTS),
    ),
    "port": Declaration(
        "--mcp-port",
        _SECTION,
        "port of that HTTP, at /mcp; 0 takes a free one",
        whole_number(0, 65_535),
        lambda _: 8082,
        "8082",
        value_name="PORT",
    ),
}


@dataclass(frozen=True, slots=True)
class McpSettings:
    url: str
    owner_id: str
    api_key: str
    transport: Literal["stdio", "http"]
    port: int


def load(flags: Mapping[str, str], environment: Environment, env_file: Environment) -> McpSettings:
    """`flags` by the names of `DECLARATIONS`. Raises `SettingsError` for the first value that cannot be used."""
    merged = {**env_file, **environment}
    values: dict[str, Any] = {}
    for name, declaration in DECLARATIONS.items():
        given = (flags.get(name, ""), declaration.flag), (merged.get(declaration.variable, ""), declaration.variable)
        text, source = next(((text, source) for text, source in given if text.strip()), ("", ""))
        try:
            values[name] = declaration.parse(text) if text else declaration.default(merged)
        except ValueError as error:
            raise SettingsError(f"{source}: {error}") from None
    return McpSettings(**values)
