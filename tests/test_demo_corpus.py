"""The demo's corpus and questions keep what they promise: joined by names, answerable, and honest about hops."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo"
KINDS = {"direct": 5, "exact": 4, "two-hop": 8, "three-hop": 3}
HOPS = {"two-hop": 2, "three-hop": 3}


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]


PASSAGES = lines_of("corpus.jsonl")
QUESTIONS = lines_of("questions.jsonl")
BY_ID = {passage["id"]: passage for passage in PASSAGES}


def mentions(text: str, name: str) -> bool:
    def normal(words: str) -> str:
        return " " + " ".join(re.findall(r"\w+", words.casefold())) + " "

    return normal(name) in normal(text)


def test_ids_and_names_are_unique_and_passages_enough() -> None:
    assert len(PASSAGES) >= 110
    assert len(BY_ID) == len(PASSAGES)
    assert len({passage["name"].casefold() for passage in PASSAGES}) == len(PASSAGES)


@pytest.mark.parametrize("passage", PASSAGES, ids=lambda passage: passage["id"])
def test_a_passage_is_a_short_page_about_its_name(passage: dict[str, Any]) -> None:
    text = passage["text"]
    assert 60 <= len(text.split()) <= 130
    assert mentions(text, passage["name"])
    assert len(passage["name"].split()) >= 2, "a name of one word is linked only where it is written with a capital"
    # One partition per passage: the chunker cuts at 1,200 characters.
    assert len(text) <= 1_200
    assert text == text.strip()
    assert "  " not in text


@pytest.mark.parametrize("passage", [each for each in PASSAGES if "entities" in each], ids=lambda each: each["id"])
def test_relationships_join_listed_entities_that_the_text_names(passage: dict[str, Any]) -> None:
    entities = {entity["name"] for entity in passage["entities"]}
    assert passage["name"] in entities
    assert all(mentions(passage["text"], name) for name in entities)
    assert all(entity["kind"] for entity in passage["entities"])
    assert passage["relationships"]
    for edge in passage["relationships"]:
        assert {edge["subject"], edge["object"]} <= entities
        assert edge["predicate"]


def test_an_entity_has_one_kind_and_a_third_of_the_passages_list_theirs() -> None:
    kinds: dict[str, set[str]] = {}
    for passage in PASSAGES:
        for entity in passage.get("entities", []):
            kinds.setdefault(entity["name"], set()).add(entity["kind"])
    assert [name for name, which in kinds.items() if len(which) > 1] == []
    assert 0.3 <= sum("entities" in passage for passage in PASSAGES) / len(PASSAGES) <= 0.4


def test_names_alone_join_all_passages_into_one_web() -> None:
    named_in = {
        each["id"]: {other["id"] for other in PASSAGES if other is not each and mentions(other["text"], each["name"])}
        for each in PASSAGES
    }
    assert [each for each, others in named_in.items() if not others] == [], "named by no other passage"
    neighbours = {each: set(others) for each, others in named_in.items()}
    for each, others in named_in.items():
        for other in others:
            neighbours[other].add(each)
    reached, left = set(), [PASSAGES[0]["id"]]
    while left:
        each = left.pop()
        if each not in reached:
            reached.add(each)
            left.extend(neighbours[each])
    assert reached == set(BY_ID)


def test_there_are_twenty_questions_of_four_kinds() -> None:
    assert Counter(question["kind"] for question in QUESTIONS) == KINDS


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["question"])
def test_a_question_is_answered_by_its_passages(question: dict[str, Any]) -> None:
    passages = [BY_ID[each] for each in question["document_ids"]]
    assert any(question["answer"] in passage["text"] for passage in passages)
    assert len(set(question["document_ids"])) == HOPS.get(question["kind"], 1)
    assert question["answer"].casefold() not in question["question"].casefold()


@pytest.mark.parametrize(
    "question", [each for each in QUESTIONS if each["kind"] in HOPS], ids=lambda question: question["question"]
)
def test_a_hop_is_needed(question: dict[str, Any]) -> None:
    """The question names where to start, no bridge; each passage names the next; only the last holds the answer."""
    chain = [BY_ID[each] for each in question["document_ids"]]
    assert [mentions(question["question"], passage["name"]) for passage in chain] == [True] + [False] * (len(chain) - 1)
    for passage, following in pairwise(chain):
        assert mentions(passage["text"], following["name"])
    assert [question["answer"] in passage["text"] for passage in chain] == [False] * (len(chain) - 1) + [True]


def test_the_page_tells_losses_as_well_as_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO))
    import demo_page

    question = demo_page.Question("Who?", "she", ["a", "b"], "two-hop")
    found = [{"document_id": each} for each in ("x", "b", "a")]
    assert demo_page.ranks_of(["a", "b", "c"], found) == [3, 2, None]
    ranks = {"vectors": [1, None], "+words": [1, 4], "+graph": [None, 2], "all": [2, None]}
    outcome = demo_page.Outcome(question, ranks, 1.0)
    assert demo_page.verdict(outcome, {"a": "Ash", "b": "Bell"}) == "+words gains Bell; +graph gains Bell and loses Ash"
    assert [outcome.recall(channel) for channel in ranks] == [0.5, 1.0, 0.5, 0.5]
