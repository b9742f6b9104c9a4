"""What a session says to each message: always an answer of the request's kind, never an error, never silence."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from fake_node import FakeNode
from grpc_caller import protocol

from thread_service import errors
from thread_service.node import operations
from thread_service.wire import limits
from thread_service.wire.dispatch import Dispatch
from thread_service.wire.v1 import thread_pb2 as pb

ARMS = {field.name for field in pb.ThreadSessionMessage.DESCRIPTOR.oneofs_by_name["payload"].fields}
REQUESTS = sorted(arm for arm in ARMS if arm.endswith("_request"))
CORRELATION_IDS = ["", "x" * 300, "zażółć \0 👩‍👩‍👧"]


def answer(node: FakeNode, message: pb.ThreadSessionMessage) -> pb.ThreadSessionMessage | None:
    return asyncio.run(Dispatch(node).answer(message))


@pytest.mark.parametrize("arm", REQUESTS)
def test_every_request_is_answered_in_its_kind_with_its_correlation_id(node: FakeNode, arm: str) -> None:
    for correlation_id in CORRELATION_IDS:
        message = pb.ThreadSessionMessage(correlation_id=correlation_id, thread_id="whoever", **{arm: {}})
        found = answer(node, message)
        assert found is not None
        assert (found.correlation_id, found.thread_id) == (correlation_id, "")
        assert found.WhichOneof("payload") == arm.replace("_request", "_response")


@pytest.mark.parametrize(
    "error", [errors.NotReady("loading"), errors.InvalidRequest("no"), RuntimeError("a fault"), errors.StoreFailed("x")]
)
@pytest.mark.parametrize("arm", REQUESTS)
def test_a_request_that_fails_is_answered_with_the_empty_response(node: FakeNode, arm: str, error: Exception) -> None:
    node.fails_with = error
    request: dict[str, Any] = {"search_request": {"query_text": "q"}, "index_request": {"items": [{"texts": ["t"]}]}}
    found = answer(node, pb.ThreadSessionMessage(correlation_id="c", **{arm: request.get(arm, {})}))
    assert found is not None
    assert found.correlation_id == "c"
    response = getattr(found, found.WhichOneof("payload") or "")
    assert found.WhichOneof("payload") == arm.replace("_request", "_response")
    assert response == type(response)()
    assert getattr(response, "success", False) is False


@pytest.mark.parametrize("arm", [None, *sorted(ARMS - set(REQUESTS))])
def test_pings_pongs_responses_and_nothing_are_not_answered(node: FakeNode, arm: str | None) -> None:
    message = pb.ThreadSessionMessage(correlation_id="c", **({} if arm is None else {arm: {}}))
    assert answer(node, message) is None
    assert node.asked == []


def test_an_arm_of_a_newer_protocol_is_not_answered(node: FakeNode) -> None:
    arm_33 = bytes([33 << 3 & 0x7F | 0x80 | 2, 33 << 3 >> 7, 0])
    message = pb.ThreadSessionMessage.FromString(b"\x0a\x01c" + arm_33)
    assert message.correlation_id == "c"
    assert answer(node, message) is None


def test_answers_are_those_of_the_direct_calls(node: FakeNode) -> None:
    passage = operations.Passage("a:0", "a", "o", None, "text", "text", math.pi, (), None)
    node.found = operations.SearchAnswer((passage,), operations.Trace())
    request = pb.ThreadSearchRequest(query_text="q", media_type="text")
    found = answer(node, pb.ThreadSessionMessage(search_request=request))
    assert found is not None
    assert found.search_response == asyncio.run(Dispatch(node).search(request))
    # As bytes it is what the protocol of the tables says.
    stated = protocol.ThreadSessionMessage.FromString(found.SerializeToString())
    assert stated.search_response.results[0].text == "text"
    assert stated.search_response.trace.media_type == "text"


def test_documents_beyond_what_fits_are_left_out_of_a_session(node: FakeNode) -> None:
    document = operations.DocumentContent("a", None, "o", "", "", 0, ("t",), "text", b"")
    node.contents = operations.DocumentsAnswer((document,), is_cut=True)
    request = pb.ThreadDocumentsRequest(document_ids=["a", "b"])
    found = answer(node, pb.ThreadSessionMessage(documents_request=request))
    assert found is not None
    assert [filed.id for filed in found.documents_response.documents] == ["a"]


def test_an_answer_over_the_cap_becomes_the_empty_one(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", 2**20)
    text = "x" * 2**20
    document = operations.DocumentContent("a", None, "o", "", "", 0, (text,), "text", b"")
    node.contents = operations.DocumentsAnswer((document,))
    found = answer(node, pb.ThreadSessionMessage(correlation_id="c", documents_request={"document_ids": ["a"]}))
    assert found == pb.ThreadSessionMessage(correlation_id="c", documents_response={})
