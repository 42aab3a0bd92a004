"""The warden's own zygote: makes pid 1 of each sandbox, as a child of the warden.

Runs as: maker, two to eight for each warden: its zygotes
Parent: warden
Holds: a mount namespace with what sandboxes share, drafts of requests, a /proc of its own; the descriptors of a
    sandbox for the moment of one clone
Must not have: what the warden has heard of any sandbox; a job, its streams or its data

Forked before the warden has led anything: nothing of a job was ever in its memory. It ends with the warden. Where there
is the native part, its loop carries out orders; Python does what that hands back.
"""

from __future__ import annotations

import gc
import marshal
import os

from ringfence.kernel.calls import native
from ringfence.kernel.calls.execute import CallFailed
from ringfence.kernel.calls.orders import (
    BACK,
    BEGIN,
    CHILD,
    CHILD_FAILED,
    DESCRIPTORS,
    OTHER,
    Orders,
    Served,
)  # fmt: skip
from ringfence.kernel.mount import mounts, namespaces
from ringfence.kernel.proc import processes
from ringfence.roles import first_process, job_start, standby
from ringfence.roles.warden import order as orders
from ringfence.roles.warden.order import NO_ORDER, SandboxOrder
from ringfence.steps import executor as plan
from ringfence.steps import maker_calls
from ringfence.steps.executor import StepFailed
from ringfence.steps.maker_calls import MakerDraft, Told
from ringfence.steps.state import SETUP
from ringfence.steps.table_step import explained
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ringfence.transport.request import GroupPaths, VisitRequest

_MOST_DRAFTS = 2 * wire.MOST_DRAFTS
"""Orders for drafts that were just dropped may still come."""


