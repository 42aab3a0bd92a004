"""From the leader's fork to the job's exec: descriptors put in place, the plan carried out, a failed step told.

Runs as: job, from its fork until its program begins.
Parent: leader, pid 1 of a sandbox, visit reaper
Holds: its arguments, the clean environment, descriptors 0, 1, 2, and 3 where it has a channel; a session of its own, no
    new privileges, default signals, umask 022.
Must not have: any descriptor of the leader or the caller once its program runs.

What runs in the forked child, and the fork itself.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
from _collections_abc import Callable, Sequence

from ringfence.roles.endings import ENDINGS
from ringfence.roles.standby import Waiting
from ringfence.steps import executor as plan
from ringfence.steps import observe
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ringfence.transport.request import StandbyRequest, Step, VisitRequest

DRAFTS: dict[int, VisitRequest] = {}
"""In a zygote and what it forks: requests without what each sandbox has of its own. They name what is hidden."""
FORGET: list[Callable[[], object]] = [DRAFTS.clear]
"""How a sandbox that waits for its job drops what it has inherited that names what is hidden."""


def keep_draft(number: int, draft: VisitRequest, most: int = wire.MOST_DRAFTS) -> None:
    """Drop the oldest draft, as the caller does."""
    DRAFTS[number] = draft
    while len(DRAFTS) > most:
        del DRAFTS[next(iter(DRAFTS))]


def whole(request: VisitRequest | StandbyRequest) -> VisitRequest:
    """The request with its draft; KeyError if this process has no such draft."""
    if "draft" not in request:
        return request
    draft: VisitRequest = DRAFTS[request["draft"]].copy()
    draft["groups"], draft["standby"] = request["groups"], request["standby"]
    draft["egress"], draft["certificates"] = request.get("egress", False), request.get("certificates", b"")
    return draft


def _prepare_building(status: int, door: int, tally: int, *, certificates: bytes) -> None:
    from ringfence.steps.state import SETUP as building

    building.status, building.door, building.tally = status, door, tally
    building.certificates = certificates


def fork(request: VisitRequest) -> int:
    """Fork the job, into its v2 group if possible: entering it later waits for every processor, some 10 ms. Not a job
    that stands by: its interpreter goes on without an exec, and must be told of the fork."""
    group, steps = request["groups"]["group"] if "groups" in request else "", request["plan"]
    if group and not request.get("standby"):
        from ringfence.kernel.proc import processes

        request["plan"] = [_left_of(step, group) if step[0] == "join groups" else step for step in steps]
        try:
            return processes.fork_into(0, group)
        except OSError:
            request["plan"] = steps
    return os.fork()


def _left_of(step: Step, group: str) -> Step:
    name, *arguments = step
    (entrances,) = arguments
    assert isinstance(entrances, list)
    return (name, still_to_enter(group, entrances))


def still_to_enter(group: str, entrances: list[str]) -> list[str]:
    """Return the entrances that are left for a process that was born in this group; empty: it was born in none."""
    return [path for path in entrances if not group or not path.startswith(f"{group}/")]


def become_job(
    request: VisitRequest, streams: Sequence[int], keep_open: Sequence[int], leave_open: Sequence[int] = (),
    steps: list[Step] | None = None,
) -> None:  # fmt: skip
    """Never returns. ``keep_open``: where a failed step is told, then what pid 1 of a sandbox keeps. A sandbox that
    stands by has one stream, on which its job arrives. ``steps``: those of the request, or what replaces them."""
    writer = keep_open[0]
    try:
        signal.set_wakeup_fd(-1)
        if request.get("standby"):
            keep_open, streams = [*keep_open, *streams], _nothing()
        kept = plan.place_descriptors(streams, keep_open, leave_open)
        writer = kept[0]
        steps = list(request["plan"]) if steps is None else steps
        _carry_out(request, steps, kept)
    except OSError as error:
        os.write(writer, wire.failure("descriptors", error.errno or 0, str(error)))
    finally:
        os._exit(127)


def fail(failed: plan.StepFailed, writer: int) -> NoReturn:
    """Never returns."""
    try:
        os.write(writer, wire.failure(failed.step, failed.errno, failed.problem))
    finally:
        os._exit(127)


def _carry_out(request: VisitRequest, steps: list[Step], kept: Sequence[int]) -> None:
    try:
        if request.get("witness") and not request.get("contained"):
            observe.keep_door(kept[1])
        if request.get("contained"):
            _prepare_building(*kept[1:4], certificates=request.pop("certificates", b""))
        if request.get("standby"):
            _prepare_waiting(request, steps, kept)
        plan.execute(steps, ENDINGS)
    except plan.StepFailed as failed:
        fail(failed, kept[0])


def _nothing() -> list[int]:
    """Streams of a process that waits for its real ones."""
    return [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)] * 3


def _prepare_waiting(request: VisitRequest, steps: list[Step], kept: Sequence[int]) -> None:
    def forget() -> None:
        for named in (request.get("heard", {}), request):  # both name what is hidden, and nobody reads them again
            dict.clear(named)  # type: ignore[arg-type]
        steps.clear()
        for drop in FORGET:
            drop()

    Waiting.problems, Waiting.post = kept[0], kept[-1]
    Waiting.forget = forget
