"""Identifiers of code: which names hold one, which a query asks for, and which agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thread_service.text import identifiers


@pytest.mark.parametrize(
    ("name", "kind", "identifier"),
    [
        ("sym:fn Repl.handle(_:)", "function", "Repl.handle"),
        ("sym:Session+ext@42", "concept", "Session"),
        ("type:Session", "struct", "Session"),
        ("memory:boot_order", "concept", "boot_order"),
        ("  Session ", "struct", "Session"),
        ("Repl.handle(_:with:)", "function", "Repl.handle"),
        ("handle(a, b)", "function", ""),
        ("sym:func (r *Repl) Handle", "function", "Handle"),
        ("sym: struct  Long.Clock ", "struct", "Long.Clock"),
        ("sym:type:Session", "struct", "type:Session"),
        ("SYM:Session", "struct", "SYM:Session"),
        ("Tidal Ledger", "concept", ""),
        ("sym:", "function", ""),
        ("sym: \t", "function", ""),
        ("(lambda)", "function", ""),
        ("sym:+ext@7", "concept", ""),
        ("Session+ext@", "concept", "Session"),
        ("", "concept", ""),
        ("session.swift", "file", ""),
        ("sym:session", "module", ""),
        ("Größe.maß", "concept", "Größe.maß"),
        ("🦀", "concept", "🦀"),
        ("a\0b", "concept", "a\0b"),
    ],
)
def test_the_identifier_of_an_entity(name: str, kind: str, identifier: str) -> None:
    assert identifiers.of_entity(name, kind) == identifier


@pytest.mark.parametrize(
    ("text", "named", "terms"),
    [
        ("where is posix_spawn called?", (), ["posix_spawn"]),
        ("NSApplication, runBlocking and A.b.", (), ["NSApplication", "runBlocking", "A.b"]),
        ("kill the Session of 2026", (), []),
        ("kill the `Session` of `2026`", (), ["Session"]),
        ("an open `Session", (), []),
        ("`let x = Repl.handle(y)` and ``", (), ["Repl.handle"]),
        ("```\nRepl.handle(x)\n``` then `kill`", (), ["kill", "Repl.handle"]),
        ("what does Repl.handle(_:) do", (), ["Repl.handle"]),
        ("`Repl.handle(_:)`, `.count`, `'quoted'`", (), ["Repl.handle", "count", "quoted"]),
        ("[a_b]{c_d}<e_f>,g_h;\"i_j\"'k_l'", (), ["a_b", "c_d", "e_f", "g_h", "i_j", "k_l"]),
        ("(...a_b!) :c_d? ?e_f:", (), ["a_b", "c_d", "e_f"]),
        ("_private __init__ _ __ _1", (), ["_private", "__init__"]),
        ("3d_model x-y_z a/b_c v1.2 x. .y a..", (), ["v1.2"]),
        ("HTTP Http hTTP", (), ["HTTP", "hTTP"]),
        ("größeÄ naïve_x Ünder", (), ["größeÄ", "naïve_x"]),
        ("a_b A_b a_b `a_b`", (), ["a_b", "A_b"]),
        ("uses a_b", ("kill", "a_b", "Session?"), ["kill", "a_b", "Session"]),
        ("", (" `kill` ", "two words", "", " . ", "2026", "()", "handle(_:)"), ["kill", "handle"]),
        ("", ("sym:fn Repl.handle(_:)", "type:Session+ext@42", "sym:"), ["Repl.handle", "Session"]),
    ],
)
def test_the_identifiers_of_a_query(text: str, named: tuple[str, ...], terms: list[str]) -> None:
    assert sorted(identifiers.in_query(text, named)) == sorted(terms)


def test_named_identifiers_come_before_those_in_back_ticks_and_these_before_the_words() -> None:
    assert identifiers.in_query("a_b and `c` and d_e", ("f",)) == ["f", "c", "a_b", "d_e"]


@pytest.mark.parametrize(
    ("term", "identifier", "score"),
    [
        ("Repl.handle", "Repl.handle", 1.0),
        ("handle", "handle", 1.0),
        ("Repl.handle", "Thread.Repl.handle", 0.8),
        ("B.C.d", "A.B.C.d", 0.8),
        ("handle", "Repl.handle", 0.6),
        ("handle", "Thread.Repl.handle", 0.6),
        ("Repl", "Repl.handle", 0.0),
        ("Repl.handle", "handle", 0.0),
        ("Thread.handle", "Thread.Repl.handle", 0.0),
        ("epl.handle", "Repl.handle", 0.0),
        ("andle", "Repl.handle", 0.0),
        ("Handle", "Repl.handle", 0.0),
        ("repl.handle", "Repl.handle", 0.0),
    ],
)
def test_how_well_a_term_agrees_with_an_identifier(term: str, identifier: str, score: float) -> None:
    assert identifiers.agreement(term, identifier) == score


component = st.text("aBçİß_1", min_size=1, max_size=3)
dotted = st.lists(component, min_size=1, max_size=4).map(".".join)


@given(dotted, dotted)
def test_whatever_agrees_lies_on_the_path_of_the_term(term: str, identifier: str) -> None:
    wanted, found = identifiers.path(term), identifiers.path(identifier)
    if identifiers.agreement(term, identifier):
        assert found == wanted or found.startswith(wanted + ".")


@given(st.text(), st.lists(st.text(max_size=20), max_size=3))
def test_any_text_may_be_asked_or_named(text: str, named: list[str]) -> None:
    terms = identifiers.in_query(text, named)
    assert len(set(terms)) == len(terms)
    assert all(term and not any(map(str.isspace, term)) for term in terms)
    for name in named:
        identifiers.path(identifiers.of_entity(name, "concept"))
