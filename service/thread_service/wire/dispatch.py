"""The operations of a node in the messages of `thread.proto`: what the gRPC server and a mothership session serve.

Both only carry messages; translation is in `convert_grpc`, the work in the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from thread_service.errors import ThreadError, TooLarge
from thread_service.node import operations
from thread_service.wire import convert, convert_grpc, limits
from thread_service.wire.node_protocol import Node
from thread_service.wire.v1 import thread_pb2 as pb

_log = logging.getLogger(__name__)

_ENVELOPE_BYTES = 2**16
"""Left free in a message for what a session puts around an answer."""

Answer = TypeVar("Answer", bound=Message)


class Dispatch:
    """One coroutine for each rpc. Each raises the errors of `thread_service.errors` and no others on purpose."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_arm: dict[str, Callable[..., Awaitable[Message]]] = {
            "search_request": self.search,
            "index_request": self.index,
            "remove_request": self.remove,
            "library_request": self.library,
            "update_group_request": self.update_group,
            "update_document_request": self.update_document,
            "stats_request": self.stats,
            "graph_request": self.graph,
            "documents_request": self._first_documents,
        }

    async def search(self, message: pb.ThreadSearchRequest) -> pb.ThreadSearchResponse:
        """Nothing to search for finds nothing."""
        request = convert_grpc.search_request(message)
        if request is None:
            return pb.ThreadSearchResponse()
        answer = await self._node.search(request)
        return _fitting(convert_grpc.search_response(answer, self._node.node_id, request.media_type))

    async def index(self, message: pb.ThreadIndexRequest) -> pb.ThreadIndexResponse:
        """Answers when the documents are durable, which is before they can be searched."""
        request = await asyncio.to_thread(convert_grpc.file_request, message, self._node.node_id)
        if not request.documents:
            return pb.ThreadIndexResponse(success=True)
        return convert_grpc.index_response(await self._node.file(request))

    async def remove(self, message: pb.ThreadRemoveRequest) -> pb.ThreadRemoveResponse:
        """`removed_count` is what was really removed, and it is durable."""
        removed = await self._node.remove(convert_grpc.remove_request(message))
        return pb.ThreadRemoveResponse(success=True, removed_count=removed)

    async def update_group(self, message: pb.ThreadUpdateGroupRequest) -> pb.ThreadUpdateGroupResponse:
        updated = await self._node.update_group(convert_grpc.update_group_request(message))
        return pb.ThreadUpdateGroupResponse(success=updated.applied, group_id=message.group_id)

    async def update_document(self, message: pb.ThreadUpdateDocumentRequest) -> pb.ThreadUpdateDocumentResponse:
        updated = await self._node.update_document(convert_grpc.update_document_request(message))
        return pb.ThreadUpdateDocumentResponse(success=updated.applied, document_id=message.document_id)

    async def stats(self, _: pb.ThreadStatsRequest) -> pb.ThreadStatsResponse:
        return convert_grpc.stats_response(await self._node.stats())

    async def library(self, message: pb.ThreadLibraryRequest) -> pb.ThreadLibraryResponse:
        return _fitting(convert_grpc.library_response(await self._node.library(convert_grpc.library_request(message))))

    async def documents(self, message: pb.ThreadDocumentsRequest) -> pb.ThreadDocumentsResponse:
        return _fitting(convert_grpc.documents_response(convert.whole(await self._documents(message))))

    async def export_corpus(self, message: pb.ThreadExportCorpusRequest) -> pb.ThreadExportCorpusResponse:
        return _fitting(convert_grpc.export_response(await self._node.export(convert_grpc.export_request(message))))

    async def graph(self, message: pb.ThreadGraphQueryRequest) -> pb.ThreadGraphQueryResponse:
        return _fitting(convert_grpc.graph_response(await self._node.graph(convert_grpc.graph_request(message))))

    async def answer(self, message: pb.ThreadSessionMessage) -> pb.ThreadSessionMessage | None:
        """What a session says to a message: the response of the request's kind, empty when the request fails.

        The protocol has no word for an error, and a mothership waits out its time for a request that is met with
        silence. None for pings, pongs, responses, empty messages and arms of a newer protocol. Raises nothing.
        """
        arm = message.WhichOneof("payload") or ""
        operation = self._by_arm.get(arm)
        if operation is None:
            return None
        answer = pb.ThreadSessionMessage(correlation_id=message.correlation_id)
        response = getattr(answer, arm.removesuffix("_request") + "_response")
        response.SetInParent()
        try:
            response.CopyFrom(await operation(getattr(message, arm)))
        except ThreadError as error:
            _log.warning("%s of the mothership failed: %s", arm, error)
        except Exception:
            _log.exception("%s of the mothership failed", arm)
        return answer

    async def _first_documents(self, message: pb.ThreadDocumentsRequest) -> pb.ThreadDocumentsResponse:
        """For a session, which can be told nothing: as many of the documents as fit."""
        answer = await self._documents(message)
        if answer.is_cut:
            _log.warning("documents_request of the mothership asks for more than fits; the rest is left out")
        return _fitting(convert_grpc.documents_response(answer))

    async def _documents(self, message: pb.ThreadDocumentsRequest) -> operations.DocumentsAnswer:
        return await self._node.documents(convert_grpc.documents_request(message))


def _fitting(response: Answer) -> Answer:
    if response.ByteSize() > limits.MESSAGE_BYTES_MAX - _ENVELOPE_BYTES:
        raise TooLarge(
            f"the answer has {response.ByteSize():,} bytes, more than one message of"
            f" {limits.MESSAGE_BYTES_MAX // 2**20} MiB holds; ask for less"
        )
    return response
