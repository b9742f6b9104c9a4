"""`thread mcp` as an assistant sees it: through the SDK's own client, over stdio and over HTTP, before a live node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from mcp import Client as Assistant
from mcp import StdioServerParameters
from misbehaving import misbehaving, ok, problem

from thread_client import AsyncClient, Client, Retries
from thread_service import cli
from thread_service.mcp_server import answers
from thread_service.mcp_server.settings import DECLARATIONS, load
from thread_service.mcp_server.tools import build
from thread_service.settings import SettingsError

OWNER = "assistant"
COMMAND = [sys.executable, "-m", "thread_service.cli", "mcp"]

Json = dict[str, Any]


def run(use: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(use(), 60))


async def call(assistant: Assistant, tool: str, **arguments: Any) -> Json:
    result = await assistant.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def refused(assistant: Assistant, tool: str, **arguments: Any) -> str:
    result = await assistant.call_tool(tool, arguments)
    assert result.is_error
    [said] = result.content
    assert said.type == "text"
    return said.text


@contextlib.asynccontextmanager
async def started(url: str, key: str = "", owner: str = OWNER) -> AsyncIterator[Assistant]:
    """As an assistant's settings would start it."""
    variables = {"THREAD_API_KEY": key, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "--url", url, "--owner-id", owner], env=variables
    )
    async with Assistant(command) as assistant:
        yield assistant


@contextlib.asynccontextmanager
async def in_process(url: str) -> AsyncIterator[Assistant]:
    async with AsyncClient(url, owner_id=OWNER, retries=Retries(attempts=1)) as client, Assistant(build(client)) as it:
        yield it


