from __future__ import annotations

import hashlib

import numpy as np
import pytest

from thread_service.text.ids import (
    content_digest,
    content_id,
    decimal_hash,
    entity_id,
    normalise_kind,
    normalise_name,
    normalise_predicate,
    partition_id,
    predicate_id,
    relationship_id,
)

EMPTY = "22717619666152252282015425124420015311118536391746522810015514776164149153271208218485"
ADA = "1412591235115168205084234111821453041951111386714622454061321340243821554211169"
LEDGER = "921898094203421541159423411010712011920622415039241155151141872264524221551140636305"
ADA_KEEPS_LEDGER = "05116381971031951161351772287416318415313225169113131340013510900127119124196561854140"
KEEPS = "4814364112245119710222762177171187011654014863197131895235801112101572379217522297"


def test_decimal_hash_of_nothing_is_the_known_answer() -> None:
    assert decimal_hash(b"") == EMPTY


def test_decimal_hash_prints_every_byte_with_at_least_two_digits() -> None:
    for data in (b"", b"a", b"\0" * 100):
        expected = "".join(str(byte).rjust(2, "0") for byte in hashlib.sha256(data).digest())
        assert decimal_hash(data) == expected
        assert 64 <= len(expected) <= 96


def test_graph_ids_are_the_known_answers() -> None:
    assert entity_id("person", "Ada Quill") == ADA
    assert entity_id("concept", "Tidal Ledger") == LEDGER
    assert relationship_id(ADA, "keeps", LEDGER) == ADA_KEEPS_LEDGER
    assert predicate_id("keeps") == KEEPS


def test_graph_ids_do_not_depend_on_case_or_outer_space() -> None:
    assert entity_id(" PERSON\n", "\t ada \n\n QUILL ") == ADA
    assert entity_id(" ", "tidal ledger") == LEDGER
    assert relationship_id(ADA, " KEEPS ", LEDGER) == ADA_KEEPS_LEDGER
    assert predicate_id("\nKeeps") == KEEPS


def test_relationships_have_a_direction() -> None:
    assert relationship_id(LEDGER, "keeps", ADA) != ADA_KEEPS_LEDGER


def test_names_lose_inner_space_and_kinds_and_predicates_keep_it() -> None:
    assert normalise_name("  Ada \u3000\r\n QUILL") == "ada quill"
    assert normalise_name(" \n") == ""
    assert normalise_kind(" Data  Set ") == "data  set"
    assert normalise_kind("") == "concept"
    assert normalise_predicate(" Works  AT ") == "works  at"


def test_content_id_hashes_each_text_after_its_utf8_length() -> None:
    data = b"\x03\0\0\0\0\0\0\0h\xc3\xa9" + b"\x02\0\0\0\0\0\0\0yo"
    assert content_id(["hé", "yo"]) == hashlib.sha256(data).hexdigest()
    assert content_id([]) == hashlib.sha256(b"").hexdigest()
    assert content_id(["a"]) == "ae6121c88ba555f64c3d812123eb799d128015541f850c5e9bf1d54c08ad8481"


def test_content_id_sees_order_case_and_boundaries() -> None:
    lists = [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["AB", "c"], ["ab", "c", ""], ["ab c"], ["ab\0c"], []]
    assert len({content_id(texts) for texts in lists}) == len(lists)


def test_content_digest_tells_media_types_texts_and_vectors_apart() -> None:
    one, two = np.float32([1, 2]), np.float32([2, 1])
    digests = [
        content_digest("text", ["a", "b"], [None, None]),
        content_digest("texta", ["", "b"], [None, None]),
        content_digest("text", ["ab"], [None]),
        content_digest("text", ["a", "b"], [one, None]),
        content_digest("text", ["a", "b"], [None, one]),
        content_digest("text", ["a", "b"], [two, None]),
        content_digest("text", ["a", "b"], [np.float32([1, 2, 0]), None]),
        content_digest("text", ["a", "b"], [np.float32([]), None]),
        content_digest("text", [], []),
    ]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests} == {32}


def test_content_digest_depends_on_vector_values_and_not_on_their_layout() -> None:
    wide = np.arange(8, dtype=np.float32)
    expected = content_digest("text", ["a"], [np.float32([0, 2, 4, 6])])
    assert content_digest("text", ["a"], [wide[::2]]) == expected
    assert content_digest("text", ["a"], [wide[::2].astype(">f4")]) == expected


def test_content_digest_needs_one_vector_entry_for_each_text() -> None:
    with pytest.raises(ValueError, match="shorter"):
        content_digest("text", ["a", "b"], [None])


def test_partition_ids_name_the_document_and_the_ordinal() -> None:
    assert partition_id("notes:a/../b", 0) == "notes:a/../b:0"
    assert partition_id("", 12) == ":12"


@pytest.mark.parametrize("make", [lambda text: content_id([text]), predicate_id, lambda text: entity_id("x", text)])
def test_text_that_is_not_unicode_has_no_id(make) -> None:
    with pytest.raises(UnicodeEncodeError):
        make("\ud800")
