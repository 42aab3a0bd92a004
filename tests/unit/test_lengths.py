"""Functions stay as short as they are; ``lengths.py`` prints them, and says what counts."""

from __future__ import annotations

import pytest
from tests.unit.lengths import figures, lengths_of, of_the_package

pytestmark = pytest.mark.unmeasured


def test_functions_are_short() -> None:
    found = of_the_package()
    median, p90 = figures(found)
    assert median <= 4
    assert p90 <= 12
    assert found[0].lines < 30, found[0]


def test_only_lines_of_statements_count() -> None:
    source = '''
@decorated
def outer(first,
          second):
    """What it does.

    More of it."""
    # Why.
    found = [first,

             second]

    @wrapped
    def inner():
        text = """a
b"""
        return text

    return inner
'''
    assert lengths_of(source, "m.py") == [(3, "m.py:3 outer"), (3, "m.py:14 inner")]
