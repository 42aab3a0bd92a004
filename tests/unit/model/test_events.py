"""Events: a closed set of kinds, plain and unchangeable."""

from __future__ import annotations

import pytest

from ringfence.model.events import Event, EventKind


def test_the_kinds_are_a_closed_set_of_plain_words() -> None:
    assert {str(kind) for kind in EventKind} == {
        "start", "violation", "egress", "limit", "exit",
    }  # fmt: skip
    with pytest.raises(ValueError):
        EventKind("party")


def test_an_event_has_no_details_unless_given_and_does_not_change() -> None:
    event = Event(kind=EventKind.START, run_id="r", time_s=1.0)
    assert dict(event.details) == {}
    with pytest.raises(AttributeError):
        event.run_id = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        event.details["x"] = 1  # type: ignore[index]
