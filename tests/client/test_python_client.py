"""The Python client against a node that is served over HTTP, both clients doing the same."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import thread_client
from thread_client import (
    AsyncClient,
    Client,
    Document,
    EntityIn,
    Group,
    InvalidRequest,
    NotAuthorised,
    calls,
)

HOSTILE = "Ada \N{ZERO WIDTH JOINER}\U0001f9ff <script>\0 \u202eQuill / ../../etc"


def test_a_document_is_remembered_found_read_back_replaced_and_forgotten(client: Client) -> None:
    filed = client.remember(
        "Ada Quill keeps the Tidal Ledger.",
        id="person/ada",
        name="Ada Quill",
        entities=[EntityIn("Ada Quill", "person"), "Tidal Ledger"],
        facts=[("Ada Quill", "keeps", "Tidal Ledger")],
        group=Group(id="people", label="People", tags=["harbour"]),
        metadata=b"\0\xff",
    )
    assert (filed.id, filed.outcome) == ("person/ada", "new")

    found = client.search("who keeps the Tidal Ledger?", top_k=3)
    [passage] = found.passages
    assert (passage.text, passage.document_id) == ("Ada Quill keeps the Tidal Ledger.", "person/ada")
    assert ("Ada Quill", "person") in {(entity.name, entity.kind) for entity in passage.entities}
    assert passage.group is not None
    assert (passage.group.id, passage.group.label) == ("people", "People")
    assert "Ada Quill" in {entity.name for entity in found.entities}

    graph = client.graph("Ada Quill")
    assert [(fact.subject, fact.predicate, fact.object) for fact in graph.facts()] == [
        ("Ada Quill", "keeps", "Tidal Ledger")
    ]
    assert graph.stats.relationship_count == 1

    [stored] = client.documents(["person/ada", "unknown"])
    assert (stored.name, stored.metadata, stored.group_id) == ("Ada Quill", b"\0\xff", "people")
    [group] = client.library().groups
    assert (group.id, [document.id for document in group.documents]) == ("people", ["person/ada"])
    assert {"harbour", "Ada Quill"} <= {*group.metadata.tags}

    assert client.remember("Ada Quill has left.", id="person/ada").outcome == "replaced"
    assert client.export(prefix="person/").documents[0].texts == ("Ada Quill has left.",)
    assert client.remove(["person/ada", "unknown"]).removed_count == 1
    assert client.search("Ada Quill").passages == ()


def test_a_deposit_made_twice_leaves_what_one_leaves(client: Client) -> None:
    documents = [Document(texts="One text."), Document(texts=["Two", "passages."], id="two")]
    first, second = client.file(documents), client.file(documents)
    assert [document.id for document in second.documents] == [document.id for document in first.documents]
    assert client.export().documents == client.export().documents
    assert {document.id: document.texts for document in client.export().documents} == {
        first.documents[0].id: ("One text.",),
        "two": ("Two", "passages."),
    }
    assert client.remember("One text.").outcome == "skipped"


@pytest.mark.parametrize("wait", [True, False])
def test_a_text_that_no_search_can_find_comes_back_with_the_reason(client: Client, wait: bool) -> None:
    for text in ("", " \n"):
        filed = client.remember(text, wait=wait)
        assert (filed.id, filed.outcome, "blank" in (filed.reason or "")) == (None, "failed", True)
    both = client.file([Document(texts="good"), Document(texts="\n")], wait=wait, cut=False)
    assert [document.outcome for document in both.documents] == ["new", "failed"]
    assert (both.success, both.documents[0].reason) == (False, None)
    assert "no search finds it" in (both.documents[1].reason or "")


def test_everything_of_an_owner_goes_and_nothing_of_another(client: Client) -> None:
    other = client.for_owner("somebody else")
    client.file([Document(texts="mine"), Document(texts="mine too")], wait=False)
    other.remember("theirs")
    assert client.remove_all().removed_count == 2
    assert [passage.text for passage in other.search("theirs").passages] == ["theirs"]
    assert client.search("theirs").passages == ()


def test_hostile_text_comes_back_as_it_went(client: Client) -> None:
    client.remember(HOSTILE, id=HOSTILE, name=HOSTILE, entities=[EntityIn(HOSTILE, HOSTILE)], group=HOSTILE)
    [stored] = client.documents([HOSTILE])
    assert (stored.id, stored.name, stored.texts, stored.group_id) == (HOSTILE, HOSTILE, (HOSTILE,), HOSTILE)


def test_what_the_node_refuses_names_the_field_and_the_remedy(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="kinds: must be a list of at most 1,000 entries") as refused:
        client.graph(kinds=["k"] * 1_001)
    assert refused.value.status == 400
    assert refused.value.fields[0].field == "kinds"
    with pytest.raises(InvalidRequest, match=r"^inputs\[1\]: holds a lone surrogate"):
        client.file([Document(texts="fine"), Document(texts="\ud800")])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"text": None}, r"^text: must be a text or a list of texts, not NoneType$"),
        ({"text": b"bytes"}, r"^text: must be a text or a list of texts, not bytes$"),
        ({"text": "x", "facts": [("a", "b", "c"), ("a", "b")]}, r"^facts\[1\]: must be three texts: \(subject, pred"),
        ({"text": "x", "facts": ["abc"]}, r"^facts\[0\]: must be three texts"),
        ({"text": "x", "facts": [None]}, r"^facts\[0\]: must be three texts"),
        ({"text": "x", "metadata": "AAH/"}, r"^metadata: must be bytes, not str$"),
    ],
)
def test_what_cannot_be_filed_is_told_before_anything_is_sent(arguments: dict[str, Any], said: str) -> None:
    with Client("http://127.0.0.1:1", owner_id="me") as client:
        with pytest.raises(InvalidRequest, match=said):
            client.remember(**arguments)
        texts = arguments.pop("text")
        with pytest.raises(InvalidRequest, match=r"^documents\[1\]\.") as refused:
            client.file([Document(texts="fine"), Document(texts=texts, **arguments)])
        assert refused.value.fields[0].field.startswith("documents[1].")


def test_without_the_key_only_health_is_told(node_url: str) -> None:
    with Client(node_url, owner_id="me") as client:
        assert client.health().embedder.phase == "ready"
        with pytest.raises(NotAuthorised, match="Authorization") as refused:
            client.search("anything")
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"owner_id": " "}, "owner_id is blank"),
        ({"owner_id": "me", "url": "ftp://here"}, "no address of a node"),
        ({"owner_id": "me", "url": "127.0.0.1:8081"}, "no address"),
        ({"owner_id": "me", "api_key": "line\nbreak"}, "no header can carry"),
    ],
)
def test_a_client_that_could_not_work_is_not_made(arguments: dict[str, str], said: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=said):
            kind(**arguments)


def test_the_awaited_client_does_the_same(node_url: str, key: str) -> None:
    async def use() -> list[str]:
        async with AsyncClient(node_url, owner_id="awaited", api_key=key) as client:
            texts = [f"Passage {number} of many." for number in range(8)]
            await asyncio.gather(*(client.remember(text) for text in texts))
            found = await client.search("Passage 5", top_k=20)
            await client.remove_all()
            return [passage.text for passage in found.passages]

    assert sorted(asyncio.run(use())) == [f"Passage {number} of many." for number in range(8)]


def test_both_clients_offer_every_call_with_the_same_arguments() -> None:
    offered = {
        name
        for name, function in vars(calls).items()
        if inspect.isfunction(function) and function.__module__ == calls.__name__ and not name.startswith("_")
    }
    for name in offered:
        built = getattr(calls, name)
        assert getattr(Client, name).__wrapped__ is getattr(AsyncClient, name).__wrapped__ is built
        assert built.__doc__
    assert str(inspect.signature(Client.remove)) == "(self, /, document_ids: 'Iterable[str]') -> 'answers.Removed'"


def test_what_is_offered_is_listed_and_brings_nothing_of_the_node_along() -> None:
    assert sorted(thread_client.__all__) == thread_client.__all__
    assert all(hasattr(thread_client, name) for name in thread_client.__all__)
    code = "import sys, thread_client; print(*(m for m in sys.modules if m.startswith(('thread_service', 'numpy'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert (Path(thread_client.__file__).parent / "py.typed").exists()
