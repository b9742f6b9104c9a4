from __future__ import annotations

import sys
import time

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from thread_service.text.stop_words import KEYWORD_STOP_WORDS, STOP_WORDS
from thread_service.text.tokens import Spelled, indexed_words, is_spaceless, spelled_tokens, tokens

WORD_CHARACTERS = regex.compile(r"[\p{L}\p{M}\p{N}]+")

# Characters whose normal forms grow, shrink, split, combine or vanish.
TRICKY = "aZ9 ½ﷺßΣςİıǅŉ①㎏ﬃé\u0301\u0345\u200b\u200d\u00ad\ufe0f\u3164ﾊﾞ東京ーคำน้ำកမ한ᄀ\uffa1👩‍💻\0\ud800\"'_-"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n.,;!?—“”👍🏽", []),
        ("The quick-brown fox, 42 times_over!", ["the", "quick", "brown", "fox", "42", "times", "over"]),
        ("don't don’t", ["don", "t", "don", "t"]),
        ("Straße STRASSE ＳＴＲＡＳＳＥ", ["strasse", "strasse", "strasse"]),
        ("ΣΊΣΥΦΟΣ σίσυφος", ["σίσυφοσ", "σίσυφοσ"]),
        ("caf\u00e9 cafe\u0301", ["caf\u00e9", "caf\u00e9"]),
        ("ﬁne x² Ⅷ", ["fine", "x2", "viii"]),
        ("½ cup", ["1", "2", "cup"]),
        ("ﷺ", ["صلى", "الله", "عليه", "وسلم"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("안녕 세계", ["안녕", "세계"]),
        ("東京Tower 5年", ["東", "京", "tower", "5", "年"]),
        ("コーヒー ｺｰﾋｰ ｶﾞ", ["コ", "ー", "ヒ", "ー", "コ", "ー", "ヒ", "ー", "ガ"]),
        ("น้ำ", ["น้\u0e4d", "า"]),
        ("葛\U000e0100城", ["葛", "城"]),
        ("co\u00adop می\u200cخواهم", ["coop", "میخواهم"]),
        ("zero\u200bwidth", ["zero", "width"]),
        ("I ❤\ufe0f NY", ["i", "ny"]),
        ("a\0b \ud800c", ["a", "b", "c"]),
        ("e\u034f\u0301", ["\u00e9"]),
        ("x" + "\u0301" * 99, ["x" + "\u0301" * 30]),
    ],
)
def test_tokens_of_many_scripts(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


def test_spelling_shows_capitals_and_survives_normal_forms_of_other_lengths() -> None:
    assert spelled_tokens("İstanbul, Straße ﬁne ½ 東京Tower") == [
        Spelled("i\u0307stanbul", "İstanbul"),
        Spelled("strasse", "Straße"),
        Spelled("fine", "ﬁne"),
        Spelled("1", "½"),
        Spelled("2", "½"),
        Spelled("東", "東"),
        Spelled("京", "京"),
        Spelled("tower", "Tower"),
    ]


@given(st.text(alphabet=TRICKY) | st.text(st.characters(exclude_categories=[])))
def test_both_tokenizers_agree_and_tokens_hold_nothing_but_word_characters(text: str) -> None:
    found = tokens(text)
    assert [spelled.token for spelled in spelled_tokens(text)] == found
    assert all(WORD_CHARACTERS.fullmatch(token) for token in found)
    assert all(spelled.written in text for spelled in spelled_tokens(text))
    assert tokens(" ".join(found)) == found


def test_a_token_of_any_code_point_is_its_own_token() -> None:
    for code_point in range(sys.maxunicode + 1):
        for token in tokens(chr(code_point)):
            assert tokens(token) == [token], hex(code_point)


@pytest.mark.parametrize("token", ["東", "ひ", "カ", "ー", "น้", "ກ", "ក", "မ"])
def test_characters_of_scripts_without_spaces_are_recognised(token: str) -> None:
    assert is_spaceless(token)


@pytest.mark.parametrize("token", ["", "a", "tower", "5", "한국", "हिन्दी", "שלום"])
def test_words_of_scripts_with_spaces_are_not_spaceless(token: str) -> None:
    assert not is_spaceless(token)


@pytest.mark.parametrize("sentence", ["It is the fox’s — 3rd — jump over Mr. Smith’s dog. ", "Plain words only, 12. "])
def test_a_megabyte_of_english_takes_a_fraction_of_a_second(sentence: str) -> None:
    text = (sentence * (1_000_000 // len(sentence) + 1))[:1_000_000]
    started = time.process_time()
    tokens(text)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "text",
    [
        "a" + "\u0301\u0316" * 50_000,
        "a\u200d" * 50_000,
        "ﷺ" * 5_000,
        "ก" + "\u0e49\u0e38" * 50_000,
        "x" * 500_000 + "é",
    ],
)
def test_hostile_words_take_linear_time(text: str) -> None:
    started = time.process_time()
    tokens(text)
    assert time.process_time() - started < 1.0


def test_the_index_holds_pairs_of_spaceless_characters_behind_the_tokens() -> None:
    assert indexed_words("In 東京都 and ไท: 7 塔") == [*tokens("In 東京都 and ไท: 7 塔"), "東京", "京都", "ไท"]
    assert indexed_words("plain words") == ["plain", "words"]


def test_stop_words_are_tokens() -> None:
    assert all(tokens(word) == [word] for word in STOP_WORDS | KEYWORD_STOP_WORDS)
    assert {"the", "of", "is", "what", "who"} <= STOP_WORDS
    assert STOP_WORDS.isdisjoint({"time", "need", "used", "paris", "2024"})
