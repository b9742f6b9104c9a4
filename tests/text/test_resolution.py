"""Names that differ only in form are one name, and no others are."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thread_service.text.ids import normalise_name
from thread_service.text.resolution import resolution_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # All pairs of spellings among the 7,350 names in the gold triples of Text2KGBench (wikidata_tekgen).
        ("Turn Left, Turn Right", "Turn Left , Turn Right"),
        ("Gigi in Paradisco", "Gigi in paradisco"),
        ("50 Words for Snow", "50 Words For Snow"),
        ("Il Silenzio", "Il silenzio"),
        ("The Giving Tree", "the Giving Tree"),
        ("Ada Quill", "  ADA\t quill, "),
        ("Ada-Quill", "Ada Quill."),
        ("Ada Quill", "Ａｄａ Ｑｕｉｌｌ"),
        ("Café Müller", unicodedata.normalize("NFD", "Café Müller")),
        ("Straße 9", "STRASSE 9"),
        ("Ada\0Quill", "Ada Quill"),
    ],
)
def test_names_that_differ_only_in_form_are_one(one: str, other: str) -> None:
    assert resolution_key(one) == resolution_key(other)


def test_names_that_differ_in_more_are_several() -> None:
    names = [
        "C",
        "C++",
        "C#",
        "Ada Quill",
        "Ada Quills",
        "Quill Ada",
        "Adaquill",
        "Café",
        "Cafe",
        "\0",
        "\0\0",
        "🜁",
        "!",
    ]
    assert len({*map(resolution_key, names)}) == len(names)


@given(st.text(min_size=1))
def test_names_of_one_id_are_one_name(name: str) -> None:
    assert resolution_key(normalise_name(name)) == resolution_key(name)
