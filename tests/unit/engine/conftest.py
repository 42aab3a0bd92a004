"""Levels to run on, and a pool for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.engine.pooled import LEVELS, policy_of

from ringfence import Pool


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pool(level: str) -> Iterator[Pool]:
    with Pool(policy_of(level), warm=2, at_once=2) as made:
        yield made