@pytest.fixture
def over_http(node_url: str, key: str) -> Iterator[str]:
    environment = os.environ | {"THREAD_API_KEY": key, "THREAD_URL": node_url, "THREAD_OWNER_ID": "over http"}
    with subprocess.Popen(
        [*COMMAND, "--transport", "http", "--mcp-port", "0"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        yield process.stderr.readline().split()[1]
        process.terminate()
        assert "Traceback" not in process.stderr.read()


def test_an_assistant_remembers_recalls_looks_around_and_forgets(node_url: str, key: str) -> None:
    async def use() -> None:
        async with started(node_url, key) as assistant:
            first = await call(
                assistant,
                "remember",
                text="Ada Quill keeps the Tidal Ledger.",
                id="person/ada-quill",
                entities=[{"name": "Ada Quill", "kind": "person"}, {"name": "Tidal Ledger", "kind": "book"}],
                facts=[{"subject": "Ada Quill", "predicate": "keeps", "object": "Tidal Ledger"}],
                group="harbour",
            )
            assert first == {"id": "person/ada-quill", "outcome": "new"}
            second = await call(assistant, "remember", text="Orrin Vale began the Tidal Ledger in 1841.")
            assert second["outcome"] == "new"
            assert (await call(assistant, "remember", text="Orrin Vale began the Tidal Ledger in 1841."))[
                "outcome"
            ] == "skipped"

            recalled = await call(assistant, "recall", question="Who keeps the Tidal Ledger?", limit=2)
            assert {passage["id"] for passage in recalled["passages"]} == {"person/ada-quill", second["id"]}
            assert "Ada Quill — keeps — Tidal Ledger" in recalled["facts"]
            assert recalled["left_out"] is None
            within = await call(assistant, "recall", question="Tidal Ledger", group="harbour")
            assert [(passage["id"], passage["group"]) for passage in within["passages"]] == [
                ("person/ada-quill", "harbour")
            ]

            known = await call(assistant, "entities", name="Ada Quill")
            assert [(entity["name"], entity["kind"]) for entity in known["entities"]] == [
                ("Ada Quill", "person"),
                ("Tidal Ledger", "book"),
            ]
            assert known["facts"] == ["Ada Quill — keeps — Tidal Ledger"]

            hostile = "<script>\0 \u202e\U0001f9ff ../../x"
            assert (await call(assistant, "remember", text=hostile, id=hostile, name=hostile))["id"] == hostile
            [shown] = (await call(assistant, "recall", question=hostile, limit=1))["passages"]
            assert (shown["id"], shown["text"], shown["name"]) == (hostile, hostile, hostile)

            ids = ["person/ada-quill", hostile, "unknown"]
            assert await call(assistant, "forget", ids=ids) == {"removed": 2}
            left = await call(assistant, "recall", question="Ada Quill")
            assert [passage["id"] for passage in left["passages"]] == [second["id"]]

    run(use)


def test_over_http_it_is_the_same_memory_of_another_owner(over_http: str, node_url: str, key: str) -> None:
    async def use() -> None:
        async with Assistant(over_http) as assistant:
            assert (await call(assistant, "remember", text="Said over HTTP."))["outcome"] == "new"

    run(use)
    with Client(node_url, owner_id="over http", api_key=key) as client:
        assert [passage.text for passage in client.search("HTTP").passages] == ["Said over HTTP."]
        assert client.for_owner("another").search("HTTP").passages == ()


def test_another_sites_page_cannot_reach_it(over_http: str) -> None:
    import httpx

    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        answer = httpx.post(
            over_http,
            json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
            headers={"accept": "application/json", **headers},
            trust_env=False,
        )
        assert answer.status_code in (403, 421), headers


def test_every_tool_and_argument_is_described_and_bounded(node_url: str, key: str) -> None:
    async def use() -> None:
        async with started(node_url, key) as assistant:
            assert "lasts between conversations" in (assistant.instructions or "")
            tools = {tool.name: tool for tool in (await assistant.list_tools()).tools}
            assert sorted(tools) == ["entities", "forget", "recall", "remember"]
            for tool in tools.values():
                assert tool.description
                assert tool.output_schema
                for name, argument in tool.input_schema["properties"].items():
                    assert argument["description"], (tool.name, name)
                    assert re.search(r"(maxLength|maxItems|maximum)\"", json.dumps(argument)), (tool.name, name)
            assert tools["forget"].annotations is not None
            assert tools["forget"].annotations.destructive_hint
            assert len(json.dumps([tool.model_dump() for tool in tools.values()])) < 16_000

            for tool, arguments, field in (
                ("remember", {"text": ""}, "text"),
                ("recall", {"question": "x", "limit": 1_000}, "limit"),
                ("forget", {"ids": []}, "ids"),
                ("entities", {"hops": 9}, "hops"),
            ):
                assert field in await refused(assistant, tool, **arguments)

    run(use)


def test_what_the_node_says_is_what_the_assistant_reads() -> None:
    async def use() -> None:
        with misbehaving(problem(400, "query: is missing or blank; say what to search for")) as server:
            async with in_process(server.url) as assistant:
                assert "say what to search for" in await refused(assistant, "recall", question=" ")
        async with in_process(server.url) as assistant:
            assert "is a node running there?" in await refused(assistant, "recall", question="x")

    run(use)


def test_answers_are_bounded_and_say_what_they_leave_out() -> None:
    long = "word " * 2_000
    names = [f"Name {number}" for number in range(500)]
    reference = {
        "document_id": "x",
        "partition_id": "x:0",
        "distance": 0.123456,
        "owner_id": OWNER,
        "name": long,
        "entities": [{"id": name, "name": name, "kind": "k"} for name in names],
    }
    facts = [{"subject": name, "predicate": long, "object": "b", "weight": 1} for name in names]
    found = {"texts": [long] * 5, "references": [reference] * 5, "graph": {"entities": [], "relationships": facts}}
    entities = [{"id": name, "name": name, "kind": "k", "document_ids": names} for name in names]
    graph = {
        "entities": entities,
        "relationships": [],
        "documents": [],
        "stats": {"entity_count": 500, "relationship_count": 0},
    }

    async def use() -> None:
        with misbehaving(ok(found)) as server:
            async with in_process(server.url) as assistant:
                recalled = await call(assistant, "recall", question="x")
        assert len(json.dumps(recalled)) < 5 * answers.TEXT_CHARS_MAX + 40_000
        assert recalled["passages"][0]["text"].endswith("…")
        assert recalled["left_out"] == "5 passages are cut at 2,000 characters; 460 facts"
        with misbehaving(ok(graph)) as server:
            async with in_process(server.url) as assistant:
                known = await call(assistant, "entities", limit=3)
        assert len(known["entities"]) == 3
        assert known["total"] == 500
        assert known["left_out"] == "497 more entities near these; of each entity 10 document ids are listed"

    run(use)


def test_settings_are_taken_from_flags_then_variables_then_the_env_file() -> None:
    settings = load({"url": "http://127.0.0.1:1"}, {"THREAD_URL": "http://127.0.0.1:2", "THREAD_OWNER_ID": "ada"}, {})
    assert (settings.url, settings.owner_id, settings.transport) == ("http://127.0.0.1:1", "ada", "stdio")
    assert load({}, {}, {"THREAD_PORT": "9"}).url == "http://127.0.0.1:9"
    assert load({}, {}, {}).url == "http://127.0.0.1:8081"
    assert load({}, {}, {}).owner_id == "me"
    with pytest.raises(SettingsError, match=r"^--transport: "):
        load({"transport": "telepathy"}, {}, {})
    with pytest.raises(SettingsError, match=r"^THREAD_MCP_PORT: "):
        load({}, {"THREAD_MCP_PORT": "many"}, {})


def test_its_settings_are_in_the_documentation() -> None:
    from thread_service.settings import table

    page = (Path(__file__).parents[2] / "docs" / "assistant.md").read_text(encoding="utf-8")
    assert "\n".join(table(DECLARATIONS.values())) in page, "paste what thread_service.settings.table says"


def test_without_the_sdk_the_command_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("thread_service.mcp_server.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert cli.main(["mcp"]) == 1
    assert capsys.readouterr().err == "thread: thread mcp needs the package mcp: pip install 'thread-node[mcp]'\n"


def test_a_port_in_use_and_an_unknown_flag_are_one_line(node_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = node_url.rpartition(":")[2]
    assert cli.main(["mcp", "--transport", "http", "--mcp-port", port]) == 1
    assert f"port {port} on 127.0.0.1 is already in use" in capsys.readouterr().err
    assert cli.main(["mcp", "--owner", "me"]) == 2
    assert "--owner" in capsys.readouterr().err
