"""What a policy comes to on this host: for each process its steps, and the system calls of steps that are a table.

Nothing is started; a control group may be made for the answer, and is removed again.
"""

from __future__ import annotations

import math
import os

from ringfence.engine.run import backend_for, close_whole, refuse
from ringfence.errors import UsageError
from ringfence.kernel.calls.described import DescribedCall, described
from ringfence.kernel.mount import namespaces
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record, replace
from ringfence.sandbox import root
from ringfence.steps import call_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Step, VisitRequest

PROCESSES = {
    "zygote": "builds once what all sandboxes of this policy share",
    "leader": "prepares one sandbox, while it still has its own ids",
    "pid 1": "builds the root, then becomes a program that only collects the dead",
    "job": "goes on in the memory of pid 1, confines itself and executes the program",
    "watchdog": "a part of the leader: measures all processes of the sandbox, and ends them past one of these",
}
_HOST_ID = "<host id>"
"""An id that belongs to nobody else on the host; the leader of each sandbox chooses its own."""


@record
class Planned:
    """One step of one process."""

    process: str
    step: str
    arguments: tuple[object, ...]
    """For a step that Python executes."""
    calls: tuple[DescribedCall, ...]
    """For a step that is part of a table."""


def planned(policy: SandboxPolicy, command: tuple[str, ...] = ("COMMAND",)) -> list[Planned]:
    """Return the plan of a policy, in the order of its execution."""
    backend = backend_for(policy.isolation)
    refuse(backend, policy)
    box = backend.open(policy)
    try:
        shown = box.planned(Job(argv=command))
    finally:
        close_whole(box)
    if shown is None:
        raise UsageError(f"isolation {policy.isolation} has no plan that can be shown", hint="--isolation strict")
    root_spec, request = shown
    rows = [_in_python("zygote", step) for step in root.template(root_spec)]
    rows += [_in_python("leader", step) for step in request["prepare"]]
    return [*rows, _clone(request), *_of_sandbox(request["plan"]), _watched(request)]


def _in_python(process: str, step: Step) -> Planned:
    return Planned(process=process, step=str(step[0]), arguments=tuple(step[1:]), calls=())


def _clone(request: VisitRequest) -> Planned:
    """How pid 1 is born."""
    outside: tuple[int | str, int | str] = (os.geteuid(), os.getegid()) if os.geteuid() else (_HOST_ID, _HOST_ID)
    uid_map, gid_map = namespaces.map_lines(outside, request["heard"]["ids"])
    born = {"namespaces": request["namespaces"], "network_reused": "network" in request,
            "uid_map": uid_map, "gid_map": gid_map, "setgroups": "deny"}  # fmt: skip
    return Planned(process="pid 1", step="clone", arguments=(born,), calls=())


def _watched(request: VisitRequest) -> Planned:
    held = {name: limit for name, limit in request["limits"].items() if not math.isinf(limit)}
    return Planned(process="watchdog", step="limits", arguments=(held,), calls=())


def _of_sandbox(plan: list[Step]) -> list[Planned]:
    """Up to the split they belong to pid 1."""
    rows: list[Planned] = []
    process = "pid 1"
    for part in call_table.parts(plan):
        if part.build is None:
            rows.append(_in_python(process, part.step))
            continue
        for step, call in described(part.build.table):
            if rows and rows[-1].calls and (rows[-1].process, rows[-1].step) == (process, step):
                rows[-1] = replace(rows[-1], calls=(*rows[-1].calls, call))
            else:
                rows.append(Planned(process=process, step=step, arguments=(), calls=(call,)))
            process = "job" if call.name == "split" else process
    return rows
