"""Turns the steps of a sandbox into tables of system calls. Pure: nothing is executed, nothing of this host is read.

Steps that are not in ``CALLS`` stay steps in Python: what ends the plan (exec, a wait for a job, visits of a box), what
has to look before it acts (tripwires, names that are absent in a workspace), and what the interpreter must know of
(signals).
"""

from __future__ import annotations

from ringfence.model.record import record
from ringfence.steps import job_calls, root_calls
from ringfence.steps.root_calls import Build
from ringfence.steps.step import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Step

CALLS = {**root_calls.CALLS, **job_calls.CALLS}
_AFTER_TRIPWIRES = "seal root"


@record
class Part:
    """Consecutive steps of a plan: one table, or one step in Python."""

    step: Step
    build: Build | None


def parts(plan: list[Step]) -> list[Part]:
    """Return the plan with a table for each run of steps that can be one."""
    found: list[Part] = []
    wired = any(step[0] == "tripwires" for step in plan)
    for step in plan:
        if not _can_be_calls(step, wired):
            found.append(Part(step=step, build=None))
            continue
        if not found or found[-1].build is None:
            found.append(Part(step=("calls",), build=Build()))
        build = found[-1].build
        assert build is not None
        build.table.step = label(str(step[0]), list(step[1:]))
        CALLS[str(step[0])](build, *step[1:])
    return found


def _can_be_calls(step: Step, wired: bool) -> bool:
    name, *arguments = step
    if name == _AFTER_TRIPWIRES and wired:  # a veil over the root must stay as it is
        return False
    return name in CALLS and not (name == "whiteouts" and arguments[2])


def compiled(plan: list[Step]) -> list[Step]:
    """Return the plan with tables in place of steps, as it is sent and executed."""
    return [part.step if part.build is None else _step(part.build) for part in parts(plan)]


def _step(build: Build) -> Step:
    """Return the step that executes a table: its bytes, slots by name, labels, trees left open, which call splits."""
    table = build.table
    split = next((number for number, call in enumerate(table.calls) if call.name == "split"), -1)
    slots = {name: int(slot) for name, slot in table.slots.items()}
    return ("calls", table.compiled(), slots, table.labels(), sorted(build.open_trees), split)
