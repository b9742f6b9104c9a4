"""Access: no read path shows anybody what only a restricted document of somebody else says."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import InProcess, document, group, ids, unit

from thread_service.node.operations import GraphAnswer, SearchAnswer, UpdateDocumentRequest

# Restricted documents of ann say SECRET things; nothing that ben or eve is shown may hold one of these words.
SECRETS = ("zephyrine", "quillon", "ann-private", "SECRET", "restricted-label")


@pytest.fixture
def shelves(node: InProcess) -> InProcess:
    """ann: two private documents and two public ones; ben: one private and one public; eve: nothing."""
    node.file(
        "ann",
        document(
            "Zephyrine Quillon keeps the harbour light of Selwyn.",
            id="ann-private",
            name="Quillon SECRET",
            entities=[("Zephyrine Quillon", "person"), ("HARBOUR Light SECRET", "place"), ("harbour light", "place")],
            edges=[("Zephyrine Quillon", "keeps", "Harbour Light"), ("Harbour Light", "shines on", "Selwyn")],
        ),
        document("selwyn_keeper = Zephyrine.SECRET", id="ann-private-code", media_type="code", entities=None),
        group=group("vault", label="restricted-label", description="SECRET", tags=("SECRET",)),
    )
    node.file(
        "ann",
        document(
            "The harbour light of Selwyn was lit in 1841.",
            id="ann-public",
            name="Lighting",
            entities=[("Harbour light", "place")],
            edges=[("Harbour light", "shines on", "Selwyn")],
        ),
        document("light = selwyn.harbour()", id="ann-public-code", media_type="code"),
        group=group("open", "available", label="Open shelf", description="free", tags=("t",)),
    )
    node.file(
        "ben", document("Selwyn has a harbour, says Ben.", id="ben-private", name="Ben's note", entities=["Selwyn"])
    )
    node.file("ben", document("Selwyn harbour opens at dawn.", id="ben-public"), group=group("open", "available"))
    return node


def everything(node: InProcess, owner: str) -> list[Any]:
    """What every read path answers this caller, however it asks."""
    queries = ("Zephyrine Quillon keeps the harbour light", "zephyrine", "1841", "Quillon SECRET")
    scopes: tuple[dict[str, Any], ...] = (
        {},
        {"scope": "global"},
        {"aggregate": True, "group_ids": ("vault",)},
        {"group_ids": ("vault",)},
        {"group_ids": ("open", "vault")},
        {"scope": "global", "group_ids": ("vault",)},
    )
    modes: tuple[dict[str, Any], ...] = (
        {},
        {"expand": False},
        {"graph_mode": "off"},
        {"lexical": False},
        {"media_type": "code"},
        {"entities": ("Zephyrine Quillon",)},
    )
    answers: list[Any] = [
        node.search(owner, query, top_k=50, **scoped, **mode)
        for query in queries
        for scoped in scopes
        for mode in modes
    ]
    vector = node.embedder.vector("Zephyrine Quillon keeps the harbour light of Selwyn.")
    answers.append(node.search(owner, query_embedding=vector, scope="global"))
    for entity in ("", "Zephyrine Quillon", "Harbour Light", "SECRET", "Selwyn"):
        for query in ("", "who keeps the light"):
            answers += [node.graph(owner, entity, query=query, hops=hops) for hops in (0, 1, 3)]
    answers.append(node.library(owner, include_available=True))
    answers.append(
        node.library(owner, include_available=True, document_ids=("ann-private", "ann-public", "ben-private"))
    )
    answers.append(node.documents(owner, "ann-private", "ann-private-code", "ann-public", embeddings=True))
    return answers


@pytest.mark.parametrize("owner", ["ben", "eve", "nobody", ""])
def test_nobody_is_shown_a_word_of_anothers_restricted_documents(shelves: InProcess, owner: str) -> None:
    shown = repr(everything(shelves, owner)).lower()
    assert [word for word in SECRETS if word.lower() in shown] == []


@pytest.mark.parametrize("owner", ["ben", "eve"])
def test_answers_are_as_if_anothers_restricted_documents_had_never_been_filed(shelves: InProcess, owner: str) -> None:
    def without_word_statistics() -> tuple[list[SearchAnswer], list[GraphAnswer]]:
        searches = [
            shelves.search(owner, "who keeps the harbour light of Selwyn", scope=scope, lexical=False, graph_mode=mode)
            for scope in ("personal", "global")
            for mode in ("off", None)
        ]
        graphs = [
            shelves.graph(owner, entity, query=query, hops=hops, limit=50)
            for entity in ("", "light")
            for query in ("", "who keeps the light")
            for hops in (1, 3)
        ]
        return searches, graphs

    def shape(answers: tuple[list[SearchAnswer], list[GraphAnswer]]) -> Any:
        # Document frequency is of the whole node, so only the size of the evidence may differ.
        searches, graphs = answers
        return [(ids(s), s.trace.relationships, s.trace.expanded_documents) for s in searches], graphs

    before = shape(without_word_statistics())
    assert shelves.remove("ann", "ann-private", "ann-private-code") == 2
    assert shape(without_word_statistics()) == before


def test_the_owner_is_shown_all_of_it(shelves: InProcess) -> None:
    assert ids(shelves.search("ann", "Zephyrine Quillon", top_k=50))[0] == "ann-private"
    assert set(ids(shelves.search("ann", "light", group_ids=("vault",)))) == {"ann-private", "ann-private-code"}
    assert {entity.name for entity in shelves.graph("ann", "Zephyrine Quillon").entities} >= {"Zephyrine Quillon"}
    edges = {edge.predicate: edge.weight for edge in shelves.graph("ann", "harbour light").relationships}
    assert edges == {"keeps": 1, "shines on": 2}


def test_available_documents_are_shown_to_all_with_their_group(shelves: InProcess) -> None:
    answer = shelves.search("eve", "harbour light of Selwyn", scope="global", top_k=50)
    assert set(ids(answer)) == {"ann-public", "ann-public-code", "ben-public"}
    [lit] = [passage for passage in answer.passages if passage.document_id == "ann-public"]
    assert (lit.owner_id, lit.group.group_id, lit.group.label, lit.group.description, lit.group.tags) == (
        "ann", "open", "Open shelf", "free", ("t",),
    )  # fmt: skip
    assert [entity.name for entity in lit.entities] == ["Harbour light", "Lighting", "Selwyn"]
    assert shelves.documents("eve", "ann-public")[0].group_id == "open"
    [edge] = shelves.graph("eve", "harbour light").relationships
    assert (edge.predicate, edge.weight, edge.document_ids) == ("shines on", 1, ("ann-public",))


def test_scopes_say_where_a_search_looks(shelves: InProcess) -> None:
    def found(**scoped: Any) -> set[str]:
        return set(ids(shelves.search("ben", "harbour light of Selwyn", top_k=50, **scoped)))

    assert found() == {"ben-private", "ben-public"}
    assert found(scope="global") == {"ben-private", "ben-public", "ann-public", "ann-public-code"}
    assert found(scope="global", group_ids=("open",)) == found(scope="global")
    assert found(aggregate=True, group_ids=("open",)) == {"ben-private", "ben-public"}
    assert found(group_ids=("open",)) == {"ben-public", "ann-public", "ann-public-code"}
    assert found(group_ids=("vault",)) == set()
    assert found(group_ids=("no such group",)) == set()
    assert found(group_ids=("open",), media_type="code") == {"ann-public-code"}
    assert found(media_type="code") == set()
    assert found(media_type="text", scope="global") == {"ben-private", "ben-public", "ann-public"}


def test_the_graph_brings_nothing_from_outside_the_named_groups(node: InProcess) -> None:
    node.file("ann", document("alpha", id="in", vectors=[unit(1)], entities=["Heron Creek"]), group="g")
    node.file("ann", document("beta", id="out", vectors=[unit(0.9, 1)], entities=["Heron Creek"]))
    assert ids(node.search("ann", "Heron Creek", group_ids=("g",))) == ["in"]


def test_access_said_by_a_groups_owner_applies_to_new_and_old_documents(node: InProcess) -> None:
    def public() -> set[str]:
        return set(ids(node.search("eve", "text", scope="global"))) | {
            found.document_id for g in node.library("eve", include_available=True).groups for found in g.documents
        }

    edge = [("Heron", "eats", "Crab")]
    node.file("ann", document("text one", id="1", edges=edge), group="g")
    assert public() == set()
    node.file("ann", document("text two", id="2"), group=group("g", "available"))
    assert public() == {"1", "2"}
    assert node.graph("eve").relationship_count == 1
    node.file("ann", document("text three", id="3"), group="g")  # inherits
    node.file("ann", document("text one", id="1", edges=edge))  # changes no access
    assert public() == {"1", "2", "3"}
    node.file("ben", document("text four", id="4"), group=group("g", "restricted"))  # a group of his own
    assert public() == {"1", "2", "3"}
    node.file("ann", document("text five", id="5"), group=group("g", "restricted"))
    assert public() == set()
    assert node.search("eve", "who eats crab", scope="global").trace.relationships == ()
    assert node.graph("eve") == GraphAnswer()


def test_one_content_is_one_result_shown_as_the_callers_own_document_else_the_oldest_available(node: InProcess) -> None:
    text = "The same words in every house."
    node.file("ann", document(text, id="hidden", name="Hidden", entities=["Ann's Own Word"]))
    node.file("ben", document(text, id="open", name="Open"), group=group("g", "available"))
    node.file("cat", document(text, id="later", name="Later"), group=group("g", "available"))

    def shown(owner: str) -> list[tuple[str, str, set[str]]]:
        passages = node.search(owner, "same words", scope="global").passages
        return [(p.document_id, p.partition_id, {entity.name for entity in p.entities}) for p in passages]

    assert shown("ann") == [("hidden", "hidden:0", {"Hidden", "Ann's Own Word"})]
    assert shown("cat") == [("later", "later:0", {"Later"})]
    assert shown("eve") == [("open", "open:0", {"Open"})]
    assert node.remove("ben", "open") == 1
    assert shown("eve") == [("later", "later:0", {"Later"})]
    assert node.remove("cat") == 1
    assert shown("eve") == []
    assert shown("ann") == [("hidden", "hidden:0", {"Hidden", "Ann's Own Word"})]


def test_documents_of_an_id_that_several_use_are_the_callers_own_else_the_oldest_available(node: InProcess) -> None:
    node.file("ann", document("ann's text", id="x"))
    node.file("ben", document("ben's text", id="x"), group=group("g", "available"))
    node.file("cat", document("cat's text", id="x"), group=group("g", "available"))
    texts = {who: [d.texts[0] for d in node.documents(who, "x", "unknown", "x")] for who in ("ann", "cat", "eve")}
    assert texts == {"ann": ["ann's text"] * 2, "cat": ["cat's text"] * 2, "eve": ["ben's text"] * 2}


def test_an_entity_is_spelled_as_in_a_document_the_caller_may_read(node: InProcess) -> None:
    node.file("ann", document("one", id="1", entities=["HERON creek"]))
    node.file("ann", document("two", id="2", entities=["Heron Creek"]), group=group("g", "available"))
    [entity] = node.graph("eve", "heron").entities
    assert (entity.name, entity.mention_count, entity.document_ids) == ("Heron Creek", 1, ("2",))
    assert node.graph("ann", "heron").entities[0].mention_count == 2


def test_a_document_opened_by_one_group_does_not_show_anothers_name(node: InProcess) -> None:
    node.file("ann", document("text", id="x"), group=group("open", "restricted", label="Open"))
    node.file("ann", document("text", id="x"), group=group("closed", "restricted", label="SECRET", tags=("SECRET",)))
    node.file("ann", document("other", id="y"), group=group("open", "available"))
    answer = node.search("eve", "text", scope="global")
    assert set(ids(answer)) == {"x", "y"}
    assert "SECRET" not in repr(answer)
    assert "SECRET" not in repr(node.documents("eve", "x"))
    assert node.documents("ann", "x")[0].group_label == "SECRET"
    held = node.library("eve", include_available=True, document_ids=("x",)).groups
    assert [found.group_id for found in held] == ["open"]


def test_longer_names_of_others_do_not_hide_a_name_in_the_query(node: InProcess) -> None:
    node.file("ben", document("about", id="selwyn", vectors=[unit(1, 1)], entities=["Port Selwyn"]))
    node.embedder.vectors["where is Port Selwyn Light"] = unit(1)

    def distance() -> float:
        [passage] = node.search("ben", "where is Port Selwyn Light", lexical=False, expand=False).passages
        return passage.distance

    before = distance()
    assert (
        before < node.search("ben", "where is Port Selwyn Light", graph_mode="off", lexical=False).passages[0].distance
    )
    node.file("ann", document("hidden", id="hidden", entities=["Port Selwyn Light"]))
    assert distance() == pytest.approx(before)


def test_a_name_that_only_a_restricted_document_asserts_hides_no_other_where_an_open_one_mentions_it(
    node: InProcess,
) -> None:
    node.file(
        "ann",
        document("The Port Selwyn Light stands on the mole.", id="open", entities=None),
        document("about the town", id="town", entities=["Port Selwyn"]),
        group=group("open", "available"),
    )

    def shown() -> Any:
        trace = node.search("eve", "where is Port Selwyn Light", scope="global", expand=False).trace
        graph = node.graph("eve", query="where is Port Selwyn Light", limit=1, hops=0)
        return [entity.name for entity in trace.entities], [entity.name for entity in graph.entities]

    before = shown()
    assert "Port Selwyn" in before[0]
    node.file("ann", document("hidden", id="hidden", entities=["Port Selwyn Light"]))
    assert node.mentions("ann") >= {("open", "Port Selwyn Light")}
    assert shown() == before


def test_others_relationships_take_no_places_from_the_callers_own(node: InProcess) -> None:
    node.embedder.vectors |= {"Relationship predicate: keeps": unit(1), "who keeps it": unit(1)}
    others = [("Ann", "keeps", f"Thing {number}") for number in range(12)]
    node.embedder.vectors |= {
        f"concept: {s} {p} concept: {o}": unit(1, number / 99) for number, (s, p, o) in enumerate(others)
    }
    node.embedder.vectors["concept: Ben keeps concept: Clock"] = unit(0, 1)
    node.file("ann", document("hidden", id="hidden", edges=others))
    node.file("ben", document("clock", id="clock", edges=[("Ben", "keeps", "Clock")]))
    trace = node.search("ben", "who keeps it").trace
    assert [(edge.subject, edge.object) for edge in trace.relationships] == [("Ben", "Clock")]
    assert {entity.name for entity in trace.entities} == {"Ben", "Clock"}


def test_rows_of_others_in_a_named_group_take_no_places_in_the_scan(node: InProcess) -> None:
    node.file("ann", document("open", id="open", vectors=[unit(-1)]), group=group("g", "available"))
    hidden = [document(f"n{n}", id=f"n{n}", vectors=[unit(1, n / 500)]) for n in range(300)]
    node.file("ann", *hidden, group="g")
    node.file("ann", *hidden, group="closed")  # which takes its documents out of sight, in every group
    assert ids(node.search("eve", query_embedding=unit(1), group_ids=("g",))) == ["open"]


def test_anothers_restricted_group_is_as_one_that_does_not_exist(node: InProcess) -> None:
    node.file("ann", document("text", id="x"), group="merger")
    assert node.run(node.node.update_document(UpdateDocumentRequest("ann", "x", access="available")))
    assert ids(node.search("eve", "text", scope="global")) == ["x"]
    assert ids(node.search("ann", "text", group_ids=("merger",))) == ["x"]
    assert node.search("eve", "text", group_ids=("merger",)) == node.search("eve", "text", group_ids=("unknown",))


def test_the_trace_names_only_entities_of_the_documents_that_were_searched(node: InProcess) -> None:
    node.file("ann", document("opening hours", id="a", entities=["Port Library"]), group=group("g", "available"))
    node.file("ben", document("a knot", id="b", entities=["Bowline Knot"]))
    assert [e.name for e in node.search("ben", "Port Library hours", scope="global").trace.entities] == ["Port Library"]
    assert node.search("ben", "Port Library hours").trace.entities == ()
