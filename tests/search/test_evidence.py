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


def test_an_entity_keeps_its_best_activation() -> None:
    activations = {1: 0.5}
    evidence.activate(activations, (1, 2), 0.4)
    evidence.activate(activations, (2, 3), 0.9)
    evidence.activate(activations, (4,), 0.0)
    evidence.activate(activations, (4,), -0.5)
    assert activations == {1: 0.5, 2: 0.9, 3: 0.9}


def test_evidence_is_the_best_of_activation_times_rarity_over_the_greatest_rarity() -> None:
    documents_of = {1: BitMap([10, 11]), 2: BitMap([11, 12, 13, 14]), 3: BitMap()}
    found = evidence.gather({1: 0.5, 2: 1.0, 3: 1.0}, documents_of, BitMap([10, 11, 12, 99]), 20)
    common = math.log(1 + 20 / 4) / math.log(21)
    rare = 0.5 * math.log(1 + 20 / 2) / math.log(21)
    assert common > rare
    assert as_dict(found) == pytest.approx({11: common, 12: common, 10: rare})
    assert found.documents.tolist() == [11, 12, 10]  # most evident first
    assert found.strengths == pytest.approx({1: rare, 2: common})


def test_frequency_counts_documents_that_may_not_be_read() -> None:
    one = evidence.gather({1: 1.0}, {1: BitMap([5])}, BitMap([5]), 100)
    many = evidence.gather({1: 1.0}, {1: BitMap(range(50))}, BitMap([5]), 100)
    assert as_dict(one) == {5: 1.0}
    assert as_dict(many) == pytest.approx({5: math.log(3) / math.log(101)})


def test_what_could_move_a_distance_by_less_than_a_hundredth_is_left_out() -> None:
    assert as_dict(evidence.gather({1: 0.019}, {1: BitMap([5])}, BitMap([5]), 1)) == {}
    assert as_dict(evidence.gather({1: 0.021}, {1: BitMap([5])}, BitMap([5]), 1)) == {5: 0.021}


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_or_tiny_node_is_no_division_by_zero(count: int) -> None:
    found = evidence.gather({}, {}, BitMap(), count)
    assert (len(found.documents), len(found.values)) == (0, 0)
    assert evidence.by_content(found, np.empty(0, np.int64), np.array([1, 2])).tolist() == [0, 0]


def test_a_content_has_the_most_evidence_of_its_documents() -> None:
    found = Evidence(np.array([4, 2, 9]), np.array([0.9, 0.5, 0.4]), {})
    contents = np.array([70, 30, 70])
    assert evidence.by_content(found, contents, np.array([10, 30, 50, 70, 90])).tolist() == [0, 0.5, 0, 0.9, 0]


@given(
    st.dictionaries(st.integers(1, 6), st.floats(0.03, 1), max_size=6),
    st.dictionaries(st.integers(1, 6), st.sets(st.integers(1, 12), max_size=12), min_size=6),
    st.sets(st.integers(1, 12)),
)
def test_evidence_equals_the_formula_and_lies_between_0_and_1(
    activations: dict[int, float], lists: dict[int, set[int]], eligible: set[int]
) -> None:
    documents_of = {key: BitMap(lists.get(key, ())) for key in activations}
    found = as_dict(evidence.gather(activations, documents_of, BitMap(eligible), 12))
    expected: dict[int, float] = {}
    for key, activation in activations.items():
        for document in lists.get(key, set()) & eligible:
            strength = activation * math.log(1 + 12 / len(lists[key])) / math.log(13)
            if strength >= evidence.CONTRIBUTION_MIN:
                expected[document] = max(expected.get(document, 0.0), strength)
    assert found == pytest.approx(expected)
    assert all(0 < value <= 1 + 1e-12 for value in found.values())
