"""What the gateway tells of a job: in the outcome, in order with what the recorder saw, and in the lines for people."""

from __future__ import annotations

import os

import pytest
from tests.unit.engine.test_supervision import Puppet

from ringfence.backends.facts import Report
from ringfence.cli.attached import MOST_REFUSED, explain
from ringfence.engine import supervision
from ringfence.model.events import Event, EventKind
from ringfence.model.job import Job
from ringfence.model.outcome import Enforcement, Outcome, Status
from ringfence.model.policy import SandboxPolicy

pytestmark = pytest.mark.system
LOST = "the gateway is gone"


class Telling(Puppet):
    """Tells of things in another order than they happened; one of its two descriptors comes to its end before."""

    def __init__(self, notes: list[dict[str, object]]) -> None:
        super().__init__(ready=False, report=None)
        self.notes = notes
        self.second, other = os.pipe()
        os.close(other)
        self.receives = 0

    def filenos(self) -> tuple[int, ...]:
        return (self.reader, self.second) if self.receives == 0 else (self.reader,)

    def receive(self) -> Report | None:
        self.receives += 1
        if self.receives == 1:
            os.write(self.writer, b"x")
            return None
        return Report(exit_code=0, network_bytes=700, network_problem=LOST)

    def take_notes(self) -> list[dict[str, object]]:
        notes, self.notes = self.notes, []
        return notes

    def close(self) -> None:
        super().close()
        os.close(self.second)


def _told() -> tuple[Outcome, list[Event], Telling]:
    notes: list[dict[str, object]] = [
        {"decision": "allowed", "name": "late.example", "port": 443, "time_s": 1e9 + 30.5},
        {"operation": "connect", "path": "192.0.2.1:81", "errno": 0, "wall_ns": str(int((1e9 + 20) * 1e9))},
        {"decision": "refused", "name": "early.example", "port": 443, "time_s": 1e9 + 10.25},
        {"operation": "socket", "errno": 1, "wall_ns": str(int((1e9 + 15) * 1e9))},
    ]
    heard: list[Event] = []
    puppet = Telling(notes)
    listeners = supervision.Listeners(on_event=heard.append)
    outcome = supervision.supervise(puppet, Job(argv=("x",)), SandboxPolicy(), partial=False, listeners=listeners)
    return outcome, heard, puppet


def test_both_kinds_are_one_stream_in_the_order_of_time() -> None:
    outcome, heard, _ = _told()
    assert [event.kind for event in outcome.events] == [
        EventKind.START, EventKind.EGRESS, EventKind.VIOLATION, EventKind.EGRESS, EventKind.EGRESS, EventKind.EXIT,
    ]  # fmt: skip
    assert [event.time_s for event in outcome.events[1:-1]] == [1e9 + 10.25, 1e9 + 15, 1e9 + 20, 1e9 + 30.5]
    assert "time_s" not in outcome.events[1].details
    assert heard[1].details["name"] == "late.example", "who listens hears of them as they come"


def test_a_lost_gateway_is_in_the_reason_and_its_descriptor_is_asked_no_more() -> None:
    outcome, _, puppet = _told()
    assert outcome.ok and outcome.reason.endswith(LOST)
    assert outcome.usage.network_bytes == 700 and outcome.to_dict()["usage"]["network_bytes"] == 700  # type: ignore
    assert puppet.receives == 2


def _refused(name: str, port: int, *, decision: str = "refused") -> Event:
    reason = f'{name}:{port} is not in the policy\'s network list; add "{name}:{port}" to network'
    details = {"decision": decision, "name": name, "address": "127.64.1.0", "port": port, "reason": reason}
    return Event(kind=EventKind.EGRESS, run_id="r", time_s=1.0, details=details)


def test_people_are_told_of_each_refused_destination_once_with_what_to_add() -> None:
    events = (_refused("a.example", 443), _refused("a.example", 443), _refused("b.example", 80),
              _refused("c.example", 80, decision="allowed"))  # fmt: skip
    lines = explain(Outcome(status=Status.OK, rc=0, reason="", events=events))
    assert [line.split(" is ")[0] for line in lines] == ["ringfence: refused: a.example:443",
                                                        "ringfence: refused: b.example:80"]  # fmt: skip
    assert 'add "a.example:443" to network' in lines[0]


def test_a_port_that_nobody_listens_on_is_told_with_what_to_add() -> None:
    """The sandbox's kernel refuses it: of the call there is the recorder's word alone."""
    calls = tuple(Event(kind=EventKind.EGRESS, run_id="r", time_s=1.0, details={"operation": "connect", "path": path})
                  for path in ("127.64.1.0:8081", "127.64.1.0:80", "unix /run/nscd/socket"))  # fmt: skip
    held = Enforcement(requested=("a.example",), applied=True, mechanism="gateway")
    outcome = Outcome(status=Status.FAILED, rc=7, reason="", events=calls, enforced={"network": held})
    (line,) = explain(outcome)
    assert line.startswith("ringfence: refused: a.example is listed as a.example, without port 8081; add")
    assert explain(Outcome(status=Status.OK, rc=0, reason="", events=calls)) == []


def test_a_flood_of_them_is_counted() -> None:
    events = tuple(_refused(f"n{number}.example", 443) for number in range(MOST_REFUSED + 5))
    lines = explain(Outcome(status=Status.OK, rc=0, reason="", events=events))
    assert len(lines) == MOST_REFUSED + 1 and "5 more" in lines[-1]
