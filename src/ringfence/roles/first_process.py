"""Makes pid 1 of a sandbox: the only place that does.

Part of: leader, maker

The calling process prepares what pid 1 can't do itself, clones it into its namespaces and its group, maps its ids and
lets it go. The caller's own identity stays, and it holds nothing of the sandbox afterwards. Linux only.
"""

from __future__ import annotations

import os
import time
from _collections_abc import Callable, Mapping, Sequence

from ringfence.kernel.mount import namespaces
from ringfence.kernel.proc import processes, procfs
from ringfence.roles import job_start
from ringfence.steps import executor as plan
from ringfence.steps.state import SETUP
from ringfence.transport import passing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Step, VisitRequest

_LOOKS, _LOOK_S = 40, 0.005


def make(
    request: VisitRequest, streams: Sequence[int], kept: Sequence[int], door: int,
    tell_parent: Callable[[int], None] | None = None,
) -> int:  # fmt: skip
    """Return pid 1, which builds its root now. ``kept``: what it keeps of ours, as ``job_start.become_job`` has it;
    ``door``: the other end of its socket to the leader. ``tell_parent``: it becomes a child of our parent, which is
    told of it before it is let go."""
    before = SETUP.trees.copy()
    try:
        pid, entrances, steps = _cloned(request, streams, as_sibling=tell_parent is not None)
    except BaseException:
        processes.hide_memory()
        _close_trees(before)
        raise
    if pid == 0:
        if tell_parent is not None:
            os.setsid()  # else the scheduler gives all sandboxes that are made together the share of one
        # By itself: for a process that another one moves, the kernel waits for every processor, some 10 ms. In the same
        # list: the job forgets it, and a second one would keep the names of what is hidden, or of its groups.
        steps.insert(0, ("join groups", entrances[:]))
        entrances.clear()
        job_start.become_job(request, streams, kept, SETUP.kept_open(), steps)
    processes.hide_memory()
    if tell_parent is None:
        _close_sources()
    else:
        _close_trees(before)
        tell_parent(pid)
    try:
        _map_ids(pid, request["heard"]["ids"])
        passing.send(door, passing.GO, [])
    except OSError:
        if not ends_by_itself(pid):
            raise
    return pid


def _cloned(
    request: VisitRequest, streams: Sequence[int], *, as_sibling: bool
) -> tuple[int, list[str], list[Step]]:
    """The process, the groups that it must still enter, and its plan; in the child 0 and the same."""
    SETUP.identity = SETUP.identity or namespaces.host_id(os.getpid())
    plan.execute(request["prepare"])
    if os.geteuid() == 0:
        passing.give_pipes(streams[1:3], SETUP.identity)
    steps = steps_of(request)
    # The child inherits this and must be dumpable until its ids are mapped.
    processes.show_memory()
    return (*_clone(request, as_sibling=as_sibling), steps)


def _close_trees(before: Mapping[str, int]) -> None:
    """What was cloned for this sandbox alone: a maker makes others."""
    for name in SETUP.trees.keys() - before.keys():
        os.close(SETUP.trees.pop(name))


def ends_by_itself(pid: int) -> bool:
    """Whether a step of its own has failed: it reports that better than we can. Else it waits to be let go."""
    for _ in range(_LOOKS):
        row = procfs.stat(pid)
        if row is None or row.zombie:
            return True
        time.sleep(_LOOK_S)
    return False


def lean(request: VisitRequest) -> VisitRequest:
    """Return the part of a request that making pid 1 needs, if tables hold its whole plan. The rest names what is
    hidden, and each child would have to drop it, which copies its pages."""
    if steps_of(request) == request["plan"]:
        return request
    left = request.copy()
    left["plan"], left["limits"] = [], {}
    left["heard"] = {"ids": request["heard"]["ids"]}  # type: ignore[typeddict-item]
    return left


def steps_of(request: VisitRequest) -> list[Step]:
    """The plan, as tables of calls if they say the same; a separate list, which the job forgets."""
    calls = request.get("calls", [])
    return list(calls if calls and SETUP.is_plain(_workspaces(request)) else request["plan"])


def _workspaces(request: VisitRequest) -> list[str]:
    """The host paths of the directories that the job works on."""
    found: list[str] = []
    for name, *arguments in (*request["prepare"], *request["plan"]):
        if name == "clone sources":
            sources: list[tuple[str, str, str, object]] = arguments[0]  # type: ignore[assignment]
            found += [path for _, path, mode, _ in sources if mode == "base"]
    return found


def _clone(request: VisitRequest, *, as_sibling: bool = False) -> tuple[int, list[str]]:
    """The process, and the groups it must still enter: not the v2 group if the kernel could create it in there."""
    flags = namespaces.flags(_unshared(request)) | (processes.AS_SIBLING if as_sibling else 0)
    born_in, entrances = request["groups"]["group"], request["groups"]["enter"]
    try:
        child = processes.fork_into(flags, born_in)
    except OSError:
        return _clone_outside(flags), entrances
    return child, job_start.still_to_enter(born_in, entrances)


def _unshared(request: VisitRequest) -> list[str]:
    """The namespaces to be made: the network namespace may exist already."""
    names = request["namespaces"]
    if "network" not in request or SETUP.network < 0:
        return names
    namespaces.enter_network(SETUP.network)
    os.close(SETUP.network)
    SETUP.network = -1
    # Sockets can outlive the processes that had them.
    return names if procfs.sees_sockets() else [name for name in names if name != "net"]


def _clone_outside(flags: int) -> int:
    try:
        return processes.fork_into(flags)
    except OSError as error:
        raise plan.StepFailed("enter namespaces", error) from error


def _close_sources() -> None:
    for descriptor in (*SETUP.kept_open(), *SETUP.idmaps.values()):
        os.close(descriptor)


def _map_ids(pid: int, inside: tuple[int, int]) -> None:
    namespaces.map_ids(pid, namespaces.outside(SETUP.identity), (inside[0], inside[1]))
