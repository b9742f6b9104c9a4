"""Three nodes under one mothership behave as one node that holds everything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess, WordsEmbedder, opened
from member import FAST
from mothership import Mothership, Stream, listening

from thread_service.settings import Settings
from thread_service.wire.grpc_server import GrpcServer
from thread_service.wire.mothership.fleet import Fleet
from thread_service.wire.v1 import thread_pb2 as pb

DEMO = Path(__file__).parents[2] / "examples" / "demo"
OWNERS = ("ada", "bo", "cy")
TOP_K = 10


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]


def item(passage: dict[str, Any]) -> pb.ThreadIndexItem:
    return pb.ThreadIndexItem(
        document_id=passage["id"],
        name=passage["name"],
        texts=[passage["text"]],
        entities=[pb.ThreadGraphEntityIn(**entity) for entity in passage.get("entities", ())],
        relationships=[pb.ThreadGraphRelationIn(**edge) for edge in passage.get("relationships", ())],
    )


CORPUS = [item(passage) for passage in lines("corpus.jsonl")]
# A question and the documents that answer it.
RELEVANT = [
    *((line["question"], set(line["document_ids"])) for line in lines("questions.jsonl")),
    *((f"What is {document.name}?", {document.document_id}) for document in CORPUS),
]


@contextlib.contextmanager
def nodes(path: Path, count: int, **options: Any) -> Iterator[list[InProcess]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(opened(path / str(n), WordsEmbedder(), **options)) for n in range(count)]


@dataclass
class Joined:
    """One node in the fleet: `grpc_port` is its own, `fleet` its memberships."""

    node: InProcess
    grpc_port: int
    fleet: Fleet


@contextlib.asynccontextmanager
async def joined(node: InProcess, mothership: Mothership, **settings: Any) -> AsyncIterator[Joined]:
    server = GrpcServer("127.0.0.1", 0)
    await server.start(node.node)
    asked = Settings(mothership_host="127.0.0.1", mothership_grpc_port=mothership.port, data_dir=node.path, **settings)
    fleet, stop = Fleet(asked, None, node.node, 8081, server.port, FAST), asyncio.Event()
    task = asyncio.create_task(fleet.run(stop))
    try:
        yield Joined(node, server.port, fleet)
    finally:
        stop.set()
        await task
        await server.stop(0)


@contextlib.asynccontextmanager
async def a_fleet(members: Sequence[InProcess]) -> AsyncIterator[tuple[Mothership, list[Stream]]]:
    async with contextlib.AsyncExitStack() as stack:
        mothership = await stack.enter_async_context(listening())
        for member in members:
            await stack.enter_async_context(joined(member, mothership))
        yield mothership, [await mothership.session(member.node.node_id) for member in members]


async def index(stream: Stream, owner: str, items: Sequence[pb.ThreadIndexItem], **more: Any) -> None:
    request = pb.ThreadIndexRequest(owner_id=owner, items=items, **more)
    answer = (await stream.ask(index_request=request)).index_response
    assert (answer.success, list(answer.full_cids)) == (True, [item.document_id for item in items])


async def fan_out(streams: Sequence[Stream], arm: str, request: Any) -> list[Any]:
    answers = await asyncio.gather(*(stream.ask(**{f"{arm}_request": request}) for stream in streams))
    return [getattr(answer, f"{arm}_response") for answer in answers]


async def search(streams: Sequence[Stream], owner: str, query: str, **more: Any) -> list[Any]:
    """As a mothership does it: everybody's results in one list, ascending."""
    request = pb.ThreadSearchRequest(owner_id=owner, query_text=query, top_k=TOP_K, **more)
    answers = await fan_out(streams, "search", request)
    return sorted((result for answer in answers for result in answer.results), key=lambda result: result.score)


