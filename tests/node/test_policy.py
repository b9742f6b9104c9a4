"""The policy of extraction: what it makes of what is filed from then on."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import InProcess, document
from snapshot import stored

from thread_service.text.policy import CoMention, Policy

TEXT = "harbour harbour ledger ledger ledger tide"
PAIRED = CoMention(enabled=True, predicate=" Appears With ")


def set_policy(node: InProcess, **more: Any) -> None:
    node.run(node.node.graph_admin.set_policy(Policy(**more)))


def edges(node: InProcess, owner: str = "ann") -> set[tuple[frozenset[str], str]]:
    answer = node.graph(owner, limit=1_000)
    names = {entity.entity_id: entity.name for entity in answer.entities}
    return {
        (frozenset({names[edge.subject_id], names[edge.object_id]}), edge.predicate) for edge in answer.relationships
    }


def names(node: InProcess, owner: str = "ann") -> set[str]:
    return {entity.name for entity in node.graph(owner, limit=1_000).entities}


def pairs(*found: str) -> set[tuple[frozenset[str], str]]:
    return {(frozenset(pair.split()), "auto:appears with") for pair in found}


def test_a_policy_outlives_a_restart_and_clearing(node: InProcess) -> None:
    assert node.run(node.node.graph_admin.policy()) == Policy()
    set_policy(node, max_entities=3, hub_degree_cap=None, co_mention=None, predicate_aliases={"a": "b"}, kinds=())
    stored_policy = Policy((), None, {"a": "b"}, 3, 15, None, None)
    assert node.run(node.node.graph_admin.policy()) == stored_policy
    node.run(node.node.clear())
    again = node.reopened()
    try:
        assert again.run(again.node.graph_admin.policy()) == stored_policy
    finally:
        again.close()


def test_aliases_change_predicates_of_later_deposits_only(node: InProcess) -> None:
    said = document("x", id="a", edges=[("Ada", "Authored", "Ledger"), ("Ada", "auto:authored", "Ledger")])
    node.file("ann", said)
    set_policy(node, predicate_aliases={"authored": "wrote", "auto:authored": "wrote"})
    pair = frozenset({"Ada", "Ledger"})
    assert edges(node) == {(pair, "authored"), (pair, "auto:authored")}
    node.file("ann", said)
    assert edges(node) == {(pair, "wrote"), (pair, "auto:authored")}


@pytest.mark.parametrize(("cap", "found"), [(0, set()), (2, {"harbour", "ledger"}), (1_000, set(TEXT.split()))])
def test_no_more_keywords_are_found_than_allowed(node: InProcess, cap: int, found: set[str]) -> None:
    set_policy(node, max_entities=cap)
    node.file("ann", document(TEXT, id="a", entities=None))
    assert names(node) == found
    set_policy(node)
    assert node.run(node.node.graph_admin.re_extract("ann", "a")) == 3
    assert names(node) == set(TEXT.split())


def test_entities_of_one_document_are_paired_but_those_it_links_itself(node: InProcess) -> None:
    set_policy(node, co_mention=PAIRED)
    said = document("x", id="a", entities=["Ada", "Ben", "Cid"], edges=[("Ben", "met", "Ada")])
    node.file("ann", said)
    met = {(frozenset({"Ada", "Ben"}), "met")}
    assert edges(node) == pairs("Ada Cid", "Ben Cid") | met
    set_policy(node, co_mention=CoMention(enabled=True, skip_explicitly_linked=False))
    node.file("ann", said)
    assert edges(node) == pairs("Ada Ben", "Ada Cid", "Ben Cid") | met
    set_policy(node)
    node.file("ann", said)
    assert edges(node) == met


def test_hubs_get_no_more_pairs_and_others_documents_make_none(node: InProcess) -> None:
    set_policy(node, co_mention=PAIRED, hub_degree_cap=2)
    node.file("ben", document("x", id="b", entities=["Ada", "Dee", "Eve", "Fay"]))
    node.file("ann", document("x", id="a", entities=["Ada", "Ben"]))
    node.file("ann", document("x", id="b", entities=["Ada", "Cid"]))
    assert edges(node) == pairs("Ada Ben", "Ada Cid")
    node.file("ann", document("x", id="c", entities=["Ada", "Dan", "Eve"]))
    assert edges(node) == pairs("Ada Ben", "Ada Cid", "Dan Eve")
    node.file("ann", document("x", id="b", entities=["Ada", "Cid"]))  # its own edges are no reason against it
    assert edges(node) == pairs("Ada Ben", "Ada Cid", "Dan Eve")


def test_pairs_go_with_their_document_and_are_made_anew_by_extracting_again(node: InProcess) -> None:
    empty = stored(node)
    set_policy(node, co_mention=PAIRED, max_entities=2)
    node.file("ann", document(TEXT, id="a", entities=None, edges=[("Ada", "keeps", "ledger")]))
    kept = {(frozenset({"Ada", "ledger"}), "keeps")}
    assert edges(node) == kept | pairs("Ada harbour", "harbour ledger")
    set_policy(node, co_mention=PAIRED)
    node.run(node.node.graph_admin.re_extract("ann", "a"))
    node.settle()
    assert edges(node) == kept | pairs("Ada harbour", "Ada tide", "harbour ledger", "harbour tide", "ledger tide")
    set_policy(node)
    node.run(node.node.graph_admin.re_extract("ann", "a"))
    node.settle()
    assert edges(node) == kept
    node.remove("ann", "a")
    node.settle()
    assert stored(node) == empty


def test_a_document_of_very_many_entities_is_paired_within_bounds(node: InProcess) -> None:
    set_policy(node, co_mention=PAIRED, hub_degree_cap=None)
    node.file("ann", document("x", id="a", entities=[f"Name {n}" for n in range(1_000)]), wait=False)
    node.settle()
    assert node.value("SELECT count(*) FROM relationships") == 64 * 63 // 2