class Maker:
    """Takes one order after the other."""

    def __init__(self, door: int, owner: list[int]) -> None:
        self._door = door
        self._owner = owner
        self._warden = os.getppid()
        self._packed: dict[int, bytes] = {}
        """All drafts, each as one object: a child drops them, and what it writes is copied."""
        self._known: dict[int, Told] = {}
        """Those that the native loop knows, and what is told of a failure in a child."""
        self._orders = Orders(door)
        self._order = NO_ORDER
        """The one that Python carries out."""
        self._is_native = native.library() is not None and processes.can_close_ranges()
        job_start.FORGET.append(self._forget)
        self._proc = mounts.new_proc() if self._is_native else -1
        if self._is_native:
            plan.execute([("reset signals",)])  # for its children; its session has no terminal

    def serve(self) -> None:
        """Serve until the warden is gone."""
        while self._served() if self._is_native else self._receive():
            pass

    # ---- the native loop

    def _served(self) -> bool:
        """Carry out orders until there is something for Python; whether the warden is still there."""
        served = self._loop()
        if served.state == OTHER:
            return self._receive()
        descriptors = list(served.rights)
        try:
            self._order = self._last()
            if served.state == BACK:
                self._carry_out(descriptors)
            elif not first_process.ends_by_itself(served.child):
                self._tell("lead", served.error, "its ids could not be mapped")
        finally:
            _close(descriptors)
        return True

    def _last(self) -> SandboxOrder:
        return orders.read(self._orders.order()[passing.HEAD_BYTES :])

    def _loop(self) -> Served:
        """It never returns in a child."""
        before, in_child, in_parent = native.fork_hooks()
        before()
        served = self._orders.serve()
        if served.state in (CHILD, CHILD_FAILED):
            in_child()
            self._become(served)
        in_parent()
        return served

    def _become(self, served: Served) -> NoReturn:
        """The standby of a sandbox, with its whole plan behind it."""
        if served.state == CHILD_FAILED:
            self._fail(served)
        for drop in job_start.FORGET:
            drop()
        standby.Waiting.problems, standby.Waiting.post = maker_calls.PROBLEMS, maker_calls.POST
        try:
            standby.await_in_place(python=True)
        finally:
            os._exit(127)

    def _fail(self, served: Served) -> NoReturn:
        """A step failed in the child."""
        order = self._last()
        table, told = self._orders.table(order.draft, served.table), self._known[order.draft]
        failed = explained(table, marshal.loads(told.labels)[served.table], CallFailed(served.call, served.error))
        if failed.step == maker_calls.JOIN:
            path = order.entrances[maker_calls.group_of(served.call)]
            failed = StepFailed(failed.step, OSError(served.error, os.strerror(served.error), path))
        copy = self._orders.slots(order.draft, BEGIN)[told.writer]
        writer = maker_calls.PROBLEMS if served.table != BEGIN else copy if copy >= 0 else served.rights[0]
        job_start.fail(failed, writer)

    # ---- in Python

    def _receive(self) -> bool:
        """Take the next message; whether there was one."""
        kind, descriptors, body = passing.receive_with_body(self._door, orders.BODY_BYTES)
        try:
            if kind == passing.DRAFT and descriptors:
                self._keep_draft(descriptors[0])
            elif kind == orders.ORDER:
                self._order = orders.read(body)
                del body  # a child must not find it
                self._carry_out(descriptors)
        finally:
            _close(descriptors)
        return bool(kind)

    def _keep_draft(self, file: int) -> None:
        number, whole = wire.read_draft(file)
        draft = first_process.lean(whole)
        del whole
        self._packed[number] = wire.packed(draft)
        while len(self._packed) > _MOST_DRAFTS:
            self._drop(next(iter(self._packed)))
        made = self._tables_of(draft) if self._is_native else None
        if made is not None:
            self._known[number] = made.told
            self._orders.add(number, made.tables)
        del draft, made
        gc.collect()
        gc.freeze()  # else a fork that looks for garbage copies their pages

    def _drop(self, number: int) -> None:
        del self._packed[number]
        if self._known.pop(number, None) is not None:
            self._orders.drop(number)

    def _tables_of(self, draft: VisitRequest) -> MakerDraft | None:
        group, entrances = draft["groups"]["group"], draft["groups"]["enter"]
        own = job_start.still_to_enter(group, entrances)
        first_id = namespaces.host_id(self._warden, 0)
        maps = namespaces.map_lines(namespaces.outside(first_id), draft["heard"]["ids"])
        return maker_calls.draft_of(draft, first_process.steps_of(draft), self._owner, len(own), maps, first_id,
                                    self._proc)  # fmt: skip

    def _identify(self, place: int) -> None:
        identity = namespaces.host_id(self._warden, place) if os.geteuid() == 0 else 0
        SETUP.identify(identity, self._owner)

    def _carry_out(self, descriptors: list[int]) -> None:
        """The order at hand, which a child forgets."""
        if len(descriptors) != DESCRIPTORS:  # there was no room for all of them
            return self._tell("lead", 0, "its descriptors did not arrive")
        *kept, post, door = descriptors
        try:
            request = self._request()
            if "network" in request:
                # First: until now this process is in that of another sandbox, which must see no socket of ours.
                SETUP.network = namespaces.enter_new_network(request["network"])
            self._identify(self._order.place)
            first_process.make(request, [post], kept, door, self._tell_made)
        except StepFailed as failed:
            self._tell(failed.step, failed.errno, failed.problem)
        except Exception as error:
            self._tell("lead", 0, f"{type(error).__name__}: {error}")
        finally:
            job_start.DRAFTS.clear()
            if SETUP.network >= 0:  # nobody was born in it
                os.close(SETUP.network)
                SETUP.network = -1

    def _request(self) -> VisitRequest:
        number = self._order.draft
        job_start.DRAFTS[number] = marshal.loads(self._packed[number])
        return job_start.whole({"draft": number, "groups": _groups(self._order), "standby": True})

    def _tell_made(self, pid: int) -> None:
        """Before pid 1 is let go: the warden knows it before anything can be heard of it."""
        passing.send(self._door, orders.MADE, [], orders.made(self._order.ticket, pid))

    def _tell(self, step: str, number: int, problem: str) -> None:
        passing.send(self._door, orders.FAILED, [], orders.failed(self._order.ticket, step, number, problem))

    def _forget(self) -> None:
        """In a child: what it must not have."""
        self._packed.clear()
        self._known.clear()
        self._orders.clear()
        self._order = NO_ORDER


def _groups(order: SandboxOrder) -> GroupPaths:
    """Its v2 group too is entered where the child can't be born in it."""
    v2 = [f"{order.group}/cgroup.procs"] if order.group else []
    return {"group": order.group, "enter": [*v2, *order.entrances], "cgroups": []}


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
