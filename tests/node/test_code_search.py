"""Search of code: identifiers of the query bring the documents that list them nearer, and leave nothing out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from in_process import TIMEOUT, InProcess, document, group, ids, unit

from thread_service.node.operations import DocumentIn, SearchAnswer
from thread_service.store import policies
from thread_service.text.policy import Policy

PLAIN: dict[str, Any] = {"graph_mode": "off", "lexical": False}


def code(id: str, *entities: str | tuple[str, str], at: float = 1.0, **more: Any) -> DocumentIn:
    """A document of code in the direction (1, at)."""
    return document(id, id=id, vectors=[unit(1, at)], entities=entities, media_type="code", **more)


def search(node: InProcess, owner: str, query: str = "", **more: Any) -> SearchAnswer:
    options = {"query_embedding": unit(1), "media_type": "code", "top_k": 1_000, "lexical": False, **more}
    return node.search(owner, query, **options)


def factors(node: InProcess, owner: str, query: str = "", **more: Any) -> dict[str, float]:
    """By how much the identifiers of the query shrink the distance of each document they shrink."""
    plain = {p.document_id: p.distance for p in search(node, owner, query, **{**more, **PLAIN}).passages}
    found = {p.document_id: p.distance for p in search(node, owner, query, **more).passages}
    assert found.keys() == plain.keys(), "identifiers are never a gate"
    shrunk = {id: distance / plain[id] for id, distance in found.items()}
    return {id: pytest.approx(factor, rel=1e-6) for id, factor in shrunk.items() if abs(factor - 1) > 1e-6}


def matched(answer: SearchAnswer) -> list[str]:
    return [entity.name for entity in answer.trace.entities]


@pytest.fixture
def repository(node: InProcess) -> InProcess:
    node.file(
        "ann",
        code("handle", ("sym:fn Thread.Repl.handle(_:)", "function"), at=1.0),
        code("both", ("sym:fn Thread.Repl.handle(_:)", "function"), ("type:Session", "struct"), at=1.1),
        code("session", ("type:Session", "struct"), at=1.2),
        code("file", ("session.swift", "file"), ("Session", "module"), at=1.3),
        code("many", *(f"part_{n}" for n in range(8)), at=1.4),
        code("other", at=1.5),
    )
    return node


@pytest.mark.parametrize(
    ("query", "named", "expected"),
    [
        ("where is Thread.Repl.handle called", (), {"handle": 0.85, "both": 0.85}),
        ("where is Repl.handle called", (), {"handle": 0.85**0.8, "both": 0.85**0.8}),
        ("where is `handle(_:)` called", (), {"handle": 0.85**0.6, "both": 0.85**0.6}),
        ("the `Session` and `handle`", (), {"handle": 0.85**0.6, "both": 0.85**1.6, "session": 0.85}),
        ("Thread.Repl.handle or Repl.handle or `handle`", (), {"handle": 0.85, "both": 0.85}),
        ("", ("Session",), {"both": 0.85, "session": 0.85}),
        ("", ("type:Session",), {"both": 0.85, "session": 0.85}),
        (" ".join(f"part_{n}" for n in range(3)), (), {"many": 0.85**3}),
        (" ".join(f"part_{n}" for n in range(8)), (), {"many": 0.6}),
        ("the `session` to handle", (), {}),
        ("the Session to handle", (), {}),
        ("`session.swift`", (), {}),
        ("Repl", ("nobody",), {}),
    ],
)
def test_each_identifier_shrinks_the_distance_by_how_well_it_agrees(
    repository: InProcess, query: str, named: tuple[str, ...], expected: dict[str, float]
) -> None:
    assert factors(repository, "ann", query, entities=named) == expected


def test_the_trace_names_what_matched_as_it_is_stored_best_first(repository: InProcess) -> None:
    answer = search(repository, "ann", "Repl.handle in a `Session`")
    assert matched(answer) == ["type:Session", "sym:fn Thread.Repl.handle(_:)"]
    assert (answer.trace.relationships, answer.trace.expanded_documents) == ((), 0)
    assert [entity.name for entity in answer.passages[0].entities] == ["type:Session", "sym:fn Thread.Repl.handle(_:)"]
    assert matched(search(repository, "ann", "nothing that looks like one")) == []


def test_only_code_is_returned_and_edges_and_expansion_take_no_part(node: InProcess) -> None:
    edges = [("Session", "calls", "Repl")]
    node.file(
        "ann",
        code("code", "Session", edges=edges),
        document("text", id="text", vectors=[unit(1, 0.1)], entities=["Session"], edges=edges),
        code("neighbour", "Repl", at=2),
    )
    for mode in ("boost", "narrow", "off"):
        answer = search(node, "ann", "Session calls `Session`", graph_mode=mode)
        assert ids(answer) == ["code", "neighbour"]
        assert (answer.trace.relationships, answer.trace.expanded_documents) == ((), 0)
        assert matched(answer) == ([] if mode == "off" else ["Session"])
    assert factors(node, "ann", "Session calls `Session`") == {"code": 0.85}
    assert factors(node, "ann", "calls", entities=("Session",)) == {"code": 0.85}


def test_words_count_beside_identifiers(node: InProcess) -> None:
    node.embedder.vectors |= {"posix_spawn": unit(1), "int posix_spawn(pid)": unit(1, 1), "int kill(pid)": unit(1, 1.1)}
    node.file("ann", *(document(text, id=text, media_type="code") for text in [*node.embedder.vectors][1:]))

    def first(**more: Any) -> float:
        return node.search("ann", "posix_spawn", media_type="code", **more).passages[0].distance

    assert first(lexical=True) < first(lexical=False)


def test_a_match_far_from_the_query_is_found_among_very_many_nearer_rows(node: InProcess) -> None:
    near = [code(f"n{n}", at=1 + n / 10_000) for n in range(400)]
    node.file("ann", *near, code("far", "posix_spawn", at=1.1))
    assert ids(search(node, "ann", "posix_spawn", top_k=2, expand=False)) == ["far", "n0"]
    assert ids(search(node, "ann", "posix_spawn", top_k=2, graph_mode="off")) == ["n0", "n1"]


@pytest.mark.parametrize(("documents", "counts"), [(24, True), (25, False)])
def test_a_partial_match_in_too_many_documents_counts_no_more_but_a_whole_one_does(
    node: InProcess, documents: int, counts: bool
) -> None:
    node.file(
        "ann", *(code(f"d{n}", "Repl.handle", at=1 + n / 100) for n in range(documents)), code("x", "Other.handle")
    )
    every = {f"d{n}" for n in range(documents)}
    partly = factors(node, "ann", "`handle`")
    assert partly == dict.fromkeys({"x"} | (every if counts else set()), 0.85**0.6)
    assert factors(node, "ann", "Repl.handle") == dict.fromkeys(every, 0.85)


def test_the_hub_cap_grows_with_the_documents(node: InProcess) -> None:
    node.file("ann", *(code(f"d{n}", "Repl.handle") for n in range(25)))
    node.file("ann", *(code(f"o{n}") for n in range(474)))
    assert factors(node, "ann", "`handle`") == {}
    node.file("ann", code("the 500th"))
    assert len(factors(node, "ann", "`handle`")) == 25


@pytest.mark.parametrize(("degree_cap", "counts"), [(25, True), (3, False), (None, False)])
def test_the_hub_cap_follows_the_policy(node: InProcess, degree_cap: int | None, counts: bool) -> None:
    node.file("ann", *(code(f"d{n}", "Repl.handle") for n in range(25)))
    policy = Policy(hub_degree_cap=degree_cap)
    node.store.write(lambda connection, _: policies.write(connection, policy)).result(TIMEOUT)
    assert bool(factors(node, "ann", "`handle`")) == counts


def test_no_whole_match_is_left_out_however_many_and_of_the_others_the_rarest_stay(node: InProcess) -> None:
    wholes = [f"whole_{n}" for n in range(40)]
    node.file("ann", code("wholes", *wholes), *(code(f"part{n}", f"Type{n:02}.run") for n in range(40)))
    node.file("ann", code("again", *(f"Type{n:02}.run" for n in range(5))))
    answer = search(node, "ann", f"{' '.join(wholes)} `run`")
    assert sorted(matched(answer)) == sorted(wholes)
    answer = search(node, "ann", "`run` of whole_7")
    assert matched(answer) == ["whole_7", *(f"Type{n:02}.run" for n in range(5, 36))]


def test_a_keyword_does_not_hide_the_spelling_of_a_document_that_names_it(node: InProcess) -> None:
    node.file("ann", document("the session of a session", id="prose", entities=None, vectors=[unit(1)]))
    node.file("ann", code("named", "Session"))
    assert factors(node, "ann", "`Session`") == {"named": 0.85}


def test_identifiers_come_and_go_with_their_documents(node: InProcess) -> None:
    assert factors(node, "ann", "posix_spawn") == {}
    node.file("ann", code("a", "posix_spawn"), code("b", "posix_spawn", at=2))
    assert factors(node, "ann", "posix_spawn") == {"a": 0.85, "b": 0.85}
    node.remove("ann", "a")
    assert factors(node, "ann", "posix_spawn") == {"b": 0.85}
    node.file("ann", code("b", "posix_kill", at=2))
    assert factors(node, "ann", "posix_spawn") == {}


# ---------------------------------------------------------------------------------------------------- access


def test_what_others_keep_to_themselves_neither_matches_nor_counts(node: InProcess) -> None:
    node.file("ann", code("mine", "Repl.handle"), code("shared"))
    node.file("ben", code("shared", "Repl.secret"), *(code(f"ben{n}", "Repl.handle", at=2) for n in range(30)))
    assert factors(node, "ann", "`handle`", scope="global") == {"mine": 0.85**0.6}
    assert factors(node, "ann", "Repl.secret", scope="global") == {}
    assert matched(search(node, "ann", "Repl.secret", scope="global")) == []
    assert matched(search(node, "nobody", "Repl.handle", scope="global")) == []


def test_what_is_shared_matches_where_it_is_searched_only(node: InProcess) -> None:
    node.file("ann", code("mine", "Repl.handle"))
    node.file("ben", code("open", "Repl.shared"), group=group("open", "available"))
    node.file("ben", code("closed", "Repl.closed"), group=group("closed"))

    def names(query: str, **scoped: Any) -> list[str]:
        return matched(search(node, "ann", query, **scoped))

    query = "Repl.shared Repl.handle Repl.closed"
    assert names(query) == ["Repl.handle"]
    assert names(query, scope="global") == ["Repl.handle", "Repl.shared"]
    assert names(query, group_ids=("open",)) == ["Repl.shared"]
    assert names(query, group_ids=("closed",)) == []
    assert factors(node, "ann", query, scope="global") == {"mine": 0.85, "open": 0.85}


@pytest.mark.parametrize("others", [600])
def test_very_many_identifiers_of_others_take_no_place(node: InProcess, others: int) -> None:
    node.file(
        "ben", *(code(f"b{n}", *(f"a{n}.b{m}.run" for m in range(30)), "posix_spawn") for n in range(others // 30))
    )
    node.file("ann", code("mine", "z.run", "posix_spawn"))
    assert factors(node, "ann", "`run` posix_spawn", scope="global") == {"mine": 0.85**1.6}


HOSTILE: Sequence[str] = (
    "`" * 5_000,
    "`\0`",
    "a_" * 50_000,
    "a." * 50_000,
    "`" + "x" * 90_000 + "`",
    "_a " * 30_000,
    "🦀.é",
)


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_no_query_is_an_error(repository: InProcess, query: str) -> None:
    assert len(search(repository, "ann", query, entities=(query[:4_096],)).passages) == 6
