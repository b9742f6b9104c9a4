"""The graph, asked directly: browsing, by name, in words, and how far a traversal goes."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import InProcess, document, unit

from thread_service.node.operations import GraphAnswer

CHAIN = [("Ann One", "knows", "Ben Two"), ("Ben Two", "knows", "Cat Three"), ("Cat Three", "feeds", "Dog Four")]


@pytest.fixture
def chain(node: InProcess) -> InProcess:
    for number, edge in enumerate(CHAIN):
        ends = [(edge[0], "person"), (edge[2], "pet" if edge[2].startswith("Dog") else "person")]
        node.file("me", document(f"text {number}", id=f"d{number}", name=f"N{number}", entities=ends, edges=[edge]))
    return node


def names(answer: GraphAnswer) -> list[str]:
    return [entity.name for entity in answer.entities]


def edges(answer: GraphAnswer) -> list[tuple[str, str, str, int]]:
    by_id = {entity.entity_id: entity.name for entity in answer.entities}
    return [
        (by_id[edge.subject_id], edge.predicate, by_id[edge.object_id], edge.weight) for edge in answer.relationships
    ]


def test_browsing_lists_entities_by_mentions_then_name_descending_with_the_edges_among_them(chain: InProcess) -> None:
    chain.file("me", document("more", id="more", entities=["Dog Four", ("Dog Four", "pet"), ("Dog Four", "pet")]))
    answer = chain.graph("me")
    assert names(answer) == ["Dog Four", "Cat Three", "Ben Two", "N2", "N1", "N0", "Dog Four", "Ann One"]
    assert [entity.mention_count for entity in answer.entities] == [3, 2, 2, 1, 1, 1, 1, 1]
    assert [entity.score for entity in answer.entities] == [0] * 8
    assert sorted(edges(answer)) == sorted((*edge, 1) for edge in CHAIN)
    assert (answer.entity_count, answer.relationship_count) == (8, 3)

    top = chain.graph("me", limit=3)
    assert names(top) == ["Dog Four", "Cat Three", "Ben Two"]
    assert sorted(edges(top)) == [("Ben Two", "knows", "Cat Three", 1), ("Cat Three", "feeds", "Dog Four", 1)]
    assert (top.entity_count, top.relationship_count) == (8, 3)


@pytest.mark.parametrize(
    ("hops", "reached", "crossed"),
    [(-1, 1, 0), (0, 1, 0), (1, 2, 1), (2, 3, 2), (3, 4, 3), (10**9, 4, 3)],
)
def test_a_traversal_goes_as_many_edges_as_asked_up_to_three(
    chain: InProcess, hops: int, reached: int, crossed: int
) -> None:
    chain.file(
        "me", document("end", id="end", edges=[("Dog Four", "chases", "Eel Five")], entities=[("Dog Four", "pet")])
    )
    answer = chain.graph("me", "ann one", hops=hops)
    assert names(answer) == ["Ann One", "Ben Two", "Cat Three", "Dog Four"][:reached]
    assert [entity.score for entity in answer.entities] == [1.0, 0, 0, 0][:reached]
    assert len(answer.relationships) == crossed


def test_names_are_matched_by_whole_words_exact_first_without_stop_words(chain: InProcess) -> None:
    chain.file("me", document("x", id="x", entities=["Ann", "Ann One Senior", "Anne", "The One", "of the"]))

    def found(text: str, **more: Any) -> list[str]:
        return names(chain.graph("me", text, hops=0, **more))

    assert found("Ann") == ["Ann", "Ann One", "Ann One Senior"]
    assert found("ANN, one!") == ["Ann One", "Ann", "Ann One Senior"]
    assert found("Senior Ann") == ["Ann One Senior", "Ann", "Ann One"]
    assert found("The") == []
    assert found("what of it") == []
    assert found("Of THE") == ["of the"]  # nothing but stop words: the exact name only
    assert found("?!") == []
    assert found("n") == []
    assert found("Ann", kinds=(" Person ",)) == ["Ann One"]
    assert found("Ann", kinds=()) == []
    assert found("Ann", limit=1) == ["Ann"]


def test_kinds_filter_browsing_and_the_names_matched_but_not_what_is_reached(chain: InProcess) -> None:
    assert names(chain.graph("me", kinds=("PET",))) == ["Dog Four"]
    assert names(chain.graph("me", kinds=())) == []
    assert names(chain.graph("me", "dog four", kinds=("pet",))) == ["Dog Four", "Cat Three"]


@pytest.mark.parametrize(("limit", "shown"), [(1, 1), (0, 20), (-7, 20), (1000, 30), (2**62, 30)])
def test_limits_of_any_size_are_taken(node: InProcess, limit: int, shown: int) -> None:
    node.file("me", document("x", id="x", entities=[f"Name {number}" for number in range(30)]))
    assert len(node.graph("me", limit=limit).entities) == shown
    assert len(node.graph("me", "name", limit=limit).entities) == shown


def test_documents_are_those_of_the_reached_entities_with_name_and_owner_unless_left_out(chain: InProcess) -> None:
    answer = chain.graph("me", "ann one")
    assert [(d.document_id, d.name, d.owner_id) for d in answer.documents] == [("d0", "N0", "me"), ("d1", "N1", "me")]
    assert {e.name: e.document_ids for e in answer.entities} == {"Ann One": ("d0",), "Ben Two": ("d0", "d1")}
    assert [edge.document_ids for edge in answer.relationships] == [("d0",)]
    without = chain.graph("me", "ann one", include_documents=False)
    assert (without.documents, without.entities) == ((), answer.entities)


def test_free_text_finds_relationships_by_meaning_and_scores_their_ends(chain: InProcess) -> None:
    chain.embedder.vectors |= {
        "person: Cat Three feeds pet: Dog Four": unit(0.8, 0.6),
        "person: Ann One knows person: Ben Two": unit(-1),
        "person: Ben Two knows person: Cat Three": unit(0.1, 1),
        "who gets fed?": unit(1),
    }
    chain.remove("me")  # so that the words are embedded again, as given above
    for number, edge in enumerate(CHAIN):
        ends = [(edge[0], "person"), (edge[2], "pet" if edge[2].startswith("Dog") else "person")]
        chain.file("me", document(f"text {number}", id=f"d{number}", entities=ends, edges=[edge]))

    answer = chain.graph("me", query="who gets fed?", hops=0, limit=1)
    assert edges(answer) == [("Cat Three", "feeds", "Dog Four", 1)]
    assert [entity.score for entity in answer.entities] == pytest.approx([0.8, 0.8])
    more = chain.graph("me", query="who gets fed?", hops=0)
    assert set(names(more)) == {"Cat Three", "Dog Four", "Ben Two"}  # never what points the other way
    both = chain.graph("me", "Ann One", query="who gets fed?", hops=0, limit=1)
    assert names(both)[0] == "Ann One"
    assert set(names(both)) == {"Ann One", "Cat Three", "Dog Four"}


def test_edges_keep_ends_that_no_document_lists_and_drop_what_says_nothing(node: InProcess) -> None:
    node.file(
        "me",
        document(
            "x",
            id="x",
            entities=[("Ann", "person"), ("ann", "robot"), "  "],
            edges=[
                ("ANN", "Built ", "Shed"),
                ("ann", "built", "shed"),
                ("Ann", " ", "Shed"),
                ("Ann", "is", "ann"),
                ("", "built", "Shed"),
            ],
        ),
    )
    answer = node.graph("me", "shed")
    [edge] = answer.relationships
    ends = {entity.entity_id: (entity.name, entity.kind) for entity in answer.entities}
    # Of two listed entities with one name the later is the end.
    assert (ends[edge.subject_id], edge.predicate, ends[edge.object_id]) == (
        ("ann", "robot"),
        "built",
        ("Shed", "concept"),
    )
    assert edge.weight == 2


def test_weights_and_mention_counts_are_sums_over_what_is_there(chain: InProcess) -> None:
    chain.file("me", document("again", id="again", entities=[("Ann One", "person")], edges=[CHAIN[0]]))
    node = chain

    def state() -> tuple[int, int]:
        answer = node.graph("me", "ann one", hops=1)
        return answer.entities[0].mention_count, sum(edge.weight for edge in answer.relationships)

    # "Ben Two" is a concept in the second document, so its edge is another.
    assert state() == (2, 2)
    for _ in range(3):
        node.file("me", document("again", id="again", entities=[("Ann One", "person")], edges=[CHAIN[0]]))
        assert state() == (2, 2)
    node.remove("me", "again")
    assert state() == (1, 1)


def test_an_empty_graph_and_an_unknown_owner_have_nothing(node: InProcess) -> None:
    assert node.graph("me") == GraphAnswer()
    assert node.graph("me", "x", query="y", hops=3) == GraphAnswer()
    node.file("me", document("x", id="x", entities=["Ann"]))
    assert node.graph("nobody") == GraphAnswer()


def test_a_question_starts_from_the_names_it_holds_also_without_any_relationship(node: InProcess) -> None:
    node.file("me", document("The ledger of the tides.", id="a", entities=[("Tidal Ledger", "book")]))
    node.file("me", document("Old keys.", id="b", entities=[("Old Key", "thing")]))
    answer = node.graph("me", query="Who keeps the Tidal Ledger these days?")
    assert [(entity.name, entity.score) for entity in answer.entities] == [("Tidal Ledger", 1.0)]
    assert node.graph("me", query="Who keeps the Tidal Ledger?", kinds=("thing",)).entities == ()
