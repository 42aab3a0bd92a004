"""What a leader hears of a sandbox: a source that has ended is known as such, and asked no more."""

from __future__ import annotations

import os
import select

import pytest

from ringfence.linux import building, processes, seccomp, seccomp_profiles, syscall_numbers
from ringfence.linux.recorder import Recorder
from ringfence.linux.telling import Telling
from ringfence.posix import passing
from ringfence.posix.contained import Guest
from ringfence.posix.visit import Visit

REQUEST = {"profile": "default", "ids": (1000, 1000), "watched": [], "limits": {}, "plan": [], "scratch": ""}
PROFILE = seccomp_profiles.noting(seccomp_profiles.PROFILES["default"])


@pytest.fixture
def guest():
    made = Guest(dict(REQUEST), lambda attempt: None)
    yield made
    for descriptor in (made.status, made._told, made.door, made._theirs):
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


def _leader_of(guest: Guest) -> Visit:
    reader, writer = os.pipe()
    visit = Visit(guest.request, reader, writer, reader)
    visit.wakeup, visit.contained = -1, guest
    visit.poller.register(guest.door, select.POLLIN)
    return visit


def test_a_leader_stops_asking_a_listener_that_nobody_is_left_behind(guest):
    child = _under_a_filter(guest._theirs)
    leader = _leader_of(guest)
    leader._hear(leader.poller.poll(10_000)[0][0])
    listener = guest.telling.fileno()
    assert not guest.is_over(listener)
    passing.send(guest.door, passing.GO, [])
    os.waitpid(child, 0)
    assert [place for place, _ in leader.poller.poll(0)] == [listener], "control: it would be asked for ever"
    leader._hear(listener)
    assert guest.is_over(listener)
    assert leader.poller.poll(0) == []
    os.close(listener)


def test_the_rules_are_made_when_the_first_call_is_told():
    asked: list[int] = []
    reader, writer = os.pipe()
    telling = Telling(reader, lambda: asked.append(1) or PROFILE, Recorder(write=lambda attempt: None))
    assert asked == []
    assert telling._decide is telling._decide
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
