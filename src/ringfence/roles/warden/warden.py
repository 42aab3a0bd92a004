"""The warden: one process that leads all sandboxes of a template, by one loop.

Runs as: warden, one for a strict pool without a network list, under load one for every two processors
Parent: spawner
Holds: its socket, drafts of requests, and of each sandbox both pipes and what a leader holds. Its memory is hidden
Must not have: any job, its input or its output; the caller's memory or environment

It never runs a job and never makes a process: pid 1 of each sandbox is made by its own zygote (``maker``) and is its
child. Once it is full, or its zygote is gone, it takes no more sandboxes and leads those it has to the end.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import marshal
import os
import time

from ringfence.kernel.mount import namespaces
from ringfence.kernel.proc import processes, procfs
from ringfence.roles import job_start
from ringfence.roles.loop import Loop
from ringfence.roles.warden import maker
from ringfence.roles.warden import order as orders
from ringfence.roles.warden.order import SandboxOrder
from ringfence.roles.warden.places import Places
from ringfence.roles.warden.visit import WardedVisit
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import StandbyRequest

_MOST_ZYGOTES = 8
_MOST_ORDERS = 16
"""How many orders wait at the zygote at a time: the two must never wait for each other."""
_LOOK_NS, _AGAIN_NS = 1_000_000_000, 10_000_000
_GONE = ("lead", 0, "the zygote that was to make it is gone")
_DESCRIPTORS_EACH, _SPARE_DESCRIPTORS = 13, 64


def serve(door: int, owner: list[int]) -> None:
    """The process, once the template is built."""
    zygotes: dict[int, int] = {}
    for _ in range(_zygotes()):
        pid, channel = _fork_zygote(door, owner, list(zygotes))
        zygotes[channel] = pid
    Warden(door, zygotes).serve()


def _zygotes() -> int:
    return min(_MOST_ZYGOTES, max(2, len(os.sched_getaffinity(0))))


def _fork_zygote(door: int, owner: list[int], others: list[int]) -> tuple[int, int]:
    """Return its pid, and our end of the channel to it."""
    ours, theirs = passing.channel()
    warden, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            processes.die_with_parent()  # one that is stopped does not hear that we are gone
            os.setsid()  # else the scheduler gives all of us the share of one
            for descriptor in (ours, door, *others):
                os.close(descriptor)
            if os.getppid() == warden:
                maker.Maker(theirs, owner).serve()
        finally:
            os._exit(0)
    os.close(theirs)
    return pid, ours


class Warden:
    """Which visits are led, and what is asked for."""

    def __init__(self, door: int, zygotes: dict[int, int]) -> None:
        """``zygotes``: our ends of the channels to them, with their pids."""
        self.loop = Loop(many=True)
        self._door = door
        self.visits: dict[int, WardedVisit] = {}
        self._places = Places()
        self._used_networks: set[tuple[int, int]] = set()
        """Zygote and place, where a job has used what the zygote has for that place."""
        self._waiting: list[tuple[WardedVisit, list[int], list[int]]] = []
        self._ordered: dict[int, set[int]] = {zygote: set() for zygote in zygotes}
        """Zygote → the tickets of what it makes."""
        self._pids = zygotes
        self._tickets = 0
        # What is under way when it is full gets a place too.
        self._most = min(namespaces.IDS_PER_PROCESS - 1 - passing.MOST_UNDER_WAY, _room())
        processes.adopt_orphans()
        processes.show_memory()
        self.own_io = procfs.open_own_io()
        processes.hide_memory()
        processes.set_name(processes.WARDEN)
        self.loop.add(door, self._receive)
        for zygote in zygotes:
            self.loop.add(zygote, self._hear_zygote)

    def serve(self) -> None:
        """Serve until the owner has closed the door and the last visit is over."""
        while self._door >= 0 or self.visits:
            self.loop.turn()

    # ---- the caller

    def _receive(self, _: int) -> None:
        kind, descriptors, body = passing.receive_with_body(self._door, orders.BODY_BYTES)
        if not kind:
            return self._close_door()
        if kind == passing.LEADER and len(descriptors) == 4 and body:
            return self._begin(marshal.loads(body), descriptors)
        if kind == passing.DRAFT and len(descriptors) == 1:
            self._keep_draft(descriptors[0])
        elif kind == passing.END and len(descriptors) == 2:
            self._end(descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _close_door(self) -> None:
        if self._door >= 0:
            self.loop.drop(self._door)
            os.close(self._door)
            self._door = -1

    def _keep_draft(self, file: int) -> None:
        job_start.keep_draft(*wire.read_draft(file))
        for zygote in tuple(self._ordered):
            try:
                passing.send(zygote, passing.DRAFT, [file], patient=False)
            except OSError:
                self._lose(zygote)

    def _begin(self, request: StandbyRequest, descriptors: list[int]) -> None:
        ticket = self._tickets + 1
        place = self._places.take(ticket) if request["draft"] in job_start.DRAFTS else -1
        if place < 0:
            for descriptor in descriptors:  # the caller sees its pipes close before anybody spoke
                os.close(descriptor)
            return
        self._tickets = ticket
        visit = WardedVisit(job_start.whole(request), descriptors, self, ticket)
        self.visits[visit.ticket] = visit
        visit.small = request
        if os.geteuid() == 0:
            visit.identity = namespaces.host_id(os.getpid(), place)
        visit.begin(())
        if len(self.visits) >= self._most and self._door >= 0:
            passing.take_no_more(self._door)

    def _end(self, reports: int) -> None:
        """The caller knows no pid of a sandbox that has not spoken, but has the other end of its pipe."""
        pipe = os.fstat(reports).st_ino
        for visit in [visit for visit in self.visits.values() if os.fstat(visit.reports).st_ino == pipe]:
            visit.note_asked()

    def forget(self, visit: WardedVisit) -> None:
        """One that is over."""
        del self.visits[visit.ticket]
        place, is_empty = self._places.leave(visit.ticket, visit.sockets)
        if visit.may_have_used_network or not is_empty:
            self._used_networks.add((visit.maker, place))

    # ---- the zygote

    def order(self, visit: WardedVisit, descriptors: list[int], closed: list[int]) -> None:
        """Have pid 1 made with these descriptors; some of them are closed once they are sent."""
        self._waiting.append((visit, descriptors, closed))
        self._send_orders()

    def _send_orders(self) -> None:
        while self._waiting:
            zygote = min(self._ordered, key=lambda each: len(self._ordered[each]), default=-1)
            if zygote >= 0 and len(self._ordered[zygote]) >= _MOST_ORDERS:
                return
            visit, descriptors, closed = self._waiting[0]
            of_place = zygote, self._places.of(visit.ticket)
            order = self._order(visit, new_network=of_place in self._used_networks)
            try:
                passing.send(zygote, orders.ORDER, descriptors, order, patient=False)
            except OSError as error:
                if error.errno == passing.TOO_MANY_UNDER_WAY:  # a matter of time, and others are led meanwhile
                    self.loop.at(time.monotonic_ns() + _AGAIN_NS, self._send_orders)
                    return
                visit.note_failed(*_GONE)
                self._lose(zygote)
            else:
                self._ordered[zygote].add(visit.ticket)
                self._look_later(zygote, visit.ticket)
                self._used_networks.discard(of_place)
            self._waiting.pop(0)
            for descriptor in closed:
                os.close(descriptor)

    def _order(self, visit: WardedVisit, *, new_network: bool) -> bytes:
        groups, ids = visit.small["groups"], visit.request["heard"]["ids"]
        group = groups["group"]
        return orders.packed(SandboxOrder(
            ticket=visit.ticket, draft=visit.small["draft"], place=self._places.of(visit.ticket), group=group,
            maps=namespaces.map_lines(namespaces.outside(visit.identity), ids),
            entrances=job_start.still_to_enter(group, groups["enter"]),
            new_network=new_network,
        ))  # fmt: skip

    def _look_later(self, zygote: int, ticket: int) -> None:
        self.loop.look_at(time.monotonic_ns() + _LOOK_NS, lambda: self._look(zygote, ticket))

    def _look(self, zygote: int, ticket: int) -> None:
        """It takes long: is the zygote that has to make it at work? One that is stopped is ended."""
        if zygote not in self._ordered or not self._depends(zygote, ticket):
            return
        if procfs.is_stopped(self._pids[zygote]):
            os.kill(self._pids[zygote], signal.SIGKILL)  # our child, and not collected yet
        else:
            self._look_later(zygote, ticket)

    def _depends(self, zygote: int, ticket: int) -> bool:
        visit = self.visits.get(ticket)
        return ticket in self._ordered[zygote] or (visit is not None and visit.depends_on(zygote))

    def hear_makers(self) -> None:
        """All that they have said so far."""
        for zygote in tuple(self._ordered):
            self._hear_zygote(zygote)

    def _hear_zygote(self, zygote: int) -> None:
        while zygote in self._ordered and wire.is_readable(zygote):
            kind, _, body = passing.receive_with_body(zygote, orders.BODY_BYTES)
            if not kind:
                self._lose(zygote)
                return
            ticket, *told = orders.read_made(body) if kind == orders.MADE else orders.read_failed(body)
            self._ordered[zygote].discard(ticket)
            visit = self.visits.get(ticket)
            if visit is not None and kind == orders.MADE:
                visit.note_made_by(zygote, *told)
            elif visit is not None:
                visit.note_failed(*told)
        self._send_orders()

    def _lose(self, zygote: int) -> None:
        """What it was to make will not be made. No more sandboxes are taken."""
        if zygote not in self._ordered:
            return
        lost = self._ordered.pop(zygote)
        self.loop.drop(zygote)
        os.close(zygote)
        self._close_door()
        os.waitpid(self._pids.pop(zygote), 0)  # its end of the channel was the last thing that it had
        for visit in [*self.visits.values()]:
            if visit.ticket in lost or visit.depends_on(zygote):
                visit.note_failed(*_GONE)


def _room() -> int:
    """The most visits that this process has descriptors for."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return int((most - _SPARE_DESCRIPTORS) // _DESCRIPTORS_EACH)
