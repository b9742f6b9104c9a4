"""One distance from vector, words and graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thread_service.search import ranking


def array(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float64)


def test_words_raise_the_cosine_by_their_share_of_a_fifth_and_shrink_the_distance_with_it() -> None:
    found = ranking.with_words(array(4, 4, 4), array(0.5, 0.0, -1.0), array(0.25, 1, 1))
    expected = [4 * math.sqrt(0.45 / 0.5), 4 * math.sqrt(0.8), 4 * math.sqrt(1.8 / 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_words_stop_at_the_greatest_similarity_and_leave_nearer_rows_as_they_are() -> None:
    found = ranking.with_words(array(1, 1, 1, 0), array(0.9, 0.995, 0.999, 1.0), array(1, 1, 1, 1))
    np.testing.assert_allclose(found, [math.sqrt(0.005 / 0.1), 1, 1, 0], rtol=1e-12)


def test_evidence_takes_15_per_cent_three_times() -> None:
    found = ranking.with_evidence(array(2, 2, 2), array(0, 1, 0.5))
    np.testing.assert_allclose(found, [2, 2 * 0.85**3, 2 * 0.85**1.5], rtol=1e-12)


@given(st.floats(0, 100), st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_words_and_evidence_never_make_a_distance_longer_negative_or_undefined(
    distance: float, cosine: float, words: float, evidence: float
) -> None:
    found = ranking.with_evidence(ranking.with_words(array(distance), array(cosine), array(words)), array(evidence))[0]
    assert 0 <= found <= distance * (1 + 1e-12)


def test_preferred_rows_come_first_then_nearer_ones_then_older_ones() -> None:
    distances = array(3, 1, 2, 1, 9)
    keys = np.array([10, 12, 11, 5, 99])
    preferred = np.array([False, False, False, False, True])
    assert ranking.order(distances, keys, preferred).tolist() == [4, 3, 1, 2, 0]


@pytest.mark.parametrize(
    ("contents", "top_k", "expected"),
    [
        ([7, 7, 7, 7, 8, 7, 9], 5, [0, 1, 2, 4, 6, 3, 5]),
        ([7, 7, 7, 7, 7, 7, 7], 4, [0, 1, 2, 3, 4, 5, 6]),
        ([7, 7, 7, 7, 7, 7, 7], 2, [0, 1, 2, 3, 4]),  # no more are held back than could be shown
        ([], 3, []),
    ],
)
def test_at_most_three_of_a_document_come_before_other_documents(
    contents: list[int], top_k: int, expected: list[int]
) -> None:
    positions = np.arange(len(contents))
    assert list(ranking.diversify(positions, np.array(contents, dtype=np.int64), top_k)) == expected
