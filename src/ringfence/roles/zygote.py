"""A fork server in a mount namespace of its own, where everything that many sandboxes share is built once.

Runs as: zygote, one or more for each template (``sandbox.root.template``), until its owner closes the door; that of the
    command line becomes the leader of its one sandbox.
Parent: spawner
Holds: its socket, a mount namespace with what sandboxes share, loaded modules; what one sandbox after the other uses:
    network namespaces of tight ones, and, for root, ids on the host.
Must not have: any job, its streams or its data; the caller's memory or environment; the template, once it is built.

What a job can change is never part of it: that is made anew, by pid 1 of each sandbox. It ends when
its owner has closed the door and its last leader has ended.
"""

from __future__ import annotations

import gc
import os
from _collections_abc import Callable, Sequence

from ringfence.kernel import syscalls
from ringfence.kernel.calls import native, thread
from ringfence.kernel.mount import namespaces
from ringfence.kernel.proc import processes
from ringfence.roles.fork_server import ForkServer, become, lead_described
from ringfence.roles.job_start import keep_draft
from ringfence.steps import executor as plan
from ringfence.steps.state import SETUP
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Preload, ZygoteRequest

_furnished: list[object] = []
_IMPORTED_BY_FORKS = (
    "ringfence.kernel.proc",
    "ringfence.roles.sandbox_leader",
    "ringfence.roles.standby",
    "ringfence.steps.state",
)
"""Imported by name inside functions, in each fork. Other modules are found too, at the price of a search."""


def furnish(*, boxes: bool = True) -> None:
    """Load what every sandbox needs, once for this fork and every later one. ``boxes``: and what living ones do."""
    if _furnished:
        return
    import ctypes
    import resource

    from ringfence.kernel.tripwire import serve
    from ringfence.roles import sandbox_leader
    from ringfence.steps import linux_steps

    if boxes:
        from ringfence.kernel import folder_sum
        from ringfence.kernel.proc import held_files, operations
        from ringfence.roles import box_leader, box_pid1, file_transfer

        _furnished.extend((box_leader, box_pid1, file_transfer, folder_sum, held_files, operations))
    syscalls.bind()
    processes.bind()
    _furnished.extend((ctypes, resource, serve, sandbox_leader, linux_steps))
    # Objects that live for ever are never looked at again, so forks don't copy their pages.
    if boxes:
        gc.collect()  # a process that makes one sandbox is gone before garbage matters
    gc.freeze()


def main(door: int, template: int, reports: int, *, for_run: bool = False) -> None:
    """The zygote's process: build, say how it went, then fork leaders. ``for_run``: for one sandbox, which it leads
    itself."""
    processes.adopt_orphans()
    wire.write_all(reports, wire.started_frame(os.getpid()))
    try:
        request = wire.read_zygote(template)
        os.close(template)
        owner, serve = request["owner"], _server(request, for_run)
        _build(request)
    except EOFError:
        return
    except ImportError as error:
        wire.write_all(reports, wire.failed_frame("preload", 0, str(error)))
        return
    except plan.StepFailed as failed:
        wire.write_all(reports, wire.failed_frame(failed.step, failed.errno, failed.problem))
        return
    wire.write_all(reports, wire.ready_frame(0))
    os.close(reports)
    serve(door, owner)


def _server(request: ZygoteRequest, for_run: bool) -> Callable[[int, list[int]], None]:
    """What the process does once everything is built; loaded before, since nothing of ours can be loaded after that."""
    if not request.get("warden"):
        reuses = request.get("reuses_networks", False)
        return lambda door, owner: Zygote(door, owner, reuses, for_run=for_run).serve()
    from ringfence.roles.warden import warden

    return warden.serve


def _build(request: ZygoteRequest) -> None:
    """What all sandboxes have in common. It names what is hidden, so no memory that a job gets may hold it."""
    if request["python"] is not None:
        from ringfence.kernel.proc import shared_memory
        from ringfence.python_jobs import preload

        preload.load(request["python"], shared_memory.written_by_forks)
    plan.execute(request["template"])
    request["template"] = []
    if "native" in request:  # sandboxes with namespaces are made here
        _prepare_split(request["native"])
    _settle(request["python"])


def _prepare_split(wanted: bool) -> None:
    """What lets pid 1 of a sandbox become a program of its own, found out once for all of them."""
    if not wanted:
        native.do_without()
    SETUP.thread = thread.facts()
    if thread.can_split():
        native.fork_hooks()
        SETUP.init = thread.open_init()


def _settle(python: Preload | None) -> None:
    """Called when everything is loaded and built: from now on every fork is for a job."""
    if python is None:
        return
    from ringfence.python_jobs import interpreter
    from ringfence.roles import standby

    standby.Waiting.interpreter, standby.Waiting.show_memory = interpreter, processes.show_memory
    interpreter.settle(python["environment"], _IMPORTED_BY_FORKS)


class Zygote(ForkServer):
    """If the caller is root, each living leader has an id on the host that no other has. If network namespaces are
    reused, it has one of these to itself."""

    def __init__(self, door: int, owner: list[int], reuses_networks: bool, *, for_run: bool = False) -> None:
        super().__init__(door)
        self._for_run = for_run
        self._reuses_networks = reuses_networks
        self._owner = owner
        self._places: dict[int, int] = {}
        """Leader → which of this process's ids and networks it has; -1: none of them."""
        self._networks: dict[int, int] = {}
        """Place → its network namespace; -1: a leader has used it up, and the next one gets a new one."""

    def _fork_leader(self, descriptors: list[int], leave_open: Sequence[int] = ()) -> int:
        place = self._choose()
        shared = tuple(number for number in (SETUP.init, SETUP.network, *SETUP.idmaps.values()) if number >= 0)
        if self._for_run:
            become(descriptors, lead_described, shared)
        leader = super()._fork_leader(descriptors, shared)
        self._places[leader] = place
        return leader

    def _keep_draft(self, file: int) -> None:
        keep_draft(*wire.read_draft(file))
        gc.freeze()

    def _choose(self) -> int:
        """Also prepares what the leader finds in its memory."""
        taken = set(self._places.values())
        place = next((n for n in range(namespaces.IDS_PER_PROCESS - 1) if n not in taken), -1)
        SETUP.network = self._network(place) if self._reuses_networks else -1
        if os.geteuid() == 0:
            SETUP.identify(namespaces.host_id(os.getpid(), place) if place >= 0 else 0, self._owner)
        return place

    def _network(self, place: int) -> int:
        """-1: the leader makes one for itself. That is quicker if no other leader comes after it."""
        if self._networks.get(place) == -1:
            try:
                self._networks[place] = namespaces.network_namespace()
            except OSError:
                pass  # the leader tells why
        return self._networks.setdefault(place, -1) if place >= 0 else -1

    def _reap(self) -> None:
        super()._reap()
        for leader in self._places.keys() - self.leaders:
            del self._places[leader]
