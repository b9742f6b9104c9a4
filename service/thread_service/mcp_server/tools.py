"""The four tools by which an assistant uses a node as its memory. What their descriptions say is for the assistant.

Each asks the node through `thread_client`; what the node refuses, the assistant reads as the sentence the node gave.
"""

from __future__ import annotations

from collections.abc import Awaitable
from importlib.metadata import version
from typing import TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from thread_client import AsyncClient, EntityIn, NodeError
from thread_service.mcp_server import answers
from thread_service.mcp_server import arguments as given

T = TypeVar("T")

INSTRUCTIONS = """\
A memory that lasts between conversations. `recall` before you answer from memory, and whenever the user refers to
something said earlier. `remember` what will still matter later: decisions, preferences, facts about people and
projects, where things are. Not what is only true for the moment, and no secrets such as passwords. One text holds one
matter, in full sentences that name who and what they are about, because it will be read without this conversation.
When something changes, remember it again under the same id: it takes the place of the earlier text."""


def build(client: AsyncClient) -> MCPServer:
    """An MCP server whose tools work on the memory of the client's owner."""
    server: MCPServer = MCPServer(
        "thread",
        title="Thread memory",
        instructions=INSTRUCTIONS,
        version=version("thread-node"),
        log_level="WARNING",
    )

    @server.tool(
        title="Remember a text",
        annotations=ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False),
    )
    async def remember(
        text: given.Text,
        id: given.OwnId = None,
        name: given.Title = None,
        entities: given.Entities = None,
        facts: given.Facts = None,
        group: given.IntoGroup = None,
    ) -> answers.Remembered:
        """Keep a text for later conversations. It is on disk and can be recalled when this returns."""
        filed = await _asked(
            client.remember(
                text,
                id=id,
                name=name,
                group=group,
                entities=None if entities is None else [EntityIn(item.name, item.kind) for item in entities],
                facts=[(item.subject, item.predicate, item.object) for item in facts or ()],
            )
        )
        if filed.outcome == "failed" or filed.id is None:
            why = filed.reason or "there is nothing in it that could be found again"
            raise ToolError(f"the text cannot be recalled: {why}; send words")
        return answers.Remembered(id=filed.id, outcome=filed.outcome)

    @server.tool(title="Recall", annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    async def recall(
        question: given.Question,
        limit: given.Passages = 5,
        group: given.InGroup = None,
        about: given.About = None,
    ) -> answers.Recalled:
        """Find what was remembered: by meaning, by words, and by how things are related. The nearest there is comes
        back even when nothing is near, so read the passages before relying on them."""
        groups = [group] if group else ()
        return answers.recalled(await _asked(client.search(question, top_k=limit, groups=groups, entities=about or ())))

    @server.tool(title="Look at what is known", annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    async def entities(
        name: given.EntityName = None,
        like: given.Like = None,
        hops: given.Hops = 1,
        limit: given.Shown = 10,
    ) -> answers.Known:
        """List people, places and things that the memory knows, how they are related, and the ids of the texts about
        them. For the name by which a thing goes before remembering more about it, and for ids before forgetting."""
        return answers.known(await _asked(client.graph(name or "", query=like or "", hops=hops, limit=limit)), limit)

    @server.tool(
        title="Forget",
        annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False),
    )
    async def forget(ids: given.Ids) -> answers.Forgotten:
        """Remove texts for good, and what only they said of entities. Only when the user wants them gone: to correct a
        text, remember it again under its id."""
        return answers.Forgotten(removed=(await _asked(client.remove(ids))).removed_count)

    return server


async def _asked(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except NodeError as error:
        raise ToolError(str(error)) from None
