from __future__ import annotations

import pytest

from thread_service.text.validate import first_surrogate


@pytest.mark.parametrize("text", ["", "plain", "NUL \0 is text", "👩‍💻 𝔘 \uffff \ufffe \U0010ffff", "\ue000"])
def test_scalar_values_are_text(text: str) -> None:
    assert first_surrogate(text) is None


@pytest.mark.parametrize(
    ("text", "offset"),
    [("\ud800", 0), ("ab\udfff\ud800", 2), ("👩\ud83d\ude00", 1), ("x" * 100_000 + "\udc00", 100_000)],
)
def test_the_first_surrogate_is_found_even_in_a_pair(text: str, offset: int) -> None:
    assert first_surrogate(text) == offset
