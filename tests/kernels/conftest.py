"""`engine`: every engine under test, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines import BY_CODE, EXACT, TestedEngine


@pytest.fixture(params=[*EXACT, *BY_CODE])
def engine(request: pytest.FixtureRequest) -> Iterator[TestedEngine]:
    tested = TestedEngine(request.param)
    yield tested
    tested.close()
