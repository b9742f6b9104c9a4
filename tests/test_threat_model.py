"""`docs/threat-model.md` names only tests and pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "threat-model.md").read_text(encoding="utf-8")


def test_what_the_page_names_exists() -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(tests) == PAGE.count("tests/") > 10
    assert [path for path in tests if not (DOCS.parent / path).exists()] == []
    assert [page for page in re.findall(r"\]\(([\w-]+\.md)\)", PAGE) if not (DOCS / page).exists()] == []
