"""Only a recorder that is sure of everything is healthy; and what was tried becomes violation records."""

from __future__ import annotations

from typing import Any

import pytest
from attested import HELD, SURE, attempt, decided, event, outcome

from ringfence.attest.attempts import violations
from ringfence.attest.health import recorder
from ringfence.evidence.chain import GENESIS
from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import Enforcement, Outcome


def health(*outcomes: Outcome) -> tuple[bool, int, str]:
    found = recorder(outcomes, 2, GENESIS)
    return found.healthy, found.dropped, found.problem


def test_a_recorder_that_is_sure_is_healthy() -> None:
    found = recorder((outcome(attempt()), outcome()), 6, "ab" * 32)
    assert (found.healthy, found.dropped, found.problem) == (True, 0, "")
    assert (found.events_count, found.events_head) == (6, "ab" * 32)
    assert "hidden paths: absent" in found.mechanism


@pytest.mark.parametrize(("said", "dropped"), [
    ({"complete": False, "unnamed": 2501}, 2501),
    ({"complete": False, "lost": 1, "problems": ["an outer sandbox listens"]}, 1),
    ({"complete": False, "late": 2, "unwritten": 3}, 5),
    ({"complete": False}, 1),
    ({"complete": "yes"}, 1),
    ({"kept": 12}, 12),
    ({"kept": None}, 1),
])  # fmt: skip
def test_lost_records_are_counted_and_told(said: dict[str, Any], dropped: int) -> None:  # shortcoming 7
    healthy, found, problem = health(outcome(recorder=SURE | said))
    assert (healthy, found) == (False, dropped)
    assert problem
    assert all(word in problem for word in said.get("problems", ()))


def test_nothing_that_recorded_is_not_healthy() -> None:
    """As at a level without a recorder, or where the supervising process was killed."""
    healthy, _, problem = health(outcome(recorder={}))
    assert not healthy and "nothing recorded this run" in problem
    assert recorder((outcome(recorder={}),), 2, GENESIS).mechanism == "none"
    assert health() == (False, 0, "nothing was run")


def test_one_bad_run_among_good_ones_is_told() -> None:
    assert health(outcome(), outcome(recorder=SURE | {"complete": False, "lost": 4}))[:2] == (False, 4)


@pytest.mark.parametrize("capability", ["hidden_paths", "network"])
def test_what_is_not_in_force_is_not_recorded_either(capability: str) -> None:
    """With allow_partial: an attempt would succeed, and nobody would be told."""
    absent = Enforcement(requested=("/oracle",), applied=False, mechanism="none")
    healthy, _, problem = health(outcome(enforced=HELD | {capability: absent}, partial=True))
    assert not healthy and capability in problem


def test_a_limit_that_is_not_in_force_does_not_make_the_record_worse() -> None:
    absent = Enforcement(requested=1 << 29, applied=False, mechanism="none")
    assert health(outcome(enforced=HELD | {"memory": absent}, partial=True)) == (True, 0, "")


def test_a_gateway_that_was_lost_or_did_not_tell_all_is_not_healthy() -> None:
    lost = decided(decision="ended", protocol="", name="", missed=1, reason="the gateway was killed")
    assert health(outcome(lost))[:2] == (False, 1)
    more = decided(decision="ended", protocol="", name="", missed=3000, reason="3000 more …")
    assert health(outcome(decided(), more))[:2] == (False, 3000)


def test_a_flood_of_words_in_a_problem_is_cut() -> None:
    _, _, problem = health(outcome(recorder=SURE | {"complete": False, "problems": ["\x1b[2J" + "x" * 100_000]}))
    assert len(problem) < 3000 and problem.isprintable()


@pytest.mark.parametrize(("told", "record"), [
    (attempt(), {"kind": "masked_read", "path": "/oracle/answer", "pid": 7, "syscall": "openat"}),
    (attempt(writes=True), {"kind": "masked_write", "path": "/oracle/answer", "pid": 7, "syscall": "openat"}),
    (attempt(syscall="", pid=0), {"kind": "masked_read", "path": "/oracle/answer", "pid": 0, "syscall": "lookup"}),
    (attempt(path="\x1b[2J\udcff"), {"kind": "masked_read", "path": "\\x1b[2J\\xff", "pid": 7, "syscall": "openat"}),
    (decided(), {"kind": "blocked_connect", "host": "evil.example:443", "pid": 0, "syscall": "connect"}),
    (decided(name="", address="192.0.2.7"),
     {"kind": "blocked_connect", "host": "192.0.2.7:443", "pid": 0, "syscall": "connect"}),
    (event(EventKind.VIOLATION, operation="connect", aim="refused", path="[2001:db8::1]:80", errno=13, pid=4),
     {"kind": "blocked_connect", "host": "[2001:db8::1]:80", "pid": 4, "syscall": "connect"}),
])  # fmt: skip
def test_what_was_tried_is_a_violation(told: Event, record: dict[str, object]) -> None:
    assert violations(outcome(told)) == [{"step": 1, **record}]


@pytest.mark.parametrize("told", [
    decided(protocol="dns", name="pypi.org", port=53),
    decided(decision="allowed"),
    decided(decision="ended"),
    event(EventKind.EGRESS, operation="connect", path="192.0.2.7:443", errno=0),
    event(EventKind.EGRESS, operation="connect", path="127.0.0.1:8000", errno=0),
    event(EventKind.EGRESS, operation="connect", path="[::1]:8000", errno=0),
    event(EventKind.EGRESS, operation="connect", path="0.0.0.0:80", errno=0),
    event(EventKind.EGRESS, operation="sendto", path="192.0.2.53:53", errno=0),
    event(EventKind.EGRESS, operation="connect", path="/run/dbus/socket", errno=0),
    event(EventKind.EGRESS, operation="bind", path="192.0.2.1:80", errno=0),
    event(EventKind.VIOLATION, operation="unshare", aim="refused", path="", errno=1),
])  # fmt: skip
def test_what_an_honest_tool_does_is_none(told: Event) -> None:  # shortcoming 10
    assert violations(outcome(told)) == []


def test_what_there_was_no_room_to_name_is_a_violation_of_its_hidden_path() -> None:
    rows = [
        {"aim": "hidden", "operation": "", "path": "/oracle", "count": 2000, "named": False},
        {"aim": "hidden", "operation": "lookup", "path": "/oracle/a", "count": 5, "named": True},
        {"aim": "noted", "operation": "connect", "path": "", "count": 5, "named": False},
        "garbled",
    ]
    found = violations(outcome(recorder=SURE | {"complete": False, "unnamed": 2000, "summary": rows}))
    assert [record["path"] for record in found] == ["/oracle"]
