"""Contents and the documents that have them, beside a plain dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from thread_service.store.sharing import Sharing

CONTENTS, DOCUMENTS = range(-1, 5), range(8)
MOVES = st.lists(st.dictionaries(st.sampled_from(DOCUMENTS), st.sampled_from(CONTENTS)))


@given(MOVES)
def test_each_content_has_the_documents_that_came_to_it_last(moves: list[dict[int, int]]) -> None:
    sharing, content_of = Sharing(), dict.fromkeys(DOCUMENTS, -1)
    for move in moves:
        documents = np.array([*move], dtype=np.int64)
        before = np.array([content_of[document] for document in move], dtype=np.int64)
        sharing.move(documents, before, np.array([*move.values()], dtype=np.int64))
        content_of.update(move)
        for content in range(5):
            expected = {document for document, its in content_of.items() if its == content}
            assert set(sharing.of_one(content)) == expected
            assert set(sharing.of(np.array([content]))) == expected
    placed = {document for document, content in content_of.items() if content >= 0}
    assert set(sharing.of(np.arange(6))) == placed


def test_what_somebody_reads_does_not_change_in_their_hands() -> None:
    sharing = Sharing()
    sharing.move(np.array([1, 2]), np.array([-1, -1]), np.array([7, 7]))
    read = sharing.of_one(7)
    sharing.move(np.array([3]), np.array([-1]), np.array([7]))
    assert set(read) == {1, 2}
    assert set(sharing.of_one(7)) == {1, 2, 3}
