"""How much the validator does for hostile code: by counting calls, not by time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from ringfence.validation import SecurityValidator

VALIDATOR = SecurityValidator()


def calls_for(code: str) -> int:
    """How many functions are called to validate it, those of C included."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        VALIDATOR.validate(code)
    finally:
        sys.setprofile(before)
    return count


def of_names(size: int) -> str:
    names = "".join(f"x{i} = x{i - 1} + 'a' if x{i - 1} else x{i // 2}\n" for i in range(1, size))
    return names + "".join(f"getattr(o, x{i})\nopen(x{i})\n" for i in range(1, size))


def of_functions_that_mention_a_shadowed_name(size: int) -> str:
    return "print = 1\n" + "".join(f"def f{i}(): print\n" for i in range(size))


def of_functions_that_mention_a_long_sum(size: int) -> str:
    return "a = ''\n" + "a += 'b'\n" * size + "".join(f"def f{i}(): a.x\n" for i in range(size))


@pytest.mark.parametrize("made", [of_names, of_functions_that_mention_a_shadowed_name,
                                  of_functions_that_mention_a_long_sum])  # fmt: skip
def test_work_does_not_grow_faster_than_the_code(made: Callable[[int], str]) -> None:
    assert calls_for(made(200)) < 5 * calls_for(made(50))
