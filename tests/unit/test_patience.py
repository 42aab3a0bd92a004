"""The waiting of the tests themselves: it gives what it waited for, and a failure says what did not come."""

from __future__ import annotations

import pytest
from tests.patience import eventually


def test_what_comes_later_is_waited_for_and_given() -> None:
    values = [0, 0, 7]
    assert eventually(lambda: values.pop(0)) == 7 and values == []


def test_a_failure_names_the_condition_its_value_and_what_else_is_known() -> None:
    missing: list[int] = []
    with pytest.raises(AssertionError, match=r"\[\] even after 0\.01 s: .*missing.*; 'more'"):
        eventually(lambda: missing, 0.01, told=lambda: "more")
