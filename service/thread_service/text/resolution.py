"""When two names that a model found are one.

A person is "Ada Quill" here and "ADA QUILL," there; ids take case and white space for the same and nothing else. So
what was found goes by the name that is known already, where the two differ in nothing but form.
"""

from __future__ import annotations

from thread_service.text.ids import normalise_name
from thread_service.text.mentions import name_key

_MEANT = "+#"
"""Punctuation that tells names apart: C, C++ and C#."""


def resolution_key(name: str) -> str:
    """The same for names that differ only in case, spacing, punctuation or Unicode form (NFKC)."""
    meant = "".join(character for character in name if character in _MEANT)
    key = name_key(name)
    return f"{key} {meant}".rstrip() if key else normalise_name(name)