def test_without_graph_and_words_a_merged_search_is_that_of_one_node(tmp_path: Path) -> None:
    async def scenario(one: InProcess, three: list[InProcess]) -> None:
        async with a_fleet([one, *three]) as (_, (alone, *streams)):
            for number, owner in enumerate(OWNERS):
                for at, stream in enumerate(streams):
                    for target in (alone, stream):
                        await index(target, owner, CORPUS[number::3][at::3], group_id="shared")
                share = pb.ThreadUpdateGroupRequest(owner_id=owner, group_id="shared", access="available")
                answers = await fan_out([alone, *streams], "update_group", share)
                assert [answer.success for answer in answers] == [True] * 4
            await asyncio.to_thread(lambda: [node.settle() for node in (one, *three)])
            for number, (question, _) in enumerate(RELEVANT):
                more = {"scope": "global"} if number % 2 else {"aggregate": True, "scope": "personal"}
                expected = await search([alone], OWNERS[number % 3], question, **more)
                merged = await search(streams, OWNERS[number % 3], question, **more)
                assert [r.score for r in merged[:TOP_K]] == pytest.approx([r.score for r in expected], abs=1e-5)
                # Documents at the same distance have no order among them.
                last = expected[-1].score - 1e-5
                assert {r.partition_id for r in merged[:TOP_K] if r.score < last} == {
                    r.partition_id for r in expected if r.score < last
                }
                assert {r.thread_id for r in merged} <= {node.node.node_id for node in three}

    with nodes(tmp_path, 4, graph_mode="off", lexical=False) as (one, *three):
        asyncio.run(scenario(one, three))


def test_entities_and_relationships_have_the_same_ids_on_every_node(tmp_path: Path) -> None:
    # A document's name becomes an entity where no other document lists it, which is for each node to see.
    unnamed = [pb.ThreadIndexItem.FromString(document.SerializeToString()) for document in CORPUS]
    for document in unnamed:
        document.name = ""

    async def scenario(one: InProcess, three: list[InProcess]) -> None:
        async with a_fleet([one, *three]) as (_, (alone, *streams)):
            for at, stream in enumerate(streams):
                for target in (alone, stream):
                    await index(target, "ada", unnamed[at::3])
            await asyncio.to_thread(lambda: [node.settle() for node in (one, *three)])
            names = sorted({entity.name for doc in CORPUS for entity in doc.entities})[::7]
            requests = [
                pb.ThreadGraphQueryRequest(owner_id="ada", entity=name, hops=1, limit=1_000, include_documents=True)
                for name in names
            ]
            for request in requests:
                (expected,) = await fan_out([alone], "graph", request)
                answers = await fan_out(streams, "graph", request)
                entities = {entity.id: entity for answer in answers for entity in answer.entities}
                edges = {edge.id: edge for answer in answers for edge in answer.relationships}
                assert entities.keys() == {entity.id for entity in expected.entities}
                assert edges.keys() == {edge.id for edge in expected.relationships}
                for entity in expected.entities:
                    assert (entities[entity.id].kind, entities[entity.id].name) == (entity.kind, entity.name)
                for edge in expected.relationships:
                    theirs = [e for answer in answers for e in answer.relationships if e.id == edge.id]
                    assert sum(e.weight for e in theirs) == edge.weight
                    assert sorted(d for e in theirs for d in e.document_ids) == list(edge.document_ids)

    with nodes(tmp_path, 4) as (one, *three):
        asyncio.run(scenario(one, three))


