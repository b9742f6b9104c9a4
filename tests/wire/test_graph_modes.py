"""Every part that the graph can take in a search, over HTTP, gRPC and a mothership session alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from grpc_caller import serving
from in_process import InProcess, document, opened, unit
from litestar.testing import TestClient
from member import member
from mothership import listening

from thread_service.settings import Settings
from thread_service.wire.dispatch import Dispatch
from thread_service.wire.http import create_app
from thread_service.wire.v1 import thread_pb2 as pb

FRONTS = ("http", "grpc", "session")
QUERY = "which one"


class Found(NamedTuple):
    """`names` and `edges` of the trace; `has_trace`: there was one at all."""

    distances: dict[str, float]
    names: list[str]
    edges: int
    expanded: int
    has_trace: bool


def ask(front: str, node: InProcess, owner: str, query: str, **more: Any) -> Found:
    """`more`: entities and media_type."""
    return {"http": over_http, "grpc": over_grpc, "session": over_session}[front](node, owner, query, more)


def over_http(node: InProcess, owner: str, query: str, more: dict[str, Any]) -> Found:
    with TestClient(create_app(node.node, Settings())) as client:
        body = {"query": query, "thread": {"owner_id": owner, "top_k": 50, **more}}
        answer = client.post("/v1/search", json=body).json()
    graph = answer.get("graph", {"entities": [], "relationships": [], "expanded_documents": 0})
    return Found(
        {reference["document_id"]: reference["distance"] for reference in answer["references"]},
        [entity["name"] for entity in graph["entities"]],
        len(graph["relationships"]),
        graph["expanded_documents"],
        "graph" in answer,
    )


def over_grpc(node: InProcess, owner: str, query: str, more: dict[str, Any]) -> Found:
    with serving(node.node) as caller:
        request = {"owner_id": owner, "query_text": query, "top_k": 50, **more}
        return from_message(caller.call("ThreadQuery/Search", request), more)


def over_session(node: InProcess, owner: str, query: str, more: dict[str, Any]) -> Found:
    request = pb.ThreadSearchRequest(owner_id=owner, query_text=query, top_k=50, **more)

    async def scenario() -> Any:
        async with listening() as mothership, member(mothership.port, Dispatch(node.node)):
            session = await mothership.session()
            return (await session.ask(search_request=request)).search_response

    return from_message(asyncio.run(scenario()), more)


def from_message(response: Any, asked: dict[str, Any]) -> Found:
    trace = response.trace
    assert len(trace.matched_entity_ids) == len(trace.matched_entity_names)
    assert trace.media_type == asked.get("media_type", "")
    scores = {result.document_id: result.score for result in response.results}
    assert [*scores.values()] == sorted(scores.values())
    return Found(
        scores,
        list(trace.matched_entity_names),
        len(trace.expansion_edge_ids),
        trace.expanded_document_count,
        response.HasField("trace"),
    )


def approximately(distances: dict[str, float]) -> Any:
    """Distances travel as float32 over gRPC."""
    return {id: pytest.approx(distance, rel=1e-5) for id, distance in distances.items()}


@pytest.fixture(params=["boost", "narrow", "off"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def filed(tmp_path: Path, mode: str) -> Iterator[InProcess]:
    """A node of this mode. ann: an edge near to the query, one beside it, and code; ben: the same names in private."""
    with opened(tmp_path, graph_mode=mode, lexical=False) as node:
        node.embedder.vectors |= {
            QUERY: unit(1),
            f"{QUERY} `Repl.handle`": unit(1),
            "Relationship predicates: keeps": unit(0, 1),
            "concept: Ada Quill keeps concept: Long Clock": unit(0.6, 0, 0, 0.8),
            "Relationship predicate: keeps": unit(-1),
            "concept: Long Clock stands in concept: Old Town": unit(-1),
            "Relationship predicate: stands in": unit(-1, -1),
            "concept: Tide moves concept: Sand": unit(0, 1),
            "Relationship predicate: moves": unit(-1, 0, 1),
        }
        for owner in ("ann", "ben"):
            secret = "" if owner == "ann" else "ben "
            node.file(
                owner,
                *(
                    document(f"{secret}{id}", id=f"{secret}{id}", vectors=[unit(1, at)], edges=edges)
                    for id, at, edges in (
                        ("near", 3, [("Ada Quill", "keeps", "Long Clock")]),
                        ("beside", 2, [("Long Clock", "stands in", "Old Town")]),
                        ("away", 1, [("Tide", "moves", "Sand")]),
                    )
                ),
                *(
                    document(
                        f"{secret}{id}", id=f"{secret}{id}", vectors=[unit(1, at)], media_type="code", entities=entities
                    )
                    for id, at, entities in (
                        ("called", 2, [(f"sym:fn {secret.strip()}Repl.handle(_:)", "function")]),
                        ("uncalled", 1, []),
                    )
                ),
            )
        yield node


@pytest.mark.parametrize("front", FRONTS)
def test_prose(filed: InProcess, mode: str, front: str) -> None:
    plain = over_http(filed, "ann", QUERY, {"graph_mode": "off"}).distances
    assert set(plain) == {"near", "beside", "away", "called", "uncalled"}
    found = ask(front, filed, "ann", QUERY)
    if mode == "off":
        assert found == Found(approximately(plain), [], 0, 0, False)
    elif mode == "narrow":
        assert found.distances == approximately({"near": plain["near"], "beside": plain["beside"] * 1.1})
        assert found[1:] == (["Ada Quill", "Long Clock"], 2, 1, True)
    else:
        assert set(found.distances) == set(plain)
        assert found.distances["near"] < plain["near"]
        assert {"Ada Quill", "Long Clock"} <= set(found.names)
        assert found.has_trace
    assert over_http(filed, "ann", QUERY, {"graph_mode": mode}) == found._replace(
        distances=approximately(found.distances)
    )


@pytest.mark.parametrize("front", FRONTS)
def test_code(filed: InProcess, mode: str, front: str) -> None:
    plain = over_http(filed, "ann", QUERY, {"graph_mode": "off", "media_type": "code"}).distances
    assert set(plain) == {"called", "uncalled"}
    found = ask(front, filed, "ann", f"{QUERY} `Repl.handle`", media_type="code")
    called = plain["called"] * (1.0 if mode == "off" else 0.85)
    assert found.distances == approximately({**plain, "called": called})
    assert found[1:] == ([] if mode == "off" else ["sym:fn Repl.handle(_:)"], 0, 0, True)
    named = ask(front, filed, "ann", QUERY, media_type="code", entities=["handle"])
    called = plain["called"] * (1.0 if mode == "off" else 0.85**0.6)
    assert named.distances == approximately({**plain, "called": called})
    nothing = ask(front, filed, "ann", QUERY, media_type="code", entities=["nobody"])
    assert nothing == Found(approximately(plain), [], 0, 0, True)


@pytest.mark.parametrize("mode", ["narrow"])
@pytest.mark.parametrize(("front", "predicates"), [("http", False), ("grpc", True), ("session", True)])
def test_terms_are_read_as_predicates_where_the_protocol_says_so(
    filed: InProcess, front: str, predicates: bool
) -> None:
    found = ask(front, filed, "ann", QUERY, entities=["keeps"])
    assert ("away" in found.distances) == predicates
    assert (("Relationship predicates: keeps", "query") in filed.embedder.embedded) == predicates
