"""Extraction from real servers of the chat API: a model that a grammar holds to the schema, and any that is named.

With THREAD_TEST_CHAT_URL (http://127.0.0.1:8000/v1) and THREAD_TEST_CHAT_MODEL that server is asked too, with the key
in OPENAI_API_KEY where it wants one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'thread-node[dev]'")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thread-node[torch]'")

from constrained_server import ByteModel, ConstrainedServer
from embeddings_server import running

sys.path.append(str(Path(__file__).parents[1] / "node"))

from in_process import document, ids, opened, until

from thread_service.models.extraction.chat_api import ChatApi
from thread_service.models.extraction.extractor import InstructExtractor
from thread_service.models.extraction.interface import ExtractionFailed, Found
from thread_service.models.extraction.prompt import ENTITIES_MAX, RELATIONSHIPS_MAX
from thread_service.text.policy import Kind, Policy

POLICY = Policy()
TEXTS = [f"On day {number} Ada Quill took the Tidal Ledger to Port Selwyn." for number in range(3)]


@pytest.fixture(scope="module")
def model() -> ByteModel:
    return ByteModel()


@pytest.fixture
def server(model: ByteModel) -> Iterator[ConstrainedServer]:
    model.enforces = True
    with running(ConstrainedServer(model)) as server:
        yield server


@pytest.fixture
def asked(server: ConstrainedServer) -> Iterator[InstructExtractor]:
    asked = InstructExtractor(ChatApi(server.url, "bytes", lambda: ""), slots=2)
    yield asked
    asked.close()


def read(asked: InstructExtractor, text: str, policy: Policy = POLICY) -> Found:
    """What is found in the text: nothing where every name is blank, which no form of an answer keeps a model from."""
    try:
        found = asked.extract([text], policy)
    except ExtractionFailed as error:
        if 'no element of "entities" has a "name" that is text' not in str(error):
            raise
        return Found()
    kinds = {kind.name for kind in policy.kinds}
    assert len(found.entities) <= ENTITIES_MAX
    assert len(found.relationships) <= RELATIONSHIPS_MAX
    assert all(entity.name.strip() and entity.kind in kinds for entity in found.entities)
    places = {*range(len(found.entities))}
    assert all(edge.predicate and {edge.subject, edge.object} <= places for edge in found.relationships)
    return found


@pytest.mark.parametrize("known", ["json_schema", "json_object"])
def test_a_model_that_is_held_to_the_schema_gives_answers_that_can_be_used(
    server: ConstrainedServer, asked: InstructExtractor, known: str
) -> None:
    server.formats = {known, None}
    assert any(read(asked, text).entities for text in TEXTS)
    assert asked.stats.failed == 0
    for reply in server.replies:
        assert json.loads(reply).keys() == {"entities", "relationships"}


def test_the_kinds_and_bounds_of_a_policy_are_in_the_schema_that_is_enforced(
    server: ConstrainedServer, asked: InstructExtractor
) -> None:
    policy = Policy(kinds=(Kind("boat", ""), Kind('quote"d é', "")), max_entities=1, max_relationships=0)
    found = [read(asked, text, policy) for text in TEXTS]
    said = [json.loads(reply) for reply in server.replies]
    assert all(len(each["entities"]) <= 1 and each["relationships"] == [] for each in said)
    assert {entity["kind"] for each in said for entity in each["entities"]} <= {"boat", 'quote"d é'}
    assert all(len(each.entities) <= 1 and not each.relationships for each in found)


def test_a_server_that_passes_over_the_schema_fails_the_document_and_not_the_node(
    server: ConstrainedServer, asked: InstructExtractor
) -> None:
    server.model.enforces = False
    with pytest.raises(ExtractionFailed, match="two answers that cannot be used"):
        asked.extract(TEXTS[:1], POLICY)
    assert asked.stats.invalid == 2


def test_a_node_keeps_whatever_such_a_model_calls_an_entity(asked: InstructExtractor, tmp_path: Path) -> None:
    with opened(tmp_path, extractor=asked) as node:
        node.file("ann", *(document(text, id=f"d{number}", entities=None) for number, text in enumerate(TEXTS)))
        until(lambda: not node.rows("SELECT * FROM unextracted WHERE put_off IS NULL") and node.is_idle)
        assert node.value("SELECT count(*) FROM assertions WHERE source = 'extracted'") > 0
        assert ids(node.search("ann", TEXTS[2]))[0] == "d2"
        assert node.run(node.node.verify(full=True, progress=lambda *_: None))["damage"] == []


@pytest.mark.skipif(
    "THREAD_TEST_CHAT_URL" not in os.environ, reason="THREAD_TEST_CHAT_URL names no server of the chat API"
)
def test_the_server_that_is_named_gives_answers_that_can_be_used() -> None:
    api = ChatApi(
        os.environ["THREAD_TEST_CHAT_URL"],
        os.environ.get("THREAD_TEST_CHAT_MODEL", ""),
        lambda: os.environ.get("OPENAI_API_KEY", ""),
    )
    asked = InstructExtractor(api, slots=2)
    found = [read(asked, text) for text in TEXTS]
    assert asked.stats.answered == len(TEXTS)
    assert all(each.entities for each in found)
    asked.close()
