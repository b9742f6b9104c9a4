"""Which entities count in a search of code, and what they are worth to documents."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap

from thread_service.search import identifiers, ranking
from thread_service.search.identifiers import Match


def test_the_hub_cap_is_the_policys_until_a_twentieth_of_the_documents_is_more() -> None:
    assert [identifiers.hub_cap(24, documents) for documents in (0, 499, 500, 519, 520)] == [24, 24, 25, 25, 26]


def test_the_order_is_by_score_then_rarity_then_name_then_age() -> None:
    matches = [
        Match(1, 0.6, 1, "a"),
        Match(2, 0.8, 2, "b"),
        Match(3, 0.8, 1, "c"),
        Match(4, 0.8, 1, "b"),
        Match(6, 1.0, 9, "z"),
        Match(5, 1.0, 9, "z"),
    ]
    assert [match.entity_key for match in identifiers.best(matches, 24)] == [5, 6, 4, 3, 2, 1]


def test_thirty_two_count_and_every_whole_match() -> None:
    wholes = [Match(key, 1.0, 1_000, "w") for key in range(30)]
    partial = [Match(key, 0.6, key, "p") for key in range(100, 200)]
    assert [match.entity_key for match in identifiers.best(wholes + partial, 1_000)] == [*range(30), 100, 101]
    wholes = [Match(key, 1.0, 1_000, "w") for key in range(50)]
    assert [match.entity_key for match in identifiers.best(wholes + partial, 1_000)] == [*range(50)]
    assert identifiers.best([Match(1, 0.8, 25, "p"), Match(2, 1.0, 25, "w")], 24) == [Match(2, 1.0, 25, "w")]


def test_a_document_weighs_what_its_entities_sum_up_to() -> None:
    documents_of = {1: BitMap((10, 11)), 2: BitMap((11, 12, 99)), 3: BitMap()}
    found = identifiers.weigh({1: 1.0, 2: 0.6, 3: 0.8}, documents_of, BitMap((10, 11, 12)))
    assert found.documents.tolist() == [11, 10, 12]
    assert found.values.tolist() == [1.6, 1.0, 0.6]
    assert len(identifiers.weigh({}, {}, BitMap((10,))).documents) == 0


@pytest.mark.parametrize(
    ("weight", "factor"), [(0, 1), (0.6, 0.85**0.6), (1, 0.85), (3, 0.85**3), (3.2, 0.6), (99, 0.6)]
)
def test_identifiers_shrink_a_distance_to_three_fifths_at_most(weight: float, factor: float) -> None:
    found = ranking.with_identifiers(np.array([2.0, 0.0]), np.array([weight, weight]))
    np.testing.assert_allclose(found, [2 * factor, 0], rtol=1e-12)
