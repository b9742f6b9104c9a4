"""The HTTP interface: each route translates, calls the node, and translates back.

What goes in and out is in `schemas`, how it maps to the node in `convert` and `render`, what a failure looks like in
`problems`.
The OpenAPI document is served at `/schema` as JSON, which any viewer reads; nothing here needs the network.
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import Annotated, Any

from litestar import Litestar, MediaType, Request, Response, Router, get, post, route
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.enums import HttpMethod
from litestar.exceptions import NotFoundException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from thread_service.errors import NotReady
from thread_service.node import operations
from thread_service.settings import Settings
from thread_service.wire import convert, examples, graph_admin, page, problems, render, schemas
from thread_service.wire import metrics as metrics_page
from thread_service.wire.bodies import JSONBody, decode
from thread_service.wire.declare import TheAvailability, TheNode, TheSettings, TheStack, body, operation
from thread_service.wire.guards import OPEN, api_key_guard
from thread_service.wire.measure import MeasureLatency, count_answer
from thread_service.wire.mothership.availability import Availability
from thread_service.wire.node_protocol import Node
from thread_service.wire.secret import NONCE_HEADER, PUBLIC, Stack, stack_guard

# ---------------------------------------------------------------------------------------------------- health


@route(
    "/health",
    http_method=[HttpMethod.GET, HttpMethod.POST],
    status_code=200,
    opt=OPEN | PUBLIC,
    summary="How the embedder is",
)
async def health(request: Request[Any, Any, Any], node: TheNode, stack: TheStack) -> schemas.HealthAnswer:
    return render.health_answer(
        node.embedder_health(),
        node.engine_health(),
        int(time.time()),
        stack,
        nonce=request.headers.get(NONCE_HEADER, ""),
    )


@get("/livez", opt=OPEN, summary="The process answers")
async def livez() -> schemas.Probe:
    return schemas.Probe()


@get("/readyz", opt=OPEN, summary="The store is open and recovered")
async def readyz(node: TheNode) -> schemas.Probe:
    if not node.ready:
        raise NotReady("the store is still being opened", retry_after_seconds=1)
    return schemas.Probe()


@get("/metrics", media_type=MediaType.TEXT, summary="Metrics in the format of Prometheus")
async def metrics(node: TheNode) -> Response[bytes]:
    return Response(await metrics_page.page(node), headers={"Content-Type": metrics_page.CONTENT_TYPE})


# ---------------------------------------------------------------------------------------------------- operations


@operation("/v1/batch/embeddings", "File documents")
async def batch(
    data: Annotated[schemas.BatchRequest, body(examples.BATCH)], node: TheNode, settings: TheSettings
) -> schemas.BatchAnswer:
    sent = await asyncio.to_thread(convert.batch, data, node.node_id, settings.chunk_chars)
    filed = await node.file(sent.request)
    library = await node.library(operations.LibraryRequest(sent.request.owner_id, include_documents=False))
    return render.batch_answer(sent, filed, library, node.embedder_health().model)


@operation("/v1/search", "Find passages")
async def search(data: Annotated[schemas.SearchRequest, body(examples.SEARCH)], node: TheNode) -> schemas.SearchAnswer:
    request = convert.search_request(data)
    return render.search_answer(await node.search(request), node.node_id, request.media_type)


@operation("/v1/graph", "Look around in the knowledge graph")
async def graph(data: Annotated[schemas.GraphRequest, body(examples.GRAPH)], node: TheNode) -> schemas.GraphAnswer:
    return render.graph_answer(await node.graph(convert.graph_request(data)))


@operation("/v1/library", "List groups and their documents")
async def library(
    data: Annotated[schemas.LibraryRequest, body(examples.LIBRARY)], node: TheNode
) -> schemas.LibraryAnswer:
    return render.library_answer(await node.library(convert.library_request(data)))


@operation("/v1/library/document", "List the groups that hold a document")
async def library_document(
    data: Annotated[schemas.LibraryDocumentRequest, body(examples.LIBRARY_DOCUMENT)], node: TheNode
) -> schemas.LibraryAnswer:
    return render.library_answer(await node.library(convert.library_document_request(data)))


@operation("/v1/documents", "Read documents back")
async def documents(
    data: Annotated[schemas.DocumentsRequest, body(examples.DOCUMENTS)], node: TheNode
) -> schemas.DocumentsAnswer:
    request = convert.documents_request(data)
    answer = convert.whole(await node.documents(request))
    return render.documents_answer(answer, with_partitions=request.include_embeddings)


@operation("/v1/export", "Read an owner's documents back, page by page")
async def export(data: Annotated[schemas.ExportRequest, body(examples.EXPORT)], node: TheNode) -> schemas.ExportAnswer:
    request = convert.export_request(data)
    return render.export_answer(await node.export(request), with_partitions=request.include_embeddings)


@operation("/v1/group/update", "Change a group's access, label or metadata")
async def update_group(
    data: Annotated[schemas.UpdateGroupRequest, body(examples.UPDATE_GROUP)], node: TheNode
) -> schemas.UpdateGroupAnswer:
    return render.group_updated(await node.update_group(convert.update_group_request(data)), data.group_id)


@operation("/v1/document/update", "Change a document's access or move it to another group")
async def update_document(
    data: Annotated[schemas.UpdateDocumentRequest, body(examples.UPDATE_DOCUMENT)], node: TheNode
) -> schemas.UpdateDocumentAnswer:
    return render.document_updated(await node.update_document(convert.update_document_request(data)), data.document_id)


@post("/v1/stats", status_code=200, summary="Count documents, groups and owners of the whole node")
async def stats(node: TheNode) -> schemas.StatsAnswer:
    return render.stats_answer(await node.stats())


@operation("/v1/remove", "Remove documents")
async def remove(data: Annotated[schemas.RemoveRequest, body(examples.REMOVE)], node: TheNode) -> schemas.RemoveAnswer:
    return schemas.RemoveAnswer(success=True, removed_count=await node.remove(convert.remove_request(data)))


@operation("/v1/clear", "Remove everything on this node")
async def clear(data: Annotated[schemas.ClearRequest, body(examples.CLEAR)], node: TheNode) -> schemas.ClearAnswer:
    convert.confirmed(data)
    cleared = await node.clear()
    return schemas.ClearAnswer(cleared=True, documents=cleared.documents, entities=cleared.entities)


# ---------------------------------------------------------------------------------------------------- membership


@operation("/v1/availability", "Say whether a mothership may route new documents here")
async def say_availability(
    data: Annotated[schemas.AvailabilityRequest, body(examples.AVAILABILITY)], availability: TheAvailability
) -> schemas.AvailabilityAnswer:
    await availability.set(data.accepting_storage)
    return schemas.AvailabilityAnswer()


@get("/v1/availability", include_in_schema=False)
async def say_availability_by_get(
    request: Request[Any, Any, Any], availability: TheAvailability
) -> schemas.AvailabilityAnswer:
    """As some callers ask for it, with the same body."""
    await availability.set(decode(await request.body(), schemas.AvailabilityRequest).accepting_storage)
    return schemas.AvailabilityAnswer()


# ---------------------------------------------------------------------------------------------------- application


def create_app(
    node: Node, settings: Settings, *, stack: Stack | None = None, availability: Availability | None = None
) -> Litestar:
    """The ASGI application that serves `node`.

    `stack`: callers must know its secret. `availability`: there is a mothership to tell.
    """
    guards = [stack_guard(stack)] if stack else []
    guards += [api_key_guard(settings.api_key)] if settings.api_key else []
    return Litestar(
        [
            *page.ROUTES,
            *(health, livez, readyz, metrics),
            *(batch, search, graph, library, library_document, documents, export),
            *graph_admin.ROUTES,
            *(stats, update_group, update_document, remove, clear),
            *((say_availability, say_availability_by_get) if availability else ()),
        ],
        dependencies={
            "node": Provide(lambda: node, sync_to_thread=False),
            "settings": Provide(lambda: settings, sync_to_thread=False),
            "stack": Provide(lambda: stack, sync_to_thread=False),
            "availability": Provide(lambda: availability, sync_to_thread=False),
        },
        dto=JSONBody,
        return_dto=None,
        guards=guards,
        middleware=[MeasureLatency()],
        before_send=[count_answer],
        exception_handlers=problems.HANDLERS,
        request_max_body_size=settings.max_body_mb * 2**20,
        cors_config=None
        if stack
        else CORSConfig(
            allow_origins=["*"],
            allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["accept", "authorization", "content-type", "origin"],
        ),
        openapi_config=_openapi(settings),
        logging_config=None,
    )


def _openapi(settings: Settings) -> OpenAPIConfig:
    def refuse_html(response: Response[Any]) -> Response[Any]:
        # The framework answers unknown paths below /schema with an HTML page of its own.
        if response.status_code == 404:
            raise NotFoundException
        return response

    protected = bool(settings.api_key)
    scheme = SecurityScheme(type="http", scheme="bearer", description="The key of --api-key")
    return OpenAPIConfig(
        title="Thread",
        version=version("thread-node"),
        description="A memory node: give it text, it gives back the passages that answer a question.",
        render_plugins=[JsonRenderPlugin(path=["/", "/openapi.json"])],
        components=Components(security_schemes={"key": scheme} if protected else None),
        security=[{"key": []}] if protected else None,
        openapi_router=Router(
            "/schema", route_handlers=[], include_in_schema=False, dto=None, return_dto=None, after_request=refuse_html
        ),
    )
