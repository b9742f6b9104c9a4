"""A real node behind HTTP: what deposits, updates and removals answer, and what they leave."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import WIDTH, InProcess, WordsEmbedder, opened, until
from litestar.testing import TestClient

from thread_kernels.engine_cpu import CpuEngine
from thread_service.settings import Settings
from thread_service.text.ids import content_id
from thread_service.wire.http import create_app

Client = TestClient[Any]

HERON, MARSH = "The heron stood in the creek.", "Salt marshes flood twice a day."


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InProcess]:
    with opened(tmp_path / "data") as node:
        yield node


@pytest.fixture
def client(node: InProcess) -> Iterator[Client]:
    with TestClient(create_app(node.node, Settings())) as client:
        yield client


def file(client: Client, *inputs: Any, group: Any = None, owner: str = "Ann", **more: Any) -> Any:
    thread = {"owner_id": owner, **({} if group is None else {"group": group})}
    answer = client.post("/v1/batch/embeddings", json={"inputs": inputs, "thread": thread, "wait": True, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def outcomes(answer: Any) -> tuple[bool, list[str]]:
    return answer["success"], [document["outcome"] for document in answer["documents"]]


def ask(client: Client, route: str, **body: Any) -> Any:
    answer = client.post(f"/v1/{route}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


# ---------------------------------------------------------------------------------------------------- filing


def test_what_is_new_linked_or_skipped_counts_as_success_and_what_failed_does_not(client: Client) -> None:
    assert outcomes(file(client, HERON, MARSH, HERON)) == (True, ["new", "new", "skipped"])
    assert outcomes(file(client, HERON, "", MARSH)) == (False, ["skipped", "failed", "skipped"])
    assert outcomes(file(client, HERON, MARSH, group="g")) == (True, ["linked", "linked"])
    assert outcomes(file(client, HERON, "  ", group="g")) == (False, ["skipped", "failed"])
    unwaited = file(client, "not yet", " \t", "", wait=False)
    assert outcomes(unwaited) == (False, ["new", "failed", "failed"])
    assert ["reason" in document for document in unwaited["documents"]] == [False, True, True]
    answer = file(client, HERON, "one more", "", group="g")
    assert outcomes(answer) == (False, ["skipped", "new", "failed"])
    assert answer["usage"] == {"prompt_tokens": 2, "total_tokens": 2}, "what was embedded, also when an input failed"
    assert outcomes(file(client)) == (True, [])
    assert outcomes(file(client, "", group="unused")) == (False, ["failed"])
    assert [group["id"] for group in ask(client, "library", owner_id="ann")["groups"]] == ["g"]


def test_equal_inputs_of_one_batch_are_embedded_once(client: Client, node: InProcess) -> None:
    answer = file(client, HERON, [HERON], HERON)
    assert {document["id"] for document in answer["documents"]} == {content_id([HERON])}
    assert node.embedder.count(HERON) == 1


def test_the_id_is_of_all_the_text_left_after_chunking(client: Client) -> None:
    long = "word " * 600
    ids = [
        file(client, *inputs, **more)["documents"][0]["id"]
        for inputs, more in (
            (([HERON, "", MARSH],), {}), (([HERON, MARSH],), {}), ((HERON + " " + MARSH,), {}),
            ((HERON.upper(),), {}), (("stood the heron in the creek.",), {}), ((long,), {}),
            ((long,), {"sanitize": True}),
        )
    ]  # fmt: skip
    assert ids[0] == ids[1] == content_id([HERON, MARSH])
    assert len(set(ids)) == 6


def test_names_and_keywords_of_filed_documents_become_tags_of_their_group(client: Client) -> None:
    group = {"id": "g", "label": "G", "owner_id": "ANN", "metadata": {"description": "d", "tags": ["sea"]}}
    answer = file(
        client, HERON, MARSH, "third", "fourth", group=group, tags=[None, ["Tide "]], entities=[[{"name": "Quill"}]]
    )
    tags = ["Quill", "Tide", "fourth", "sea", "third"]
    [shown] = answer["user"]["groups"]
    assert shown["metadata"] == {"description": "d", "tags": tags}
    assert (shown["owner_id"], shown["access"], shown["total_earnings"]) == ("ann", "restricted", 0.0)
    assert ask(client, "library", owner_id="ann")["groups"][0]["metadata"]["tags"] == tags
    found = ask(client, "search", query="heron", thread={"owner_id": "ann", "top_k": 1})["references"]
    assert found[0]["group"] == {"id": "g", "label": "G", "description": "d", "tags": tags}


def test_without_entities_and_tags_keywords_become_concepts(client: Client) -> None:
    file(client, HERON, "none of these", MARSH, entities=[None, []], tags=[[], ["hidden"], ["Tide"]])
    entities = ask(client, "graph", thread={"owner_id": "ann"})["entities"]
    assert {(entity["name"], entity["kind"]) for entity in entities} == {
        (name, "concept") for name in ("heron", "stood", "creek", "Tide")
    }


def test_each_input_has_a_name_metadata_a_graph_and_partitions_of_its_own(client: Client) -> None:
    vector = [1.0] + [0.0] * (WIDTH - 1)
    file(
        client, [HERON, "brought"], MARSH,
        document_ids=["a", "b"], names=["Heron", None], metadata=[base64.b64encode(b"\0\xff").decode()],
        relationships=[None, [{"subject": "Salt Marsh", "predicate": "Floods", "object": "Field"}]],
        partitions=[[{"url": "https://a.test/1"}, {"embedding": vector, "url": "no url at all"}]], media_type="code",
    )  # fmt: skip
    first, second = ask(client, "documents", owner_id="ann", document_ids=["a", "b"], include_embeddings=True)[
        "documents"
    ]
    assert (first["name"], first["metadata"], first["media_type"]) == ("Heron", "AP8=", "code")
    assert ("name" in second, second["metadata"]) == (False, "")
    seen, brought = first["partitions"]
    assert (seen["url"], seen["embedding"], brought["embedding"]) == ("https://a.test/1", [], vector)
    assert brought["url"].startswith("file://")
    assert brought["url"].endswith("/documents/a"), "what is no URL counts as absent"
    edges = ask(client, "graph", thread={"owner_id": "ann"}, entity="marsh")["relationships"]
    assert [(edge["predicate"], edge["document_ids"]) for edge in edges] == [("floods", ["b"])]


def test_update_removes_after_filing_and_counts_what_was_there(client: Client) -> None:
    file(client, HERON, MARSH, document_ids=["a", "b"])
    replaced = {"operation": "remove", "document_id": "a"}
    assert file(client, "in its place", document_ids=["c"], update=replaced)["removed_count"] == 1
    assert file(client, update=replaced)["removed_count"] == 0
    assert "removed_count" not in file(client, MARSH, document_ids=["b"])
    # Put, then removed: absent.
    assert file(client, HERON, document_ids=["b"], update={**replaced, "document_id": "b"})["removed_count"] == 1
    file(client, HERON, owner="ben", document_ids=["c"], update={**replaced, "document_id": "b"})
    present = ask(client, "documents", owner_id="ann", document_ids=["a", "b", "c"])["documents"]
    assert [document["id"] for document in present] == ["c"]


def test_without_an_owner_the_node_itself_owns_and_finds_it_again(client: Client, node: InProcess) -> None:
    file(client, HERON, owner="")
    own = f"{node.node.node_id}-thread"
    for spelled in (own, own.upper(), f" {own.lower()}"):
        assert ask(client, "search", query="heron", thread={"owner_id": spelled})["texts"] == [HERON]


def test_owner_ids_mean_the_same_trimmed_and_in_any_case_on_every_route(client: Client) -> None:
    file(client, HERON, owner=" ANN ", group={"id": "g", "owner_id": "ANN"}, document_ids=["a"])
    for owner in ("ann", " Ann", "ANN\n"):
        thread = {"owner_id": owner}
        assert ask(client, "search", query="heron", thread=thread)["texts"] == [HERON]
        assert ask(client, "graph", thread=thread)["stats"]["entity_count"] > 0
        assert [group["owner_id"] for group in ask(client, "library", owner_id=owner)["groups"]] == ["ann"]
        assert ask(client, "library/document", document_id="a", owner_id=owner)["groups"][0]["id"] == "g"
        assert len(ask(client, "documents", owner_id=owner, document_ids=["a"])["documents"]) == 1
        assert len(ask(client, "export", owner_id=owner)["documents"]) == 1
        assert ask(client, "group/update", owner_id=owner, group_id="g", label="L")["success"]
        assert ask(client, "document/update", owner_id=owner, document_id="a", access="restricted")["success"]
    assert ask(client, "remove", owner_id="aNN", document_ids=["a"])["removed_count"] == 1


# ---------------------------------------------------------------------------------------------------- the rest


def test_a_document_leads_to_the_groups_that_hold_it_which_the_caller_may_read(client: Client) -> None:
    file(client, HERON, document_ids=["a"], group={"id": "shut", "access": "restricted"})
    file(client, HERON, document_ids=["a"], owner="ben", group={"id": "open", "access": "available"})
    assert [found["id"] for found in ask(client, "library/document", document_id="a")["groups"]] == ["open"]
    held = ask(client, "library/document", document_id="a", owner_id="Ann")["groups"]
    assert [(found["id"], found["owner_id"]) for found in held] == [("open", "ben"), ("shut", "ann")]
    assert ask(client, "library/document", document_id="unknown") == {"groups": [], "has_more": False}


def test_an_update_says_what_it_did_not_do_and_why(client: Client) -> None:
    file(client, HERON, document_ids=["a"], group="g")
    assert ask(client, "group/update", owner_id="ann", group_id="g", label="L") == {"success": True, "group_id": "g"}

    def reason(route: str, **body: Any) -> tuple[bool, str]:
        answer = ask(client, route, **body)
        return answer["success"], answer["reason"]

    assert reason("group/update", owner_id="ann", group_id="g", tags=["t"], access="")[1].startswith("nothing is")
    unknown = reason("group/update", owner_id="ann", group_id="none", label="L")
    assert reason("group/update", owner_id="ben", group_id="g", label="L") == unknown, "no word of anothers' groups"
    assert reason("document/update", owner_id="ben", document_id="a", access="available") == reason(
        "document/update", owner_id="ben", document_id="none", access="available"
    )
    moved = reason("document/update", owner_id="ann", document_id="a", access="available", group_id="none")
    assert moved == (True, "group_id: the owner has no group of this id")
    assert reason("document/update", owner_id="ann", document_id="a")[0] is False


def test_an_empty_media_type_filters_nothing(client: Client) -> None:
    file(client, HERON)
    file(client, "heron = creek()", media_type="code")
    found = {
        media: len(ask(client, "search", query="heron", thread={"owner_id": "ann", "media_type": media})["texts"])
        for media in ("", None, "text", "code", "image")
    }
    assert found == {"": 2, None: 2, "text": 1, "code": 1, "image": 0}


def test_health_says_which_device_searches_and_that_it_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as node, TestClient(create_app(node.node, Settings())) as client:
        assert client.get("/health").json()["engine"] == {"device": "cpu"}
        monkeypatch.setattr(CpuEngine, "name", "cuda")
        monkeypatch.setattr(CpuEngine, "fault", "the card does not answer")
        assert client.get("/health").json()["engine"] == {"device": "cuda", "error": "the card does not answer"}
        assert client.get("/readyz").status_code == 200


def test_a_node_is_ready_before_its_model_and_says_how_far_that_is(tmp_path: Path) -> None:
    embedder = WordsEmbedder()
    embedder.may_load.clear()
    with opened(tmp_path, embedder, ready=False) as node, TestClient(create_app(node.node, Settings())) as client:
        assert client.get("/readyz").status_code == 200
        shown = client.get("/health").json()["embedder"]
        assert (shown["phase"], "index" in shown, "error" in shown) == ("loading", False, False)
        for route, body in (
            ("batch/embeddings", {"inputs": [HERON]}),
            ("search", {"query": "heron"}),
            ("graph", {"query": "heron"}),
        ):
            answer = client.post(f"/v1/{route}", json={**body, "thread": {"owner_id": "ann"}})
            assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
        assert ask(client, "library", owner_id="ann")["groups"] == []
        embedder.load_error = "no such file"
        embedder.may_load.set()
        until(lambda: client.get("/health").json()["embedder"].get("error") == "no such file")
        # What is stored can be read and removed meanwhile.
        assert client.get("/readyz").status_code == 200
        failed = client.post("/v1/search", json={"query": "heron", "thread": {"owner_id": "ann"}})
        assert (failed.status_code, int(failed.headers["retry-after"]) > 0) == (503, True)
        assert failed.json()["type"] == "/problems/model-failed"
        assert failed.json()["detail"] == "embedding model failed: no such file"
        embedder.load_error = None
        until(lambda: client.get("/health").json()["embedder"]["phase"] == "ready")
        assert client.get("/health").json()["embedder"]["index"] == "matches"
        file(client, HERON)
