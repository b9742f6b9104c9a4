from __future__ import annotations

from thread_service.text.keywords import keywords
from thread_service.text.stop_words import KEYWORD_STOP_WORDS


def test_the_most_frequent_words_come_first_and_ties_are_alphabetical() -> None:
    assert keywords(["Zebra ledger zebra, LEDGER tidal.", "Zebra; apple!"]) == ["zebra", "ledger", "apple", "tidal"]


def test_short_words_and_function_words_are_no_keywords() -> None:
    assert keywords(["This cat will have about four years which need time; otherwise cannot, therefore"]) == [
        "four",
        "years",
    ]
    named = (
        "that from with will this which about have here like need time used well very your cannot otherwise therefore"
    )
    assert set(named.split()) <= KEYWORD_STOP_WORDS


def test_words_are_split_at_everything_that_is_no_letter_mark_or_number() -> None:
    assert keywords(["tidal_ledger tidal-2024 naïve’s"]) == ["tidal", "2024", "ledger", "naïve"]


def test_texts_do_not_run_into_each_other() -> None:
    assert keywords(["tidal", "ledger"]) == ["ledger", "tidal"]


def test_at_most_the_limit_is_returned() -> None:
    text = " ".join(f"word{number:02d}" for number in range(30))
    assert keywords([text]) == [f"word{number:02d}" for number in range(10)]
    assert keywords([text], limit=3) == ["word00", "word01", "word02"]
    assert keywords([text], limit=0) == keywords([text], limit=-5) == []


def test_encoded_data_is_no_keyword() -> None:
    assert keywords(["QUJD" * 1_000_000, "x" * 64, "y" * 65]) == ["x" * 64]


def test_no_text_gives_no_keywords() -> None:
    assert keywords([]) == keywords(["", " \n", "\0\ud800!?"]) == []
