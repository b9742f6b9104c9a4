"""Search narrowed by the graph: what passes the gate, what the expansion brings, and at which distance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import InProcess, WordsEmbedder, document, group, ids, opened, unit

from thread_service.node.operations import DocumentIn, SearchAnswer

Triple = tuple[str, str, str]

QUERY = "which one"
"""In the direction (1), and without a word of any name."""


def search(node: InProcess, owner: str = "ann", query: str = QUERY, **more: Any) -> SearchAnswer:
    node.embedder.vectors.setdefault(query, unit(1))
    return node.search(owner, query, **{"graph_mode": "narrow", "lexical": False, "top_k": 100, **more})


def words_of(edge: Triple) -> str:
    return f"concept: {edge[0]} {edge[1]} concept: {edge[2]}"


def like(cosine: float, axis: int = 5) -> np.ndarray:
    """A direction of this cosine to the query."""
    return unit(cosine, *[0] * axis, (1 - cosine**2) ** 0.5)


def said(node: InProcess, id: str, edge: Triple, cosine: float, at: float = 1.0, times: int = 1) -> DocumentIn:
    """A document at (1, at) with an edge that has this cosine to the query; its predicate is far from everything."""
    node.embedder.vectors |= {words_of(edge): like(cosine), f"Relationship predicate: {edge[1]}": unit(-1)}
    return document(id, id=id, vectors=[unit(1, at)], edges=[edge] * times)


def plain(node: InProcess, **more: Any) -> dict[str, float]:
    answer = node.search("ann", query_embedding=unit(1), graph_mode="off", lexical=False, top_k=100, **more)
    return {passage.text: passage.distance for passage in answer.passages}


def edges(answer: SearchAnswer) -> list[Triple]:
    return [(edge.subject, edge.predicate, edge.object) for edge in answer.trace.relationships]


# ---------------------------------------------------------------------------------------------------- the gate


def test_documents_of_near_edges_pass_and_nothing_else(node: InProcess) -> None:
    node.file(
        "ann",
        said(node, "a", ("A1", "keeps", "A2"), 0.16, at=2),
        said(node, "b", ("B1", "holds", "B2"), 0.5, at=3),
        said(node, "c", ("C1", "loses", "C2"), 0.14),
        document("d", id="d", vectors=[unit(1, 0.1)], entities=["D"]),
    )
    answer = search(node, expand=False)
    assert {p.document_id: p.distance for p in answer.passages} == {id: plain(node)[id] for id in ("a", "b")}
    assert edges(answer) == [("B1", "holds", "B2"), ("A1", "keeps", "A2")]
    assert [entity.name for entity in answer.trace.entities] == ["B1", "B2", "A1", "A2"]
    assert answer.trace.expanded_documents == 0


def test_without_a_near_edge_documents_of_entities_named_alike_pass(node: InProcess) -> None:
    node.file(
        "ann",
        document("a", id="a", vectors=[unit(1, 1)], entities=["Ada Quill"]),
        document("b", id="b", vectors=[unit(1, 2)], entities=["the Long Quill"]),
        document("c", id="c", vectors=[unit(1, 0.1)], entities=["Quillon"]),
        said(node, "d", ("C1", "loses", "C2"), 0.14),
    )
    answer = search(node, query="what about the Quill?", expand=False)
    assert ids(answer) == ["a", "b"]
    assert {entity.name for entity in answer.trace.entities} == {"Ada Quill", "the Long Quill"}
    assert ids(search(node, entities=("quill",), expand=False)) == ["a", "b"]


def test_where_nothing_matches_everything_passes(node: InProcess) -> None:
    node.file("ann", said(node, "a", ("C1", "loses", "C2"), 0.14), document("b", id="b", vectors=[unit(1, 2)]))
    answer = search(node)
    assert ids(answer) == ["a", "b"]
    assert (answer.trace.entities, answer.trace.relationships, answer.trace.expanded_documents) == ((), (), 0)


def test_an_edge_of_a_named_entity_passes_however_far_it_is(node: InProcess) -> None:
    node.file(
        "ann",
        said(node, "a", ("Ada Quill", "keeps", "Ledger"), -0.5),
        document("b", id="b", vectors=[unit(1, 0.1)], entities=["Ada Quill"]),
    )
    answer = search(node, query="and Quill?", expand=False)
    assert (ids(answer), edges(answer)) == (["a"], [("Ada Quill", "keeps", "Ledger")])


@pytest.mark.parametrize(("cosine", "passes"), [(0.19, True), (0.18, False)])
def test_a_predicate_counts_four_fifths_for_its_edges(node: InProcess, cosine: float, passes: bool) -> None:
    node.embedder.vectors[words_of(("A1", "keeps", "A2"))] = unit(-1)
    node.embedder.vectors["Relationship predicate: keeps"] = like(cosine)
    node.file("ann", document("a", id="a", vectors=[unit(1, 2)], edges=[("A1", "keeps", "A2")]))
    node.file("ann", document("b", id="b", vectors=[unit(1, 1)]))
    assert ids(search(node, expand=False)) == (["a"] if passes else ["b", "a"])


def test_twelve_edges_pass_the_best_then_the_heaviest(node: InProcess) -> None:
    documents = [said(node, f"d{n:02}", (f"S{n}", f"p{n}", f"O{n}"), 0.9 - n / 50) for n in range(11)]
    documents += [said(node, f"t{n}", (f"X{n}", f"q{n}", f"Y{n}"), 0.3, times=1 + (n == 3)) for n in range(5)]
    node.file("ann", *documents)
    assert sorted(ids(search(node, expand=False))) == [*(f"d{n:02}" for n in range(11)), "t3"]


def test_terms_read_as_predicates_let_twelve_edges_more_pass(node: InProcess) -> None:
    near = [said(node, f"d{n:02}", (f"S{n}", f"p{n}", f"O{n}"), 0.9 - n / 50) for n in range(14)]
    node.embedder.vectors |= {
        words_of(("A1", "keeps", "A2")): unit(0, 1),
        "Relationship predicate: keeps": unit(0, 0, 1),
        "Relationship predicates: holds, keeps": unit(0, 0, 1),
    }
    node.file("ann", *near, document("a", id="a", vectors=[unit(1, 2)], edges=[("A1", "keeps", "A2")]))
    known = [f"d{n:02}" for n in range(12)]
    asked = {"entities": (" keeps", "", "holds", "keeps"), "expand": False}
    assert sorted(ids(search(node, **asked))) == known
    assert sorted(ids(search(node, **asked, entities_are_predicates=True))) == ["a", *known]
    for mode in ("boost", "off"):
        search(node, **asked, entities_are_predicates=True, graph_mode=mode)
    assert [text for text, _ in node.embedder.embedded if text.startswith("Relationship predicates")] == [
        "Relationship predicates: holds, keeps"
    ]


def test_a_search_by_vector_does_without_predicates_while_the_model_is_away(node: InProcess) -> None:
    node.file("ann", said(node, "a", ("A1", "keeps", "A2"), 0.5))
    node.embedder.is_away = True
    answer = search(node, query="", query_embedding=unit(1), entities=("keeps",), entities_are_predicates=True)
    assert ids(answer) == ["a"]


def test_eight_entities_pass_those_with_most_shared_words_and_the_shortest_names(node: InProcess) -> None:
    names = [f"Quill {'x' * (1 + n)}" for n in range(10)]
    node.file("ann", *(document(name, id=str(n), entities=[name]) for n, name in enumerate(names)))
    node.file("ann", document("best", id="best", entities=["Ada Quill of the long name"]))
    answer = search(node, query="is it Ada Quill", expand=False)
    assert sorted(ids(answer)) == ["0", "1", "2", "3", "4", "5", "6", "best"]


# ---------------------------------------------------------------------------------------------------- passages


def test_a_document_shows_its_three_best_passages_and_no_more(node: InProcess) -> None:
    node.embedder.vectors |= {words_of(("A1", "keeps", "A2")): like(0.5)}
    long = [f"p{n}" for n in range(200)]
    many = document(*long, id="long", vectors=[unit(1, n / 999) for n in range(200)], edges=[("A1", "keeps", "A2")])
    node.file("ann", many, said(node, "b", ("A1", "keeps", "A2"), 0.5, at=2))
    assert [p.text for p in search(node, top_k=5).passages] == ["p0", "p1", "p2", "b"]


def test_words_count_inside_the_gate_and_media_types_hold(node: InProcess) -> None:
    edge = ("A1", "keeps", "A2")
    node.embedder.vectors |= {words_of(edge): like(0.5), "zyxomma": unit(1), "a zyxomma": unit(1, 1), "b": unit(1, 0.9)}
    node.file(
        "ann", document("a zyxomma", id="a", edges=[edge]), document("b", id="b", edges=[edge], media_type="image")
    )
    node.file("ann", document("zyxomma", id="outside"))
    assert ids(search(node, query="zyxomma", lexical=False)) == ["b", "a"]
    assert ids(search(node, query="zyxomma", lexical=True)) == ["a", "b"]
    assert ids(search(node, query="zyxomma", media_type="image")) == ["b"]
    assert ids(search(node, query="zyxomma", media_type="image", lexical=True)) == ["b"]


# ---------------------------------------------------------------------------------------------------- expansion


def ring(node: InProcess, count: int = 9) -> list[DocumentIn]:
    """`start` is found by its edge; the others are one edge away, and the edge is heavier the later the document."""
    node.embedder.vectors |= {"Relationship predicate: near": unit(-1), "Relationship predicate: beside": unit(-1)}
    start = said(node, "start", ("Hub", "is", "Centre"), 0.5)
    around = [
        said(node, f"r{n}", ("Hub", "near", f"R{n}"), -0.5, at=1 + n / 10, times=1 + n // 2) for n in range(count)
    ]
    return [start, *around, said(node, "beyond", ("R8", "beside", "Far"), -0.5)]


def test_the_six_documents_led_to_by_the_heaviest_edges_join_at_1_1_times_their_distance(node: InProcess) -> None:
    node.file("ann", *ring(node))
    answer = search(node)
    found = {p.document_id: p.distance for p in answer.passages}
    # r2 and r3 weigh the same: ids decide.
    assert sorted(found) == ["r2", "r4", "r5", "r6", "r7", "r8", "start"]
    distances = plain(node)
    assert found == {id: pytest.approx(distances[id] * (1.0 if id == "start" else 1.1), rel=1e-6) for id in found}
    assert answer.trace.expanded_documents == 6
    assert edges(answer)[0] == ("Hub", "is", "Centre")
    assert sorted(edges(answer)[1:]) == [("Hub", "near", f"R{n}") for n in (2, 4, 5, 6, 7, 8)]
    weights = {edge.object: edge.weight for edge in answer.trace.relationships}
    assert (weights["R8"], weights["R2"]) == (5, 2)
    assert ids(search(node, expand=False)) == ["start"]
    assert search(node, top_k=3).trace.expanded_documents == 2


def test_a_document_that_lists_an_entity_joins_without_an_edge_with_its_best_passage(node: InProcess) -> None:
    texts, vectors = ["far", "near", "nearest"], [unit(1, 5), unit(1, 2), unit(1, 1.5)]
    node.file("ann", said(node, "start", ("Hub", "is", "Centre"), 0.5))
    node.file("ann", document(*texts, id="lists", vectors=vectors, entities=["Hub"]))
    assert [(p.document_id, p.text) for p in search(node).passages] == [("start", "start"), ("lists", "nearest")]


def test_the_expansion_starts_from_what_the_found_documents_list_too(node: InProcess) -> None:
    start = said(node, "start", ("A1", "is", "A2"), 0.5)
    also = document("also", id="also", vectors=[unit(1, 2)], edges=[("A1", "is", "A2"), ("Key", "opens", "Door")])
    node.embedder.vectors[words_of(("Key", "opens", "Door"))] = unit(-1)
    node.file("ann", start, also, said(node, "behind", ("Door", "hides", "Room"), -0.5))
    answer = search(node)
    assert sorted(ids(answer)) == ["also", "behind", "start"]
    assert edges(answer) == [("A1", "is", "A2"), ("Door", "hides", "Room")]


def test_a_copy_of_what_was_found_does_not_join(node: InProcess) -> None:
    node.file("ann", *ring(node, 2))
    node.file("ann", document("start", id="copy", vectors=[unit(1, 1)], entities=["Hub"]))
    assert sorted(ids(search(node))) == ["r0", "r1", "start"]


def test_the_order_of_filing_changes_nothing(tmp_path: Path) -> None:
    answers: list[Any] = []
    for name in ("as written", "backwards"):
        with opened(tmp_path / name, WordsEmbedder()) as node:
            tied = [said(node, f"t{n}", (f"X{n}", f"q{n}", f"Y{n}"), 0.3, at=2) for n in range(20)]
            documents = [*ring(node, 12), *tied, document("w", id="w", entities=["Hub"], vectors=[unit(1, 4)])]
            for item in documents if name == "as written" else reversed(documents):
                node.file("ann", item)
            answer = search(node, query="the Hub")
            answers.append([(p.document_id, p.distance) for p in answer.passages if p.document_id[0] != "t"])
            answers.append({p.document_id for p in answer.passages})
            answers.append(sorted(edges(answer)))
    assert answers[:3] == answers[3:]


# ---------------------------------------------------------------------------------------------------- access


def test_edges_and_entities_of_others_take_no_place(node: InProcess) -> None:
    theirs = [said(node, f"b{n:02}", (f"S{n}", f"p{n}", f"O{n}"), 0.9) for n in range(30)]
    named = [document(f"e{n}", id=f"e{n}", entities=[f"Quill {n}"]) for n in range(20)]
    node.file("ben", *theirs, *named)
    node.file(
        "ben",
        *(said(node, f"p{n:02}", (f"P{n}", f"u{n}", f"V{n}"), 0.95) for n in range(30)),
        group=group("g", "available"),
    )
    node.file("ann", said(node, "mine", ("A1", "keeps", "A2"), 0.2), document("other", id="other", vectors=[unit(1)]))
    node.file("ann", document("named", id="named", entities=["Ada Quill Senior"]), group=group("own"))
    assert ids(search(node, expand=False)) == ["mine"]
    assert ids(search(node, query="Quill", group_ids=("own",), expand=False)) == ["named"]
    assert len(ids(search(node, scope="global", expand=False))) == 12
    assert "mine" not in ids(search(node, scope="global", expand=False))
    assert not {f"b{n:02}" for n in range(30)} & set(ids(search(node, scope="global")))
    assert ids(search(node, "nobody")) == []


def test_the_expansion_reaches_what_is_shared_but_leaves_no_group(node: InProcess) -> None:
    first, *around, _ = ring(node, 3)
    node.file("ann", first, group=group("g"))
    node.file("ann", around[0])
    node.file("ben", around[1], group=group("open", "available"))
    node.file("ben", around[2])
    assert sorted(ids(search(node))) == ["r0", "r1", "start"]
    assert ids(search(node, group_ids=("g",))) == ["start"]
    assert sorted(ids(search(node, scope="global"))) == ["r0", "r1", "start"]
    secret = search(node, scope="global")
    assert ("Hub", "near", "R2") not in edges(secret)


HOSTILE: Sequence[str] = ("\0", '"', "the of and", "😀" * 2_000, "a" * 1_000_000, "東京" * 5_000, "% _ ' \\")


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_no_query_is_an_error(node: InProcess, query: str) -> None:
    node.file("ann", said(node, "a", ("\0", '"', "東京"), 0.5))
    search(node, query=query, entities=(query[:4_096], " "), lexical=True, entities_are_predicates=True)


def test_an_empty_node_and_another_width_find_nothing(node: InProcess) -> None:
    assert ids(search(node)) == []
    node.file("ann", said(node, "a", ("A1", "keeps", "A2"), 0.5))
    assert ids(search(node, query="", query_embedding=unit(1, width=32), entities=("A1",))) == []
