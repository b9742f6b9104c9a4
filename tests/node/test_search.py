"""Search on constructed vectors and texts: exact distances, the two formulas on top of them, and what is shown."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import WIDTH, InProcess, WordsEmbedder, document, ids, opened, unit

from thread_service.errors import InvalidRequest, NotReady

PLAIN: dict[str, Any] = {"graph_mode": "off", "lexical": False}


def block_distance(query: np.ndarray, row: np.ndarray) -> float:
    """The sum over 16 equal blocks of the Euclidean distance inside the block, in float64."""
    difference = query.astype(np.float64) - row.astype(np.float64)
    return float(sum(math.sqrt(sum(block**2)) for block in difference.reshape(16, -1)))


def random_unit(seed: int, width: int = WIDTH) -> np.ndarray:
    return unit(*np.random.default_rng(seed).standard_normal(width), width=width)


# ---------------------------------------------------------------------------------------------------- distance


def test_the_plain_distance_is_the_sum_of_block_distances_and_orders_the_answer(node: InProcess) -> None:
    rows = {f"d{seed}": random_unit(seed) for seed in range(30)}
    node.file("ann", *(document(id, id=id, vectors=[row]) for id, row in rows.items()))
    query = random_unit(99)
    answer = node.search("ann", query_embedding=query, top_k=30, **PLAIN)
    expected = {id: block_distance(query, row) for id, row in rows.items()}
    assert ids(answer) == sorted(expected, key=expected.__getitem__)
    for passage in answer.passages:
        assert passage.distance == pytest.approx(expected[passage.document_id], rel=1e-5)


def test_a_row_equal_to_the_query_is_at_distance_zero_and_length_matters(node: InProcess) -> None:
    query = random_unit(1) * np.float32(3)
    node.file("ann", document("same", id="same", vectors=[query]), document("short", id="short", vectors=[query / 3]))
    same, short = node.search("ann", query_embedding=query, **PLAIN).passages
    assert (same.document_id, same.distance) == ("same", 0)
    assert short.distance == pytest.approx(block_distance(query, query / 3), rel=1e-5)


def test_text_and_vector_queries_see_the_tables_of_their_width(node: InProcess) -> None:
    node.embedder.vectors |= {"by the model": unit(1, 0.1), "query": unit(1)}
    node.file("ann", document("by the model", id="model"), document("x", id="caller", vectors=[unit(1, 0.2)]))
    node.file("ann", document("narrow", id="narrow", vectors=[unit(1, width=32)]))
    assert ids(node.search("ann", "query", **PLAIN)) == ["model", "caller"]
    assert ids(node.search("ann", query_embedding=unit(1), **PLAIN)) == ["model", "caller"]
    assert ids(node.search("ann", query_embedding=unit(1, width=32), **PLAIN)) == ["narrow"]
    assert node.search("ann", query_embedding=unit(1, width=48)).passages == ()
    assert node.search("ann", query_embedding=np.zeros(0, np.float32)).passages == ()


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e30])
def test_a_vector_that_is_none_is_refused_by_name(node: InProcess, number: float) -> None:
    node.file("ann", document("x", id="x", vectors=[unit(1)]))
    with pytest.raises(InvalidRequest) as refused:
        node.search("ann", query_embedding=np.full(WIDTH, number, np.float32))
    assert [error.field for error in refused.value.fields] == ["query_embedding"]


# ---------------------------------------------------------------------------------------------------- words


def test_words_shrink_the_distance_by_the_formula(node: InProcess) -> None:
    node.embedder.vectors |= {
        "zebra crossing": unit(1, 1),
        "zebra crossing near the old town hall of zebra": unit(1, 2),
        "nothing alike": unit(1, 0.5),
        "zebra": unit(1),
    }
    node.file("ann", *(document(text, id=text) for text in list(node.embedder.vectors)[:3]))
    plain = {p.document_id: p.distance for p in node.search("ann", "zebra", **PLAIN).passages}
    words = {p.document_id: p.distance for p in node.search("ann", "zebra", graph_mode="off").passages}
    statement = (
        "SELECT document_id, -rank FROM words JOIN documents ON content_key = words.rowid"
        " WHERE words MATCH 'body : zebra' AND rank MATCH 'bm25(1.0, 0.0)'"
    )
    scores = dict(node.rows(statement))
    assert len(scores) == 2
    for id, distance in plain.items():
        cosine = float(node.embedder.vector(id) @ node.embedder.vector("zebra"))
        share = scores.get(id, 0.0) / max(scores.values())
        raised = min(0.995, cosine + 0.2 * share)
        assert words[id] == pytest.approx(distance * math.sqrt((1 - raised) / (1 - cosine)), rel=1e-4)


def test_an_exact_word_the_vectors_miss_is_found_through_words(node: InProcess) -> None:
    query = "X-7734-QF"
    node.embedder.vectors |= {query: unit(1), "part number X-7734-QF": unit(-1)}
    # More rows nearer to the query than survive the scan.
    near = [document(f"n{n}", id=f"n{n}", vectors=[unit(1, n / 1000)]) for n in range(400)]
    node.file("ann", *near, document("part number X-7734-QF", id="part"))
    assert "part" not in ids(node.search("ann", query, top_k=100, graph_mode="off", lexical=False))
    assert "part" in ids(node.search("ann", query, top_k=401, graph_mode="off"))
    [part] = [p for p in node.search("ann", query, top_k=401, graph_mode="off").passages if p.document_id == "part"]
    cosine = -1.0
    expected = block_distance(unit(1), unit(-1)) * math.sqrt((1 - (cosine + 0.2)) / (1 - cosine))
    assert part.distance == pytest.approx(expected, rel=1e-5)


def test_a_word_searched_for_before_it_was_filed_is_found_afterwards(node: InProcess) -> None:
    node.embedder.vectors |= {"zyxomma": unit(1), "the zyxomma flies at dusk": unit(1, 1)}
    node.file("ann", document("other", id="other", vectors=[unit(1, 1.1)]))
    assert ids(node.search("ann", "zyxomma")) == ["other"]
    node.file("ann", document("the zyxomma flies at dusk", id="new"))
    plain = node.search("ann", "zyxomma", **PLAIN).passages[0]
    [found] = [p for p in node.search("ann", "zyxomma", graph_mode="off").passages if p.document_id == "new"]
    assert plain.document_id == "new"
    assert found.distance < plain.distance * 0.9


def test_words_of_scripts_without_spaces_are_found_inside_a_sentence(node: InProcess) -> None:
    texts = {"tokyo": "私は東京都に住んでいます。", "kyoto": "京都は古い町です。", "thai": "ฉันรักกรุงเทพมหานคร"}
    node.embedder.vectors |= {text: unit(0, 1) for text in texts.values()}
    node.embedder.vectors |= {query: unit(1) for query in ("東京", "กรุงเทพ", "町")}
    node.file("ann", *(document(text, id=id) for id, text in texts.items()))

    def first(query: str) -> str:
        first, second, _ = node.search("ann", query, graph_mode="off").passages
        assert first.distance < second.distance * 0.95
        return first.document_id

    assert [first(query) for query in ("東京", "กรุงเทพ", "町")] == ["tokyo", "thai", "kyoto"]


# ---------------------------------------------------------------------------------------------------- evidence


def graph_node(node: InProcess) -> InProcess:
    """Four documents; "Ada Quill" is in two of them, "Long Clock" in one, and the query is far from every edge."""
    node.file(
        "ann",
        document("alpha", id="a", vectors=[unit(1, 1)], entities=["Ada Quill"]),
        document("beta", id="b", vectors=[unit(1, 2)], entities=["Ada Quill", "Long Clock"]),
        document("gamma", id="c", vectors=[unit(1, 3)]),
        document("delta", id="d", vectors=[unit(1, 4)], entities=["pendulum"]),
    )
    return node


def evidence(activation: float, documents_of_entity: int, documents: int = 4) -> float:
    return activation * math.log(1 + documents / documents_of_entity) / math.log(1 + documents)


def agreeing(*clues: float) -> float:
    return math.cbrt(sum(each**3 for each in clues))


def distances(node: InProcess, query: str, **more: Any) -> dict[str, float]:
    node.embedder.vectors[query] = unit(1)
    answer = node.search("ann", query, lexical=False, **more)
    return {passage.document_id: passage.distance for passage in answer.passages}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("what did ada quill do?", {"a": evidence(1, 2), "b": evidence(1, 2)}),
        ("what of the LONG   clock", {"b": evidence(1, 1)}),
        ("Ada Quill's long-clock", {"a": evidence(1, 2), "b": agreeing(evidence(1, 2), evidence(1, 1))}),
        ("Pendulum", {"d": evidence(0.7, 1)}),
        ("pendulum", {"d": evidence(0.2, 1)}),
        ("quill, ada", {}),
        ("what did the others do?", {}),
    ],
)
def test_a_name_in_the_query_gives_evidence_by_the_formula(
    node: InProcess, query: str, expected: dict[str, float]
) -> None:
    plain = distances(graph_node(node), query, graph_mode="off")
    found = distances(node, query, expand=False)
    for id, distance in plain.items():
        assert found[id] == pytest.approx(distance * 0.85 ** (3 * expected.get(id, 0)), rel=1e-5), id


def test_near_relationships_activate_their_ends_and_a_near_predicate_its_edges_at_0_8(node: InProcess) -> None:
    words = "concept: Ada Quill keeps concept: Long Clock"
    node.embedder.vectors |= {
        words: unit(0.6, 0.8),
        "concept: Ada Quill lost concept: Old Key": unit(0, 0, 1),
        "Relationship predicate: keeps": unit(0, 0, 0, 1),
        "Relationship predicate: lost": unit(0.5, 0, math.sqrt(0.75)),
    }
    node.file(
        "ann",
        document("alpha", id="a", vectors=[unit(1, 1)], edges=[("Ada Quill", "keeps", "Long Clock")]),
        document("beta", id="b", vectors=[unit(1, 2)], edges=[("Ada Quill", "lost", "Old Key")]),
        document("gamma", id="c", vectors=[unit(1, 3)]),
    )
    plain = distances(node, "who", graph_mode="off")
    found = distances(node, "who", expand=False)
    # The first edge's cosine is 0.6, the second's its predicate's, 0.5 × 0.8. Each document has the rarer end of its
    # own edge to itself, and shares Ada Quill, in two of three, with the other's.
    share = math.log(1 + 3 / 2) / math.log(1 + 3)
    assert found["a"] == pytest.approx(plain["a"] * 0.85 ** (3 * agreeing(0.6, 0.4 * share)), rel=1e-5)
    assert found["b"] == pytest.approx(plain["b"] * 0.85 ** (3 * agreeing(0.4, 0.6 * share)), rel=1e-5)
    assert found["c"] == pytest.approx(plain["c"], rel=1e-5)
    trace = node.search("ann", "who", lexical=False, expand=False).trace
    assert {(e.subject, e.predicate, e.object, e.weight) for e in trace.relationships} == {
        ("Ada Quill", "keeps", "Long Clock", 1),
        ("Ada Quill", "lost", "Old Key", 1),
    }
    assert {entity.name for entity in trace.entities} == {"Ada Quill", "Long Clock", "Old Key"}


def test_the_nearest_documents_activate_what_they_list_unless_expansion_is_off(node: InProcess) -> None:
    node.file(
        "ann",
        document("near", id="near", vectors=[unit(0.8, 0.6)], entities=["Old Key"]),
        document("far", id="far", vectors=[unit(0, 1)], entities=["Old Key"]),
        document("other", id="other", vectors=[unit(0.1, 1)], entities=["Town"]),
    )
    plain = distances(node, "who", graph_mode="off")
    assert distances(node, "who", expand=False) == plain
    share = math.log(1 + 3 / 2) / math.log(1 + 3)
    assert distances(node, "who")["far"] == pytest.approx(plain["far"] * 0.85 ** (3 * 0.8 * share), rel=1e-4)


def test_the_nearest_documents_are_those_by_vector_and_words(node: InProcess) -> None:
    node.file(
        "ann",
        *(document(f"beside {n}", id=f"n{n}", vectors=[unit(0.9, n)]) for n in range(3)),
        document("the orrery", id="by words", vectors=[unit(0.3, 0, 1)], entities=["Old Key"]),
        document("far", id="far", vectors=[unit(0, 0, 0, 1)], entities=["Old Key"]),
    )
    node.embedder.vectors["orrery"] = unit(1)

    def far(**more: Any) -> float:
        answer = node.search("ann", "orrery", **more)
        return next(passage.distance for passage in answer.passages if passage.document_id == "far")

    assert far(lexical=False) == pytest.approx(far(graph_mode="off", lexical=False), rel=1e-5)
    similarity = 0.3 / math.hypot(0.3, 1) + 0.2
    share = math.log(1 + 5 / 2) / math.log(1 + 5)
    assert far() == pytest.approx(far(graph_mode="off") * 0.85 ** (3 * similarity * share), rel=1e-5)


def test_the_graph_brings_in_what_the_vectors_missed_and_the_trace_says_so(node: InProcess) -> None:
    near = [document(f"n{n}", id=f"n{n}", vectors=[unit(1, n / 500)]) for n in range(400)]
    clue = document("clue", id="clue", vectors=[unit(0.9, 0.1)], entities=["Long Clock"])
    hidden = document("hidden", id="hidden", vectors=[unit(-1, 20)], entities=["Long Clock"])
    node.file("ann", *near, clue, hidden)
    node.embedder.vectors["the Long Clock"] = unit(1)
    off = node.search("ann", "the Long Clock", top_k=60, **PLAIN)
    assert "hidden" not in ids(off)
    assert (off.trace.entities, off.trace.relationships, off.trace.expanded_documents) == ((), (), 0)

    found = node.search("ann", "the Long Clock", top_k=402, lexical=False)
    assert "hidden" in ids(found)
    assert [entity.name for entity in found.trace.entities] == ["Long Clock"]
    [passage] = [p for p in found.passages if p.document_id == "hidden"]
    assert [entity.name for entity in passage.entities] == ["Long Clock"]

    not_expanded = node.search("ann", "the Long Clock", top_k=60, lexical=False, expand=False)
    assert "hidden" not in ids(not_expanded)


def test_the_trace_counts_documents_that_only_the_graph_put_among_the_results(node: InProcess) -> None:
    node.file(
        "ann",
        document("x", id="x", vectors=[unit(1, 0.10)]),
        document("y", id="y", vectors=[unit(1, 0.20)]),
        document("z", id="z", vectors=[unit(1, 0.22)], entities=["Long Clock"]),
    )
    node.embedder.vectors["Long Clock"] = unit(1)
    answer = node.search("ann", "Long Clock", top_k=1, lexical=False, expand=False)
    assert (ids(answer), answer.trace.expanded_documents) == (["x"], 0)
    answer = node.search("ann", "Long Clock", top_k=2, lexical=False, expand=False)
    assert (ids(answer), answer.trace.expanded_documents) == (["x", "z"], 1)


def test_passages_list_the_entities_they_are_about_at_most_eight_most_evident_first(node: InProcess) -> None:
    names = [f"Name {n}" for n in range(12)]
    node.file("ann", document("one", "Two is about Name 3.", id="a", entities=[*names, "Long Clock"]))
    node.file("ann", document("three", id="b", entities=["Name 0"]))
    about = {p.text: [e.name for e in p.entities] for p in node.search("ann", "the Long Clock", top_k=5).passages}
    assert about["Two is about Name 3."] == ["Name 3"]
    assert len(about["one"]) == 8
    assert about["one"][0] == "Long Clock"
    assert "Name 0" not in about["one"][1:]  # the commonest comes last


# ---------------------------------------------------------------------------------------------------- what is shown


def test_three_passages_of_a_document_while_others_fill_the_list_then_more_of_the_same(node: InProcess) -> None:
    long = document(*(f"p{n}" for n in range(6)), id="long", vectors=[unit(1, n / 100) for n in range(6)])
    others = [document(f"o{n}", id=f"o{n}", vectors=[unit(1, 1 + n)]) for n in range(3)]
    node.file("ann", long, *others)

    def shown(top_k: int) -> list[str]:
        return [p.text for p in node.search("ann", query_embedding=unit(1), top_k=top_k, **PLAIN).passages]

    assert shown(2) == ["p0", "p1"]
    assert shown(6) == ["p0", "p1", "p2", "o0", "o1", "o2"]
    assert shown(8) == ["p0", "p1", "p2", "o0", "o1", "o2", "p3", "p4"]
    assert len(shown(50)) == 9


@pytest.mark.parametrize(("asked", "given"), [(0, 10), (-5, 10), (3, 3), (1000, 1000), (10**9, 1000)])
def test_top_k_has_a_default_and_a_bound(node: InProcess, asked: int, given: int) -> None:
    texts = [f"t{n}" for n in range(1100)]
    vectors = [unit(1, n / 1100) for n in range(1100)]
    node.file("ann", document(*texts, id="many", vectors=vectors))
    assert len(node.search("ann", query_embedding=unit(1), top_k=asked, **PLAIN).passages) == given


def test_named_entities_come_first_and_the_rest_tops_up(node: InProcess) -> None:
    node.file(
        "ann",
        document("x", id="x", vectors=[unit(1)]),
        document("y", id="y", vectors=[unit(1, 1)], entities=["Long Clock"]),
        document("z", id="z", vectors=[unit(1, 2)], entities=["Ada Quill"]),
        document("w", id="w", vectors=[unit(1, 3)]),
    )

    def found(*entities: str, **more: Any) -> list[str]:
        return ids(node.search("ann", query_embedding=unit(1), entities=entities, **more))

    assert found(graph_mode="off") == ["x", "y", "z", "w"]
    assert found("ada  QUILL", graph_mode="off") == ["z", "x", "y", "w"]
    assert found("Long Clock", "Ada Quill", top_k=3) == ["y", "z", "x"]
    node.file("ann", document("w", id="w", vectors=[unit(1, 3)], entities=["🦀", "?"]))
    assert found("🦀", graph_mode="off") == ["w", "x", "y", "z"]
    assert found("nobody", "", " ", "🐙", "?!", graph_mode="off") == ["x", "y", "z", "w"]


def test_named_entities_bring_documents_the_vectors_missed(node: InProcess) -> None:
    near = [document(f"n{n}", id=f"n{n}", vectors=[unit(1, n / 500)]) for n in range(400)]
    node.file("ann", *near, document("far", id="far", vectors=[unit(-1)], entities=["Long Clock"]))
    answer = node.search("ann", query_embedding=unit(1), entities=("long clock",), top_k=5)
    assert ids(answer) == ["far", "n0", "n1", "n2", "n3"]


def test_the_nodes_own_modes_hold_where_the_request_says_nothing(tmp_path: Path, embedder: WordsEmbedder) -> None:
    with opened(tmp_path, embedder, graph_mode="off", lexical=False) as node:
        graph_node(node)
        node.embedder.vectors["Ada Quill alpha"] = unit(1)
        plain = node.search("ann", "Ada Quill alpha", **PLAIN)
        assert node.search("ann", "Ada Quill alpha") == plain
        assert (
            node.search("ann", "Ada Quill alpha", graph_mode="boost").passages[0].distance < plain.passages[0].distance
        )
        assert node.search("ann", "Ada Quill alpha", lexical=True).passages[0].distance < plain.passages[0].distance


# ---------------------------------------------------------------------------------------------------- odd queries


@pytest.mark.parametrize("query", ["", " \n\t\u3000"])
def test_a_blank_query_is_refused_by_name(node: InProcess, query: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        node.search("ann", query)
    assert [error.field for error in refused.value.fields] == ["query"]


HOSTILE = [
    "the of and",
    "\0",
    "\u200b\u200d",
    '"',
    '""" OR body : *',
    "body : a OR readers : o1",
    "NEAR(a b) AND NOT c ^d {e} -f",
    "'; DROP TABLE documents; --",
    "😀" * 2000,
    "a" * 1_000_000,
    "ada quill " * 100_000,
    "東京" * 50_000,
    "e" + "\u0301" * 100_000,
    " ".join(f"w{n}" for n in range(20_000)),
    "\u202e\ufeff\uffff",
]


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_no_query_is_an_error(node: InProcess, query: str) -> None:
    node.file("ann", document("Ada Quill and the w1 w2 of 東京", id="a", entities=["Ada Quill", "\0", '"', "東京"]))
    assert ids(node.search("ann", query, entities=(query[:10_000],))) == ["a"]
    node.graph("ann", query[:10_000], query=query[:100])


