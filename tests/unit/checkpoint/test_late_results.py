"""Which attempts count, and what a result says of those that were late."""

from __future__ import annotations

import errno

import pytest

from ringfence.checkpoint.late import SINCE, Late, gaps_in, late_since, repeats_in, with_late
from ringfence.model.events import tried
from ringfence.model.outcome import Outcome, Status
from ringfence.transport.wire import NOTHING_SEEN

HIDDEN = {"operation": "open", "path": "/secret", "asked": "secret", "errno": errno.ENOENT, "aim": "hidden"}


@pytest.mark.parametrize(
    ("details", "words"),
    [
        (HIDDEN, "open secret"),
        ({**HIDDEN, "asked": ""}, "open /secret"),
        ({**HIDDEN, "asked": "a\n\x1b"}, r"open a\n\x1b"),
        ({**HIDDEN, "errno": 0}, ""),
        ({**HIDDEN, "errno": -1}, "open secret"),
        ({**HIDDEN, "path": "/etc/gitconfig"}, ""),
        ({**HIDDEN, "path": "/etc/gitconfig", "writes": True}, "open secret"),
        ({"operation": "io_uring_setup", "errno": errno.ENOSYS, "aim": "refused"}, ""),
        ({"operation": "mount", "errno": errno.EPERM, "aim": "refused"}, "mount"),
        ({**HIDDEN, "errno": errno.ENOSYS}, "open secret"),
    ],
)
def test_what_was_tried_is_said_where_it_counts(details: dict[str, object], words: str) -> None:
    assert tried(details) == words


def test_gaps_are_added_up_and_what_is_no_number_counts_for_nothing() -> None:
    row = {"path": "/secret", "named": False, "count": 2}
    pages = [{"unnamed": 2, "lost": 1, "problems": ["why"], "summary": [row, {"named": True}, 7]},
             {"late": "many", "complete": False}, {"complete": True}]  # fmt: skip
    assert gaps_in(pages) == (4, ("why",), (row,))


def test_a_result_has_what_is_late_in_its_counts_and_says_since_when() -> None:
    late = [Late(since="a", notes=(HIDDEN,)), Late(since="b", unrecorded=3, problems=("why",)), Late(since="c")]
    told = with_late(NOTHING_SEEN, [{"aim": "hidden"}], late)
    assert (told["total"], told["kept"], told["lost"], told["complete"]) == (5, 2, 3, False)
    assert told["totals"] == {"hidden": 2} and told["problems"] == ["why"] and told[SINCE] == ["a", "b"]
    outcome = Outcome(status=Status.OK, rc=0, reason="", recorder=told)
    assert outcome.unrecorded == 3 and late_since(outcome.recorder) == ("a", "b") and late_since({}) == ()


def test_what_was_tried_again_and_again_is_counted_and_is_no_reason_of_its_own() -> None:
    row = {"aim": "hidden", "path": "/secret", "named": True, "count": 40}
    pages = [{"summary": [row, {"named": False, "count": 2}, 7]}, {"summary": "none"}]
    assert repeats_in(pages) == (row,)
    again = Late(since="a", repeats=(row, {"aim": "hidden", "count": "many"}))
    told = with_late(NOTHING_SEEN, [HIDDEN], [again])
    assert (told["total"], told["kept"], told["summarised"], told["lost"]) == (41, 1, 40, 0)
    assert told["totals"] == {"hidden": 41} and row in told["summary"]  # type: ignore[operator]
    assert told["complete"] is True and SINCE not in told and again.texts() == []


def test_a_result_without_anything_late_is_as_it_was() -> None:
    assert with_late(NOTHING_SEEN, (), [Late(since="a")]) is NOTHING_SEEN
    allowed = with_late(NOTHING_SEEN, (), [Late(since="a", notes=({"errno": 0, "aim": "noted"},))])
    assert allowed["complete"] is True and SINCE not in allowed, "what is allowed undoes nothing"


def test_a_result_that_nobody_recorded_says_since_when_all_the_same() -> None:
    assert with_late({}, (), [Late(since="a", notes=(HIDDEN,))]) == {"complete": False, SINCE: ["a"]}
    assert with_late({}, (), []) == {}