def test_with_graph_and_words_a_fleet_finds_the_passages_that_one_node_finds(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """What evidence weighs depends on what else a node holds, so ranks differ a little; what answers must be found."""

    async def scenario(one: InProcess, three: list[InProcess]) -> None:
        async with a_fleet([one, *three]) as (_, (alone, *streams)):
            for at, stream in enumerate(streams):
                for target in (alone, stream):
                    await index(target, "ada", CORPUS[at::3])
            await asyncio.to_thread(lambda: [node.settle() for node in (one, *three)])
            found, expected, shared, shown = 0.0, 0.0, 0, 0
            for question, relevant in RELEVANT:
                single = {r.document_id for r in await search([alone], "ada", question)}
                merged = {r.document_id for r in (await search(streams, "ada", question))[:TOP_K]}
                found += len(relevant & merged) / len(relevant)
                expected += len(relevant & single) / len(relevant)
                shared, shown = shared + len(single & merged), shown + len(single)
            record_property("recall_at_10_single", expected / len(RELEVANT))
            record_property("recall_at_10_fleet", found / len(RELEVANT))
            record_property("overlap_at_10", shared / shown)
            assert expected / len(RELEVANT) > 0.9, "the single node is no measure"
            assert found >= 0.95 * expected

    with nodes(tmp_path, 4) as (one, *three):
        asyncio.run(scenario(one, three))


def test_nodes_of_one_host_advertise_addresses_of_their_own_and_evict_nobody(tmp_path: Path) -> None:
    async def scenario(three: list[InProcess]) -> None:
        async with a_fleet(three) as (mothership, streams):
            for _ in range(3):
                registrations = len(mothership.registrations)
                for stream in streams:
                    stream.hang_up()
                await mothership.until(lambda n=registrations: len(mothership.registrations) >= n + 3)
                streams = [await mothership.session(node.node.node_id) for node in three]
            assert mothership.evicted == []
            assert sorted(mothership.registry.values()) == sorted(node.node.node_id for node in three)

    with nodes(tmp_path, 3) as three:
        asyncio.run(scenario(three))


def test_a_second_mothership_has_a_session_of_its_own(tmp_path: Path) -> None:
    async def scenario(node: InProcess) -> None:
        async with (
            listening() as mothership,
            listening() as fleet,
            joined(node, mothership, fleet_host="127.0.0.1", fleet_grpc_port=fleet.port) as member,
        ):
            assert member.fleet.availability is not None
            sewn, second = await mothership.session(), await fleet.session()
            await index(sewn, "ada", CORPUS[:3])
            request = pb.ThreadDocumentsRequest(owner_id="ada", document_ids=[CORPUS[1].document_id])
            answer = await second.ask(documents_request=request)
            assert list(answer.documents_response.documents[0].texts) == list(CORPUS[1].texts)
            sewn.hang_up()
            await mothership.until(lambda: len(mothership.registrations) == 2)
            assert second.ended_at is None
            await member.fleet.availability.set(False)
            assert (len(mothership.availability), len(fleet.availability)) == (1, 0)

    with nodes(tmp_path, 1) as (node,):
        asyncio.run(scenario(node))


def test_a_mothership_that_dies_at_any_moment_costs_no_acknowledged_deposit(tmp_path: Path, unused_port: int) -> None:
    """A mothership keeps filing, several requests at a time, and is cut off after a random number of answers."""
    moments, acknowledged, numbers = random.Random(3), set[str](), iter(range(10_000))

    async def keep_filing(stream: Stream) -> None:
        while True:
            document_id = f"d{next(numbers)}"
            await index(stream, "ada", [pb.ThreadIndexItem(document_id=document_id, texts=[f"text of {document_id}"])])
            acknowledged.add(document_id)

    async def scenario(node: InProcess) -> None:
        settings = Settings(mothership_host="127.0.0.1", mothership_grpc_port=unused_port, data_dir=node.path)
        fleet, stop = Fleet(settings, None, node.node, 8081, 9090, FAST), asyncio.Event()
        task = asyncio.create_task(fleet.run(stop))
        for _ in range(8):
            async with listening(port=unused_port) as mothership:
                stream = await mothership.session()
                filing = [asyncio.create_task(keep_filing(stream)) for _ in range(8)]
                enough = len(acknowledged) + moments.randrange(1, 60)
                await mothership.until(lambda n=enough: len(acknowledged) >= n)
            for each in filing:
                each.cancel()
            await asyncio.gather(*filing, return_exceptions=True)
        stop.set()
        await task

    with opened(tmp_path / "data") as node:
        asyncio.run(scenario(node))
        assert len(acknowledged) > 8
        node = node.reopened()
        stored = {document.document_id for document in node.documents("ada", *acknowledged)}
        node.close()
    assert stored == acknowledged


def test_a_full_queue_is_told_to_the_mothership(tmp_path: Path) -> None:
    async def scenario(node: InProcess) -> None:
        node.embedder.open.clear()
        async with listening() as mothership, joined(node, mothership):
            stream = await mothership.session()
            await index(stream, "ada", CORPUS[:3])
            await mothership.until(lambda: len(mothership.availability) == 1)
            refused = await stream.ask(index_request=pb.ThreadIndexRequest(owner_id="ada", items=CORPUS[3:4]))
            assert (refused.index_response.success, refused.index_response.indexed_count) == (False, 0)
            node.embedder.open.set()
            await mothership.until(lambda: len(mothership.availability) == 2)
            told = [call.request.accepting_storage for call in mothership.availability]
            assert told == [False, True]

    with opened(tmp_path, pending_documents_max=3) as node:
        asyncio.run(scenario(node))