def test_hostile_texts_and_names_come_back_as_they_were(node: InProcess) -> None:
    for number, text in enumerate(HOSTILE):
        said = document(text, id=str(number), name=text[:10_000], entities=[text[:10_000], (text[:300], text[:300])])
        node.file("ann", said)
    answer = node.documents("ann", *map(str, range(len(HOSTILE))))
    assert [found.texts[0] for found in answer] == HOSTILE
    assert [found.name for found in answer] == [text[:10_000] for text in HOSTILE]
    assert node.remove("ann") == len(HOSTILE)
    assert [node.value(f"SELECT count(*) FROM {name}") for name in ("entities", "mentions", "names")] == [0, 0, 0]


def test_a_search_that_needs_a_model_that_is_not_there_says_so(node: InProcess) -> None:
    node.file("ann", document("x", id="x", vectors=[unit(1)]))
    node.embedder.is_away = True
    with pytest.raises(NotReady):
        node.search("ann", "x")
    assert ids(node.search("ann", query_embedding=unit(1))) == ["x"]


def test_an_empty_node_and_an_unknown_owner_find_nothing(node: InProcess) -> None:
    assert node.search("ann", "anything").passages == ()
    node.file("ann", document("x", id="x"))
    for scoped in ({}, {"scope": "global"}, {"aggregate": True}, {"group_ids": ("g",)}):
        assert node.search("nobody", "x", **scoped).passages == ()
