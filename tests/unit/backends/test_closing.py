"""What a box gives back at its end, and in which order."""

from __future__ import annotations

import pytest

from ringfence.backends.closing import Closing


def _noting(closing: Closing, done: list[str]) -> None:
    for name, last in (("folder", False), ("keeper", True), ("group", False), ("visit", False)):
        closing.add(lambda name=name: done.append(name), last=last)  # type: ignore[misc]


def test_it_is_given_back_in_the_reverse_order_and_once() -> None:
    closing, done = Closing(), list[str]()
    _noting(closing, done)
    assert closing.close() == "" and done == ["visit", "group", "folder", "keeper"]
    assert closing.close() == "" and len(done) == 4


def test_what_had_to_be_left_is_said() -> None:
    closing = Closing()
    closing.add(lambda: "a directory is left")
    closing.add(lambda: None)
    assert closing.close() == "a directory is left"


def test_who_was_interrupted_goes_on_where_that_was() -> None:
    closing, done, interrupts = Closing(), list[str](), [KeyboardInterrupt]

    def interrupted() -> None:
        if interrupts:
            raise interrupts.pop()
        done.append("slow")

    _noting(closing, done)
    closing.add(interrupted)
    closing.add(lambda: done.append("first"))
    with pytest.raises(KeyboardInterrupt):
        closing.close()
    assert done == ["first"]
    closing.close()
    assert done == ["first", "slow", "visit", "group", "folder", "keeper"]
