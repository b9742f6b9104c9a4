"""Graph administration and the policy over HTTP, on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess, document, group, opened
from litestar.testing import TestClient

from thread_service.settings import Settings
from thread_service.text.ids import entity_id, relationship_id
from thread_service.wire import graph_admin
from thread_service.wire.http import create_app

Client = TestClient[Any]

ADA, QUILL, LEDGER = entity_id("person", "Ada"), entity_id("person", "Ada Quill"), entity_id("concept", "Ledger")
KEEPS = relationship_id(ADA, "keeps", LEDGER)
EDITS = {
    "entity/rename": {"id": ADA, "name": "Eve"},
    "entity/set-kind": {"id": ADA, "kind": "ship"},
    "entity/merge": {"from": ADA, "into": QUILL},
    "entity/delete": {"id": ADA},
    "relationship/delete": {"id": KEEPS},
    "re-extract": {"document_id": "a"},
}
EXAMPLES = {
    "entity/rename": graph_admin.RENAME,
    "entity/set-kind": graph_admin.SET_KIND,
    "entity/merge": graph_admin.MERGE,
    "entity/delete": graph_admin.DELETE_ENTITY,
    "relationship/delete": graph_admin.DELETE_RELATIONSHIP,
    "re-extract": graph_admin.RE_EXTRACT,
}
LEAST = {"kinds": [], "predicate_aliases": {}, "max_entities": 0, "max_relationships": 0}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InProcess]:
    with opened(tmp_path / "data") as node:
        said = document(
            "Ada keeps the Ledger of Port Selwyn.",
            id="a",
            entities=[("Ada", "person"), ("Ada Quill", "person"), "Ledger"],
            edges=[("Ada", "keeps", "Ledger")],
        )
        node.file("ann", said, group=group("g", "available"))
        yield node


@pytest.fixture
def client(node: InProcess) -> Iterator[Client]:
    with TestClient(create_app(node.node, Settings()), raise_server_exceptions=False) as test_client:
        yield test_client


def edit(client: Client, route: str, owner: str = " Ann", **body: Any) -> Any:
    answer = client.post(f"/v1/graph/{route}", json={"thread": {"owner_id": owner}, **EDITS[route], **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_entity_is_renamed_retyped_merged_and_deleted(client: Client, node: InProcess) -> None:
    eve, ship = entity_id("person", "Eve"), entity_id("ship", "Eve")
    assert edit(client, "entity/rename") == {"success": True, "surviving_id": eve}
    assert edit(client, "entity/set-kind", id=eve) == {"success": True, "surviving_id": ship}
    assert edit(client, "entity/merge", **{"from": ship}) == {"success": True, "surviving_id": QUILL}
    answer = client.post("/v1/graph", json={"thread": {"owner_id": "ann"}}).json()
    assert {(found["name"], found["kind"], found["mention_count"]) for found in answer["entities"]} == {
        ("Ada Quill", "person", 2),
        ("Ledger", "concept", 1),
    }
    [edge] = answer["relationships"]
    assert (edge["subject_id"], edge["predicate"], edge["object_id"]) == (QUILL, "keeps", LEDGER)
    assert edit(client, "relationship/delete", id=edge["id"]) == {"success": True}
    assert edit(client, "entity/delete", id=QUILL) == {"success": True}
    answer = client.post("/v1/graph", json={"thread": {"owner_id": "ann"}}).json()
    assert ([found["name"] for found in answer["entities"]], answer["relationships"]) == (["Ledger"], [])


@pytest.mark.parametrize("owner", ["ben", "nobody", "A" * 1_024])
def test_others_change_nothing_and_learn_nothing(client: Client, node: InProcess, owner: str) -> None:
    node.file("ben", document("x", id="b", entities=["Else"]))
    before = client.post("/v1/graph", json={"thread": {"owner_id": "ann"}}).json()
    for route in EDITS:
        known = edit(client, route, owner)
        keys = {"id": "unknown", "from": "unknown", "into": "unknown", "document_id": "unknown"}
        assert known == edit(client, route, owner, **{key: keys[key] for key in EDITS[route] if key in keys})
        assert known["success"] == route.endswith("delete")
        assert "surviving_id" not in known
    assert client.post("/v1/graph", json={"thread": {"owner_id": "ann"}}).json() == before


def test_extracting_again_answers_how_much_was_found(client: Client) -> None:
    assert edit(client, "re-extract") == {"success": True, "entity_count": 4}
    assert edit(client, "re-extract", document_id="unknown") == {"success": False, "entity_count": 0}


@pytest.mark.parametrize("route", list(EDITS))
@pytest.mark.parametrize(
    ("thread", "field"), [({}, "thread.owner_id"), ({"owner_id": ""}, "thread.owner_id"), (None, "thread")]
)
def test_every_change_needs_an_owner(client: Client, route: str, thread: Any, field: str) -> None:
    for body in ({"thread": thread, **EDITS[route]}, {"thread": {"owner_id": " \t"}, **EDITS[route]}):
        answer = client.post(f"/v1/graph/{route}", json=body)
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["field"] in (field, "thread.owner_id")


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("entity/rename", {"name": None}, "name"),
        ("entity/rename", {"name": ""}, "name"),
        ("entity/rename", {"name": "x" * 4_097}, "name"),
        ("entity/rename", {"id": ""}, "id"),
        ("entity/rename", {"id": 7}, "id"),
        ("entity/set-kind", {"kind": ""}, "kind"),
        ("entity/set-kind", {"kind": ["ship"]}, "kind"),
        ("entity/merge", {"from": ""}, "from"),
        ("entity/merge", {"into": None}, "into"),
        ("entity/delete", {"id": None}, "id"),
        ("relationship/delete", {"id": "x" * 1_025}, "id"),
        ("re-extract", {"document_id": ""}, "document_id"),
        ("re-extract", {"document_id": "é" * 513}, "document_id"),
    ],
)
def test_a_wrong_value_names_its_field(client: Client, route: str, body: Any, field: str) -> None:
    answer = client.post(f"/v1/graph/{route}", json={"thread": {"owner_id": "ann"}, **EDITS[route], **body})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)


def test_text_that_is_not_unicode_is_refused_and_any_other_is_taken(client: Client) -> None:
    surrogate = b'{"thread": {"owner_id": "ann"}, "id": "x", "name": "\\ud800"}'
    answer = client.post("/v1/graph/entity/rename", content=surrogate, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "name")
    for name in ("\0", "📚", "../../x"):
        there = edit(client, "entity/rename", name=name)["surviving_id"]
        assert edit(client, "entity/rename", id=there, name="Ada") == {"success": True, "surviving_id": ADA}
    assert edit(client, "entity/rename", name="  ") == {"success": True, "surviving_id": ADA}


# ---------------------------------------------------------------------------------------------------- policy


def test_the_policy_is_read_and_replaced(client: Client) -> None:
    found = client.get("/v1/graph/policy").json()
    assert [kind["name"] for kind in found.pop("kinds")] == [
        *("person", "organization", "place", "event", "work", "concept", "other")
    ]
    assert found == {
        "predicate_aliases": {},
        "max_entities": 12,
        "max_relationships": 15,
        "co_mention": {"enabled": False, "predicate": "appears with", "skipExplicitlyLinked": True},
        "hub_degree_cap": 24,
    }
    answer = client.put("/v1/graph/policy", json=graph_admin.POLICY)
    assert (answer.status_code, answer.json()) == (200, graph_admin.POLICY)
    assert client.get("/v1/graph/policy").json() == graph_admin.POLICY
    # What may be left out is none when it is left out.
    for left_out in ({}, {"co_mention": None, "hub_degree_cap": None, "prompt_template": None}):
        assert client.put("/v1/graph/policy", json={**LEAST, **left_out}).json() == LEAST
    assert client.get("/v1/graph/policy").json() == LEAST


def test_a_policy_is_stored_as_the_graph_compares_words(client: Client) -> None:
    wanted = {
        **LEAST,
        "kinds": [{"name": " Ship "}],
        "predicate_aliases": {" Authored": "WROTE ", "authored": "wrote"},
        "co_mention": {"enabled": True},
        "prompt_template": "List {{kinds}}.",
    }
    assert client.put("/v1/graph/policy", json=wanted).json() == {
        **LEAST,
        "kinds": [{"name": "ship", "description": ""}],
        "predicate_aliases": {"authored": "wrote"},
        "co_mention": {"enabled": True, "predicate": "appears with", "skipExplicitlyLinked": True},
        "prompt_template": "List {{kinds}}.",
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kinds": None}, "kinds"),
        ({"kinds": [{"name": " "}]}, "kinds[0].name"),
        ({"kinds": [{"name": "a"}, {"name": " A"}]}, "kinds[1].name"),
        ({"kinds": ["person"]}, "kinds[0]"),
        ({"kinds": [{"name": str(n)} for n in range(101)]}, "kinds"),
        ({"prompt_template": "  "}, "prompt_template"),
        ({"prompt_template": 1}, "prompt_template"),
        ({"predicate_aliases": []}, "predicate_aliases"),
        ({"predicate_aliases": {"a": 1}}, "predicate_aliases[...]"),
        ({"predicate_aliases": {" ": "a"}}, "predicate_aliases. "),
        ({"predicate_aliases": {"a": " "}}, "predicate_aliases.a"),
        ({"predicate_aliases": {"a": "b", "A": "c"}}, "predicate_aliases.A"),
        ({"predicate_aliases": {"x" * 4_097: "a"}}, f"predicate_aliases.{'x' * 80}"),
        ({"max_entities": -1}, "max_entities"),
        ({"max_entities": 1_001}, "max_entities"),
        ({"max_entities": 1.5}, "max_entities"),
        ({"max_entities": None}, "max_entities"),
        ({"max_relationships": -(2**63)}, "max_relationships"),
        ({"max_relationships": 10**30}, "max_relationships"),
        ({"co_mention": {}}, "co_mention.enabled"),
        ({"co_mention": {"enabled": True, "predicate": " "}}, "co_mention.predicate"),
        ({"co_mention": {"enabled": True, "skipExplicitlyLinked": "yes"}}, "co_mention.skipExplicitlyLinked"),
        ({"hub_degree_cap": -1}, "hub_degree_cap"),
        ({"hub_degree_cap": 2**31}, "hub_degree_cap"),
    ],
)
def test_a_wrong_policy_names_its_field_and_changes_nothing(client: Client, body: Any, field: str) -> None:
    before = client.get("/v1/graph/policy").json()
    answer = client.put("/v1/graph/policy", json={**LEAST, **body})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)
    assert client.get("/v1/graph/policy").json() == before


@pytest.mark.parametrize("key", sorted(LEAST))
def test_what_a_policy_must_say_is_required(client: Client, key: str) -> None:
    answer = client.put("/v1/graph/policy", json={name: value for name, value in LEAST.items() if name != key})
    assert (answer.status_code, answer.json()["errors"][0]) == (400, {"field": key, "message": "is required"})


# ---------------------------------------------------------------------------------------------------- pages


def test_the_routes_are_documented_with_examples_that_work(client: Client) -> None:
    paths = client.get("/schema").json()["paths"]
    documented = {
        **{f"/v1/graph/{route}": ("post", example) for route, example in EXAMPLES.items()},
        "/v1/graph/policy": ("put", graph_admin.POLICY),
    }
    for path, (method, example) in documented.items():
        operation = paths[path][method]
        [content] = operation["requestBody"]["content"].values()
        assert content["schema"]["examples"] == [example]
        assert "application/problem+json" in operation["responses"]["400"]["content"]
        assert client.request(method, path, json=example).status_code == 200
    assert "get" in paths["/v1/graph/policy"]


def test_the_example_ids_are_those_of_the_example_deposit() -> None:
    assert entity_id("person", "Ada Quill") == graph_admin.RENAME["id"]
    assert entity_id("concept", "Tidal Ledger") == graph_admin.MERGE["into"]


def test_a_key_is_needed_where_one_is_set(node: InProcess) -> None:
    with TestClient(create_app(node.node, Settings(api_key="k")), raise_server_exceptions=False) as client:
        assert client.get("/v1/graph/policy").status_code == 401
        assert client.put("/v1/graph/policy", json=LEAST).status_code == 401
        for route in EDITS:
            assert client.post(f"/v1/graph/{route}", json={"thread": {"owner_id": "ann"}}).status_code == 401
