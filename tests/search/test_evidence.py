"""What the graph says about documents, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from thread_service.search import evidence
from thread_service.search.evidence import Evidence


def as_dict(found: Evidence) -> dict[int, float]:
    return dict(zip(found.documents.tolist(), found.values.tolist(), strict=True))


def rarity(documents: int, listing: int) -> float:
    return math.log(1 + documents / listing) / math.log(1 + documents)


def test_a_clue_gives_a_document_its_best_activation_times_rarity_over_the_greatest_rarity() -> None:
    documents_of = {1: BitMap([10, 11]), 2: BitMap([11, 12, 13, 14]), 3: BitMap()}
    found = evidence.gather([{1: 0.5, 2: 1.0, 3: 1.0}], documents_of, BitMap([10, 11, 12, 99]), 20)
    common, rare = rarity(20, 4), 0.5 * rarity(20, 2)
    assert common > rare
    assert as_dict(found) == pytest.approx({11: common, 12: common, 10: rare})
    assert found.documents.tolist() == [11, 12, 10]  # most evident first
    assert found.strengths == pytest.approx({1: rare, 2: common})


def test_clues_that_agree_give_the_cube_root_of_the_sum_of_their_cubes() -> None:
    documents_of = {1: BitMap([10, 11]), 2: BitMap([11])}
    found = evidence.gather([{1: 1.0}, {1: 0.5, 2: 0.25}, {1: 0.5}], documents_of, BitMap([10, 11]), 20)
    share = rarity(20, 2)
    assert as_dict(found) == pytest.approx({10: share * (1 + 2 * 0.5**3) ** (1 / 3), 11: share * 1.25 ** (1 / 3)})
    assert found.strengths == pytest.approx({1: share * 1.25 ** (1 / 3), 2: 0.25})


def test_a_clue_activates_all_its_entities_alike() -> None:
    assert evidence.clue((1, 2, 1), 0.4) == {1: 0.4, 2: 0.4}


def test_frequency_counts_documents_that_may_not_be_read() -> None:
    one = evidence.gather([{1: 1.0}], {1: BitMap([5])}, BitMap([5]), 100)
    many = evidence.gather([{1: 1.0}], {1: BitMap(range(50))}, BitMap([5]), 100)
    assert as_dict(one) == {5: 1.0}
    assert as_dict(many) == pytest.approx({5: math.log(3) / math.log(101)})


def test_what_could_move_a_distance_by_less_than_a_hundredth_is_left_out() -> None:
    assert as_dict(evidence.gather([{1: 0.019}], {1: BitMap([5])}, BitMap([5]), 1)) == {}
    assert as_dict(evidence.gather([{1: 0.021}], {1: BitMap([5])}, BitMap([5]), 1)) == pytest.approx({5: 0.021})


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_or_tiny_node_is_no_division_by_zero(count: int) -> None:
    found = evidence.gather([], {}, BitMap(), count)
    assert (len(found.documents), len(found.values)) == (0, 0)
    assert evidence.by_content(found, np.empty(0, np.int64), np.array([1, 2])).tolist() == [0, 0]


def test_a_content_has_the_most_evidence_of_its_documents() -> None:
    found = Evidence(np.array([4, 2, 9]), np.array([0.9, 0.5, 0.4]), {})
    contents = np.array([70, 30, 70])
    assert evidence.by_content(found, contents, np.array([10, 30, 50, 70, 90])).tolist() == [0, 0.5, 0, 0.9, 0]


@given(
    st.lists(st.dictionaries(st.integers(1, 6), st.floats(0.03, 1), max_size=6), max_size=4),
    st.dictionaries(st.integers(1, 6), st.sets(st.integers(1, 12), max_size=12), min_size=6),
    st.sets(st.integers(1, 12)),
)
def test_evidence_equals_the_formula_and_is_never_less_than_the_best_clue_alone(
    clues: list[dict[int, float]], lists: dict[int, set[int]], eligible: set[int]
) -> None:
    documents_of = {key: BitMap(lists.get(key, ())) for key in range(1, 7)}
    found = as_dict(evidence.gather(clues, documents_of, BitMap(eligible), 12))
    strengths = {
        key: sum((clue.get(key, 0.0) * rarity(12, len(lists[key]))) ** 3 for clue in clues) ** (1 / 3)
        for key in range(1, 7)
        if lists.get(key)
    }
    cubes: dict[int, float] = {}
    best: dict[int, float] = {}
    for clue in clues:
        given_by: dict[int, float] = {}
        for key, activation in clue.items():
            for document in lists.get(key, set()) & eligible:
                if strengths[key] >= evidence.CONTRIBUTION_MIN:
                    strength = activation * rarity(12, len(lists[key]))
                    given_by[document] = max(given_by.get(document, 0.0), strength)
        for document, value in given_by.items():
            cubes[document] = cubes.get(document, 0.0) + value**3
            best[document] = max(best.get(document, 0.0), value)
    assert found == pytest.approx({document: value ** (1 / 3) for document, value in cubes.items()})
    assert all(found[document] >= value - 1e-9 for document, value in best.items())


def test_an_entity_in_very_many_documents_speaks_for_those_that_are_there_and_brings_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evidence, "DOCUMENTS_MAX", 3)
    documents_of = {1: BitMap([10, 11]), 2: BitMap(range(10, 20)), 3: BitMap([12])}
    clues = [evidence.clue((key,), 1.0) for key in documents_of]
    found = as_dict(evidence.gather(clues, documents_of, BitMap(range(10, 30)), 100, lambda: BitMap([15, 25])))
    assert found.keys() == {10, 11, 12, 15}
    everything = as_dict(
        evidence.gather(clues, documents_of, BitMap(range(10, 30)), 100, lambda: BitMap(range(10, 30)))
    )
    assert found == {key: everything[key] for key in found}
