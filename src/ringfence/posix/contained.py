"""The leader's side of a sandbox with namespaces: forks its pid 1, hears how the job ended, serves the recorder.

Linux only. It holds no limit and ends nothing (``visit``); what the recorder keeps and how it is answered are
``linux.recorder``, ``linux.telling`` and ``linux.tripwire``.
"""

from __future__ import annotations

import marshal
import os
import select
from _collections_abc import Callable, Mapping, Sequence

from ringfence.linux import cgroup_tree, namespaces, processes, stage
from ringfence.linux.building import BUILDING, HOLDER, LISTENER, TRIPWIRE
from ringfence.linux.init import ENDED
from ringfence.linux.recorder import HIDDEN, Recorder, as_rows
from ringfence.linux.telling import Telling, profile_of
from ringfence.posix import passing, plan, wire
from ringfence.posix.pace import Pace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.linux.seccomp_rules import Profile
    from ringfence.linux.tripwire import Tripwire

PID_1 = 1
Tell = Callable[[Mapping[str, object]], None]


class Guest:
    """What comes out of a sandbox: how the job ended, and what the recorder is told."""

    holder = -1
    """In a box: a descriptor of the process that holds this visit."""

    def __init__(self, request: dict[str, Any], tell: Tell) -> None:
        self.request = request
        self.recorder = Recorder(write=tell)
        self._pace = Pace(request["share"])
        self.telling: Telling | None = None
        self.tripwire: Tripwire | None = None
        self.pid = 0
        """As the host knows it: pid 1 of a sandbox, or in a box the process that holds this visit."""
        self.identity = 0
        """The id on the host, where root is the caller."""
        self.status, self._told = os.pipe()
        self.door, self._theirs = passing.channel()

    def listen(self, poller: select.poll) -> None:
        """To what is handed over, and from then on to that too."""
        self._poller = poller
        poller.register(self.door, select.POLLIN)

    def take(self) -> bool:
        """Something handed over through the door; False: nobody is there."""
        kind, descriptors = passing.receive(self.door)
        if kind == LISTENER and descriptors:
            hidden, wired = self.request["watched"], self.request["wired"]
            self.telling = Telling(descriptors[0], self._profile, self.recorder, hidden, wired=wired)
            self._poller.register(descriptors[0], select.POLLIN)
        elif kind == TRIPWIRE and len(descriptors) == 3:
            self._poller.register(self._lay(*descriptors), select.POLLIN)
        elif kind == HOLDER and descriptors:
            self.pid = processes.pid_of(descriptors[0])
            self.holder = descriptors[0]
        return bool(kind)

    def shut_door(self) -> None:
        """What comes through it is trusted, so nothing may come once the program runs; what came before may still lie
        there."""
        while self.door >= 0 and wire.is_readable(self.door):
            self.hear(self.door)
        if self.door >= 0 and self._is_complete():
            self._wall_up()

    def _is_complete(self) -> bool:
        """Whether all was handed over that will be."""
        return True

    def _wall_up(self) -> None:
        self._poller.unregister(self.door)
        os.close(self.door)
        self.door = -1

    def _profile(self) -> Profile:
        request = self.request
        return profile_of(request["profile"], request["ids"], watched=bool(request["watched"]), wired=request["wired"])

    def _lay(self, device: int, proc: int, layout: int) -> int:
        """A tripwire of this layout; before the job's program runs, so what pid 1 says is trusted."""
        from ringfence.linux import tripwire, tripwire_layout

        with open(layout, "rb") as file:
            nodes = tripwire_layout.from_data(marshal.load(file))
        uid, gid = self.request["ids"]
        self.tripwire = tripwire.Tripwire(device, nodes, mounter=PID_1, proc=proc, uid=uid, gid=gid)
        return device

    def hear(self, descriptor: int) -> None:
        """Take, answer and record what waits there."""
        if descriptor == self.door:
            if not self.take():
                self._wall_up()
        elif self.telling is not None and descriptor == self.telling.fileno():
            self._pace.work(self.telling.handle)
            self._forget(self.telling)
        elif self.tripwire is not None and descriptor == self.tripwire.fileno():
            self._pace.work(self._serve_tripwire)
            self._forget(self.tripwire)

    def _serve_tripwire(self) -> None:
        assert self.tripwire is not None
        for attempt in self.tripwire.handle(lambda key: self.recorder.wants(HIDDEN, key)):
            self.recorder.record(attempt)

    def answering_s(self) -> float:
        """Processor time that it took to answer the guest so far."""
        return self._pace.spent_ns / 1e9

    def _forget(self, source: Telling | Tripwire) -> None:
        """Once the last process under the filter is gone, or the mount: it stays readable, and would be asked for
        ever."""
        if source.finished:
            self._poller.unregister(source.fileno())

    def ended(self) -> tuple[int, ...] | None:
        """How the job ended and what it used, in the words of pid 1; None when it was killed before it could say."""
        data = os.read(self.status, ENDED.size)
        return ENDED.unpack(data) if len(data) == ENDED.size else None

    def close(self) -> bytes:
        """The recorder's last word. What comes now is late."""
        if self.tripwire is not None:
            self.recorder.lose(self.tripwire.lost, "requests to the tripwires could not be answered")
        self.recorder.close()
        return self.last_word()

    def last_word(self) -> bytes:
        """How sure the recorder is, with the first call that ended a process; JSON, or empty: ``wire.NOTHING_SEEN``."""
        health = self.recorder.health
        counted = {name: value for name, value in vars(health).items() if isinstance(value, int)}
        forbidden = self.telling.forbidden if self.telling is not None else ""
        words = {"forbidden": forbidden, "problems": list(health.problems), "caveat": health.caveat}
        rows = {"totals": self.recorder.totals(), "summary": as_rows(self.recorder.summary)}
        told = counted | words | rows | {"complete": health.complete}
        if told == wire.NOTHING_SEEN:
            return b""
        import json

        return json.dumps(told).encode()


