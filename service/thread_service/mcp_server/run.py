"""`thread mcp`: the tools over standard input and output, or over HTTP on this machine, until asked to stop."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from thread_client import AsyncClient, Retries
from thread_service.mcp_server.settings import McpSettings
from thread_service.mcp_server.tools import build
from thread_service.wire.server import listen

_HOST = "127.0.0.1"
_RETRIES = Retries(attempts=5, seconds=20.0)
"""An assistant waits for the answer of a tool: soon enough it is told what is wrong."""


def run(settings: McpSettings) -> None:
    """Serve until the caller goes away (stdio) or a signal comes (HTTP). Raises `OSError` for a port in use."""
    asyncio.run(_run(settings))


async def _run(settings: McpSettings) -> None:
    client = AsyncClient(settings.url, owner_id=settings.owner_id, api_key=settings.api_key, retries=_RETRIES)
    async with client:
        server = build(client)
        if settings.transport == "stdio":
            await server.run_stdio_async()
            return
        sockets = listen(_HOST, settings.port, "--mcp-port")
        address = f"http://{_HOST}:{sockets[0].getsockname()[1]}/mcp"
        sys.stderr.write(f"MCP   {address}\nnode  {settings.url}, the memory of {settings.owner_id}\n")
        # Each request stands alone: nothing is lost with a restart, and nothing grows with the number of callers.
        app = server.streamable_http_app(host=_HOST, stateless_http=True, json_response=True)
        config = uvicorn.Config(app, ws="none", log_config=None, access_log=False, server_header=False)
        await uvicorn.Server(config).serve(sockets)
