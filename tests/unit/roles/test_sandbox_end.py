"""What a leader hears of a sandbox: a source that has ended is known as such, and asked no more."""

from __future__ import annotations

import os

import pytest

from ringfence.kernel import syscall_numbers
from ringfence.kernel.proc import processes
from ringfence.kernel.recorder import Attempt, Recorder
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp import profiles as seccomp_profiles
from ringfence.kernel.seccomp.responder import NotifyResponder
from ringfence.roles.leader import Leader
from ringfence.roles.sandbox_end import BoxVisit, SandboxEnd
from ringfence.roles.watchdog import Watchdog
from ringfence.steps import state as building
from ringfence.transport import passing, wire

pytestmark = [pytest.mark.system, pytest.mark.privileges]

HEARD = {"profile": "default", "ids": (1000, 1000), "watched": [], "wired": False, "share": 0.0, "witness": {}}
REQUEST = {"heard": HEARD, "limits": {}, "plan": [], "scratch": ""}
PROFILE = seccomp_profiles.noting(seccomp_profiles.PROFILES["default"])


@pytest.fixture
def guest():
    made = SandboxEnd(dict(REQUEST), lambda attempt: None)
    yield made
    for descriptor in (made.status, made._told, made.door, made._theirs):
        if descriptor >= 0:
            os.close(descriptor)


def _under_a_filter(door: int) -> int:
    """A child that installs a filter, hands its listener over, and ends when it is told to."""
    child = os.fork()
    if child == 0:
        program = seccomp.compile(PROFILE, syscall_numbers.architecture(), notify=True)
        listener = seccomp.install(program, notify=True)
        passing.send(door, building.LISTENER, [listener])
        os.close(listener)
        passing.receive(door)
        os._exit(0)
    return child


def _leader_of(guest: SandboxEnd) -> Leader:
    reader, writer = os.pipe()
    visit = Leader(guest.request, reader, writer, reader)
    visit.wakeup, visit.contained = -1, guest
    guest.listen(visit.poller)
    return visit


def test_a_leader_stops_asking_a_listener_that_nobody_is_left_behind(guest):
    child = _under_a_filter(guest._theirs)
    leader = _leader_of(guest)
    leader.hear(leader.loop.ready(10_000)[0])
    listener = guest.responder.fileno()
    passing.send(guest.door, passing.GO, [])
    os.waitpid(child, 0)
    assert leader.loop.ready(0) == [listener], "control: it would be asked for ever"
    leader.hear(listener)
    assert leader.loop.ready(0) == []
    os.close(listener)


def test_the_rules_are_made_when_the_first_call_is_told():
    asked: list[int] = []
    reader, writer = os.pipe()
    responder = NotifyResponder(reader, lambda: asked.append(1) or PROFILE, Recorder(write=lambda attempt: None))
    assert asked == []
    assert responder._decide is responder._decide
    assert asked == [1]
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_every_descriptor_from_a_number_on_is_closed():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        high = os.dup2(writer, 700)
        closed = processes.close_from(high)
        try:
            os.fstat(high)
        except OSError:
            os._exit(7 if closed and os.fstat(writer) else 1)
        os._exit(2)
    os.close(reader)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(
    ("kind", "reaper", "is_open"), [(SandboxEnd, -1, False), (BoxVisit, -1, True), (BoxVisit, 5, False)]
)
def test_the_way_to_the_leader_is_shut_once_the_program_runs(
    kind: type[SandboxEnd], reaper: int, is_open: bool
) -> None:
    """What is sent on it is trusted: whoever got hold of an end could have the leader read anything."""
    guest = kind(dict(REQUEST), lambda _: None)
    guest.reaper = reaper
    visit = Leader({"limits": {"wall_time": 0}}, *os.pipe(), -1)
    visit.contained, visit.started, visit.watchdog = guest, 0, Watchdog(visit.table, {"cpu_time": 1}, -1)
    guest.listen(visit.poller)
    visit._run()
    if is_open:
        passing.send(guest._theirs, building.LISTENER, [])
        os.close(guest.door)
    else:
        with pytest.raises(BrokenPipeError):
            passing.send(guest._theirs, building.LISTENER, [])
    for descriptor in (visit.commands, visit.reports, guest.status, guest._told, guest._theirs):
        os.close(descriptor)


def test_what_was_handed_over_before_the_program_ran_is_taken_before_the_way_is_shut(guest):
    child = _under_a_filter(guest._theirs)
    leader = _leader_of(guest)
    assert leader.loop.ready(10_000)
    passing.send(guest.door, passing.GO, [])
    os.waitpid(child, 0)
    guest.close_handover()
    assert guest.responder is not None
    assert guest.door == -1
    os.close(guest.responder.fileno())


class _Tripwire:
    """Asked as often as it is said to be."""

    def __init__(self, times: int) -> None:
        self.reader, self.writer = os.pipe()
        self.left, self.lost, self.finished = times, 0, False
        os.write(self.writer, b"x")

    def fileno(self) -> int:
        return self.reader

    def handle(self, wants: object) -> list[Attempt]:
        self.left -= 1
        if self.left == 0:
            os.read(self.reader, 1)
        return [Attempt(time_ns=1, wall_ns=1, operation="lookup", path="/oracle", root="/oracle", errno=2)]


@pytest.mark.parametrize(("times", "lost"), [(3, 0), (10**9, 1)])
def test_a_tripwire_that_is_never_silent_does_not_keep_the_end_waiting(guest, times, lost):
    guest.tripwire, guest.drain_ns = _Tripwire(times), 20_000_000
    guest.drain()
    assert guest.recorder.health.total >= 3 and guest.recorder.health.lost == lost
    for descriptor in (guest.tripwire.reader, guest.tripwire.writer):
        os.close(descriptor)


def test_a_page_has_what_came_since_the_last_one(guest):
    guest.tripwire = _Tripwire(1)
    guest.drain()
    guest.tripwire.lost = 2
    first, second = wire.decode_json(guest.page()), guest.page()
    assert (first["total"], first["lost"], first["complete"]) == (1, 2, False)
    assert second == b"", "nothing"
    for descriptor in (guest.tripwire.reader, guest.tripwire.writer):
        os.close(descriptor)
