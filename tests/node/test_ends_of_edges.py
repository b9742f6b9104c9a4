"""Which entities a relationship joins: those of its own document, by name, whatever else is on the node."""

from __future__ import annotations

import pytest
from in_process import InProcess, document

from thread_service.text.ids import entity_id


def test_an_edge_is_embedded_with_the_ends_it_is_stored_with(node: InProcess) -> None:
    homonyms = [("Quill", "person"), ("Quill", "tool")]
    node.file("ann", document("text", id="a", entities=homonyms, edges=[("quill", "Cuts", "Reed")]))
    assert node.embedder.count("tool: Quill cuts concept: Reed") == 1
    [edge] = node.graph("ann", "reed").relationships
    assert edge.subject_id == entity_id("tool", "Quill")


@pytest.mark.parametrize("others_first", [True, False])
def test_an_end_is_never_anothers_entity_of_the_same_name(node: InProcess, others_first: bool) -> None:
    deposits = [
        ("ann", document("hers", id="a", entities=[("Quill", "person")])),
        ("ben", document("his", id="b", edges=[("Quill", "likes", "Tea")])),
    ]
    for owner, said in deposits if others_first else reversed(deposits):
        node.file(owner, said)
    [edge] = node.graph("ben", "tea").relationships
    assert (edge.subject_id, edge.object_id) == (entity_id("concept", "Quill"), entity_id("concept", "Tea"))
    assert node.graph("ann", "quill").relationships == ()