class Visitor(Guest):
    """What comes out of one visit to a box."""

    def _is_complete(self) -> bool:
        """Not before the holder is told of: pid 1 may be late. Who tells is not the job, which has no door."""
        return self.holder >= 0


class Contained(Guest):
    """One sandbox, from the fork of its pid 1 to the last record."""

    # ---- birth

    def __init__(self, request: dict[str, Any], tell: Tell) -> None:
        super().__init__(request, tell)
        self.tally = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Bytes that the dead inside wrote, since it was last read."""
        self._counts = os.dup(self.tally)

    def keep(self) -> list[int]:
        """The descriptors that pid 1 keeps: where it tells the end, the way to us, and where it counts."""
        return [self._told, self._theirs, self._counts]

    def fork(self, streams: Sequence[int]) -> int:
        """pid 1 in its namespaces and groups; 0 in the child, which waits for ``release``."""
        BUILDING.identity = BUILDING.identity or namespaces.host_id(os.getpid())
        plan.execute(self.request["prepare"])
        if os.geteuid() == 0:
            self.identity = BUILDING.identity
            stage.give_pipes(streams[1:3])
        # The child inherits this and must be dumpable until its ids are mapped.
        processes.show_memory()
        self.pid = self._clone()
        if self.pid:
            processes.hide_memory()
        return self.pid

    def _clone(self) -> int:
        """Into the v2 group where the kernel can do that; where not, it is entered like those of v1."""
        flags = namespaces.flags(self.request["namespaces"])
        born_in = self.request["group"]
        try:
            child = processes.fork_into(flags, born_in)
        except OSError:
            born_in = ""
            child = self._clone_outside(flags)
        self._enter = [path for path in self.request["enter"] if not born_in or not path.startswith(f"{born_in}/")]
        return child

    def _clone_outside(self, flags: int) -> int:
        try:
            return processes.fork_into(flags)
        except OSError as error:
            raise plan.StepFailed("enter namespaces", error) from error

    def release(self) -> None:
        """Place pid 1 in its groups and map its ids, then let it go on."""
        for descriptor in self.keep():
            os.close(descriptor)
        for descriptor in (*BUILDING.trees.values(), *BUILDING.idmaps.values()):
            os.close(descriptor)
        cgroup_tree.enter(self._enter, self.pid)
        inside = self.request["ids"]
        identity = BUILDING.identity
        outside = (identity, identity) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        namespaces.map_ids(self.pid, outside, (inside[0], inside[1]))
        passing.send(self.door, passing.GO, [])
