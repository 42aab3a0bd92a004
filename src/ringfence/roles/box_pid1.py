"""Inside a living box: pid 1 takes visits from its socket, and a reaper stands between it and each visit's processes.

Runs as: pid 1 of a box, as long as the box lives.
Parent: leader
Holds: the socket on which visits come, the pipe to its supervisor, the namespaces and the root of the box.
Must not have: a capability; a visit's descriptors, once its reaper is forked.

Runs as: visit reaper, one for each visit to a box.
Parent: pid 1 of a box
Holds: the pipe on which it tells the end of the job, and all that the visit leaves behind: it adopts orphans.
Must not have: a capability; the visit's streams; another visit's processes.

A reaper adopts whatever its visit leaves behind, so a visit's processes can be told from those of others for as long
as they live, and be ended together. Neither runs anything of the guest's, and neither has any privilege.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import marshal
import os
import select
from _collections_abc import Callable, Mapping

from ringfence.kernel.proc import processes, requester
from ringfence.roles.standby import READY, Waiting
from ringfence.steps import executor as plan
from ringfence.steps import pid1 as init
from ringfence.steps.state import REAPER, SETUP
from ringfence.steps.wakeup import wake_on_child
from ringfence.transport import passing, wire

Endings = Mapping[str, Callable[..., None]]
VISIT, COUNTED = b"v", b"c"
"""A visit, and one whose operations are counted: the socket to its leader, the pipe of failed steps, the pipe of the
end, its plan, its streams; the number of the visit."""
_NUMBER_BYTES = 20


def serve(endings: Endings) -> None:
    """The loop of pid 1. Returns when nobody can send visits any more, or the leader is gone: that ends the box."""
    os.write(Waiting.problems, READY)
    os.close(Waiting.problems)
    status = SETUP.status
    wakeup = wake_on_child()
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
            elif not _take_visit(endings):
                return


def _reap() -> None:
    try:
        while (dead := os.wait4(-1, os.WNOHANG))[0]:
            if dead[0] in _reapers:  # it has counted the processes that it collected
                _reapers.remove(dead[0])
            else:
                init.count_written(dead[0], dead[2])
    except ChildProcessError:
        pass


_reapers: set[int] = set()


def _take_visit(endings: Endings) -> bool:
    kind, descriptors, number = passing.receive_with_body(Waiting.post, _NUMBER_BYTES)
    if not kind:
        return False
    if kind in (VISIT, COUNTED) and len(descriptors) > 4:
        try:
            reaper = os.fork()
        except OSError:
            reaper = -1  # no room for a process: the leader sees its pipes close
        if reaper == 0:
            _hold(endings, int(number), kind == COUNTED, *descriptors)
        _reapers.add(reaper)
        _tell_of(reaper, descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)
    return True


def _tell_of(reaper: int, door: int) -> None:
    """The leader gets a descriptor of the reaper: pids of this pid namespace mean nothing to it."""
    try:
        if reaper > 0:
            pidfd = os.pidfd_open(reaper)
            passing.send(door, REAPER, [pidfd])
            os.close(pidfd)
    except OSError:
        pass  # the visit is over already, or its leader gone


def _hold(
    endings: Endings, number: int, counted: bool, door: int, problems: int, status: int, steps: int, *streams: int
) -> None:
    """Fork the job, and stay until the last process of this visit has ended. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        processes.set_name(requester.visit_name(number))  # identifies processes below it that touch a tripwire
        processes.adopt_orphans()
        ours, theirs = passing.channel() if counted else (-1, -1)
        job = os.fork()
        if job == 0:
            _become_job(endings, [problems, status, door, *([theirs] if counted else [])], steps, streams)
        kept = [status, SETUP.tally, *([ours] if counted else [])]
        SETUP.status, SETUP.tally, *ways = plan.place_descriptors((), kept)
        init.collect(job, until_empty=True, counts=init.JobCounts(job, _io_of_job(*ways)) if counted else None)
    finally:
        os._exit(0)


def _io_of_job(way: int) -> int:
    """The io file that the job sends before its program begins; -1: the job ended before that."""
    _, found = passing.receive(way)
    os.close(way)
    return found[0] if found else -1


def _become_job(endings: Endings, kept: list[int], steps: int, streams: tuple[int, ...]) -> None:
    with open(steps, "rb") as file:
        listed = marshal.load(file)
    try:
        problems, _, SETUP.door, *ways = plan.place_descriptors(streams, kept)
        SETUP.counts = ways[0] if ways else -1
        plan.execute(listed, endings)
    except plan.StepFailed as failed:
        os.write(problems, wire.failure(failed.step, failed.errno, failed.problem))
    finally:
        os._exit(127)
