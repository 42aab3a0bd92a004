"""Inside a living box: pid 1 takes visits from its socket, and a holder stands between it and each visit's processes.

A holder adopts whatever its visit leaves behind, so a visit's processes can be told from those of others for as long
as they live, and be ended together. Neither runs anything of the guest's, and neither has any privilege.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import marshal
import os
import select

from ringfence.linux import init, processes
from ringfence.linux.building import BUILDING, HOLDER
from ringfence.posix import job_start, passing, plan, wire
from ringfence.posix.standby import READY, Waiting

VISIT = b"v"
"""A visit: the way to its leader, where a failed step is told, where the end is, its plan, its streams."""


def serve() -> None:
    """The loop of pid 1. Returns when nobody can send visits any more, or the leader is gone: that ends the box."""
    os.write(Waiting.problems, READY)
    os.close(Waiting.problems)
    status = BUILDING.status
    wakeup = job_start.wake_on_child()
    poller = select.poll()
    poller.register(Waiting.post, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    poller.register(status, 0)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == status:
                return
            if descriptor == wakeup:
                os.read(wakeup, 4096)
                _reap()
            elif not _take_visit():
                return


def _reap() -> None:
    try:
        while (dead := os.wait4(-1, os.WNOHANG))[0]:
            if dead[0] in _holders:  # it has counted those that it collected
                _holders.remove(dead[0])
            else:
                init.count_written(dead[0], dead[2])
    except ChildProcessError:
        pass


_holders: set[int] = set()


def _take_visit() -> bool:
    kind, descriptors = passing.receive(Waiting.post)
    if not kind:
        return False
    if kind == VISIT and len(descriptors) > 4:
        try:
            holder = os.fork()
        except OSError:
            holder = -1  # no room for a process: the leader sees its pipes close
        if holder == 0:
            _hold(*descriptors)
        _holders.add(holder)
        _tell_of(holder, descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)
    return True


def _tell_of(holder: int, door: int) -> None:
    """The leader gets a descriptor of the holder: it knows no number of this pid namespace."""
    try:
        if holder > 0:
            pidfd = os.pidfd_open(holder)
            passing.send(door, HOLDER, [pidfd])
            os.close(pidfd)
    except OSError:
        pass  # the visit is over already, or its leader gone


def _hold(door: int, problems: int, status: int, steps: int, *streams: int) -> None:
    """Fork the job, and stay until the last process of this visit has ended. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        processes.adopt_orphans()
        job = os.fork()
        if job == 0:
            _become_job(door, problems, status, steps, streams)
        BUILDING.status, BUILDING.tally = plan.place_descriptors((), [status, BUILDING.tally])
        init.collect(job, to_the_last=True)
    finally:
        os._exit(0)


def _become_job(door: int, problems: int, status: int, steps: int, streams: tuple[int, ...]) -> None:
    with open(steps, "rb") as file:
        listed = marshal.load(file)
    try:
        problems, status, door = plan.place_descriptors(streams, [problems, status, door])
        BUILDING.hand_over = lambda kind, descriptors: passing.send(door, kind, descriptors)
        plan.execute(listed)
    except plan.StepFailed as failed:
        os.write(problems, wire.failure(failed.step, failed.errno, failed.problem))
    finally:
        os._exit(127)
