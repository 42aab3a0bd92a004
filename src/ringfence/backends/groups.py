"""The control group of a box: what the policy asks of it, what is missing for that, what it counted.

Chooses limits and directories only; groups are made, written and read back in kernel/cgroup/group.py, which is loaded
when it is first needed. """

from __future__ import annotations

import os
from _collections_abc import Mapping

from ringfence.backends.facts import Report
from ringfence.backends.leader_client import LeaderClient
from ringfence.backends.tables import not_applied
from ringfence.errors import SupervisionError, UnavailableError
from ringfence.model.lack import Lack
from ringfence.model.outcome import Enforcement
from ringfence.model.own import private_place
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.leader_sources import LeaderSource
    from ringfence.kernel.cgroup.group import Cgroup, CgroupLimits
    from ringfence.kernel.cgroup.usage import CgroupEvents
    from ringfence.monitor.source import Source
    from ringfence.transport.report import Note
    from ringfence.transport.request import GroupPaths, StandbyRequest, VisitRequest


def lacks(policy: SandboxPolicy) -> list[Lack]:
    """What is missing for limits that only a group can hold."""
    missing = lack("cpu_share") if policy.cpu_share is not None else []
    if policy.io_bytes_per_s is not None:
        missing += lack("io") or _disk_lack(_written_folders(policy))
    return missing


def lack(capability: str) -> list[Lack]:
    """What keeps a control group from holding this capability here; empty: nothing does."""
    from ringfence.kernel.cgroup import group as cgroups

    missing = cgroups.probe().missing(capability)
    problem = f"a control group ({missing[0]})" if missing else ""
    return [Lack(capability=capability, missing=problem, fix=missing[1])] if missing else []


def _disk_lack(paths: tuple[str, ...]) -> list[Lack]:
    from ringfence.kernel.cgroup import group as cgroups

    missing = cgroups.no_disk(paths)
    return [Lack(capability="io", missing=f"a disk: {missing[0]}", fix=missing[1])] if missing else []


def paths_of(group: Cgroup | None) -> GroupPaths:
    """What a leader needs of the group: where its child is born, and what it removes at the end."""
    if group is None:
        return {"group": "", "enter": [], "cgroups": []}
    return {"group": group.v2_directory, "enter": list(group.enter_paths), "cgroups": list(group.directories)}


def make(policy: SandboxPolicy, *, own_tasks: int = 0) -> Cgroup | None:
    """A group with what the kernel can hold here, and room for tasks of ours; None where it can hold nothing."""
    from ringfence.kernel.cgroup import group as cgroups

    found = cgroups.probe()
    if found.kind == "none":
        return None
    return cgroups.create(_limits(policy, _written_folders(policy), own_tasks), host=found, allow_partial=True)


def _sweep_once() -> None:
    """Remove what callers left behind that were killed together with their leaders; once for each process, after its
    first job, which does not wait for this."""
    from ringfence.kernel.cgroup import group as cgroups

    if os.getpid() in _swept:
        return
    _swept[:] = [os.getpid()]
    try:
        cgroups.sweep()
    except SupervisionError:
        pass  # something in there can't be killed yet: that is no reason to refuse a job


_swept: list[int] = []


def _written_folders(policy: SandboxPolicy) -> tuple[str, ...]:
    """Where the job writes, as far as known before there is a job: the layer, and what the policy names."""
    return (private_place.above(), *filter(os.path.exists, policy.writable_paths))


def _limits(policy: SandboxPolicy, io_paths: tuple[str, ...], own_tasks: int = 0) -> CgroupLimits:
    from ringfence.kernel.cgroup.group import CgroupLimits

    rate = policy.io_bytes_per_s
    return CgroupLimits(mem_bytes=policy.mem_bytes, pids_max=policy.pids_max + own_tasks, cpu_share=policy.cpu_share,
                        read_bytes_per_s=rate, write_bytes_per_s=rate, io_paths=io_paths)  # fmt: skip


def throttle_folders(
    group: Cgroup | None, policy: SandboxPolicy, enforced: Mapping[str, Enforcement], folders: tuple[str, ...]
) -> dict[str, Enforcement]:
    """Limit the bytes per second on the disks under these directories too, which are known only with the job.

    Return what became of it, or nothing if it was not asked for or is refused already.
    """
    if group is None or "io" not in enforced or not enforced["io"].applied:
        return {}
    for missing in _disk_lack(folders):
        if not policy.allow_partial:
            needs = f"{missing.asked} needs {missing.missing}"
            raise UnavailableError(f"isolation strict can't enforce this policy on this host: {needs}", missing=("io",),
                                   hint=missing.fix)  # fmt: skip
        details = f"missing: {missing.missing}; to enable it: {missing.fix}"
        return {"io": not_applied(policy.io_bytes_per_s, details)}
    from ringfence.kernel.cgroup import group as cgroups

    held = cgroups.throttle(group, _limits(policy, folders))
    return {"io": replace(held, requested=policy.io_bytes_per_s)}


class GroupVisit(LeaderClient):
    """A visit whose report is made exact by what the control group counted."""

    def __init__(
        self,
        request: VisitRequest | StandbyRequest,
        streams: tuple[int, ...],
        source: LeaderSource,
        cgroup: Cgroup | None,
        *,
        in_living_box: bool = False,
        own: bool = False,
    ) -> None:
        """``in_living_box``: the group is that of a box in which others are or were, so it counts from now on.
        ``own``: it is this visit's alone, and goes with it."""
        self._cgroup = cgroup
        self._own = own
        self._before = cgroup.events() if in_living_box and cgroup else None
        super().__init__(request, streams, source)

    def events(self) -> tuple[int, int]:
        """How often its group has had a process killed for memory, and refused a task, so far."""
        counted = self._cgroup.events() if self._cgroup else None
        return (counted.oom_kills, counted.pids_hits) if counted else (0, 0)

    def most_memory(self, summed_bytes: int) -> int:
        """The most that a visit to its box can have held; ``summed_bytes``: over the visit's processes."""
        if self._cgroup is None:
            return summed_bytes
        return _most_memory(self._cgroup, self._cgroup.peaks()[0], summed_bytes, is_shared=True)

    def hear(self, attempts: list[Note]) -> None:
        """What the recorder of a visit to this box told."""

    def network(self, *, settled: bool = False) -> tuple[int, str]:
        """Bytes through the gateway so far, and why it is gone; nothing if there is no gateway. ``settled``: including
        what processes that have just ended leave behind."""
        return 0, ""

    def hear_network(self, within_s: float) -> bool:
        """Hear what the gateway has decided by now; return whether it has told all of it."""
        return True

    def end_network(self) -> None:
        """No process is inside any more: hear the gateway's last reports."""

    def source(self) -> Source:
        return replace(super().source(), groups=self._cgroup.places if self._cgroup else {})

    def release(self) -> None:
        super().release()
        if self._cgroup is None:
            return
        if self._own:
            self._cgroup.remove()
        _sweep_once()

    def receive(self) -> Report | None:
        report = super().receive()
        return report if report is None or self._cgroup is None else _counted(report, self._cgroup, self._before)


def _counted(report: Report, group: Cgroup, before: CgroupEvents | None) -> Report:
    events = group.events()
    memory, processes = group.peaks()
    return replace(
        report,
        cgroup_oom_kills=0 if before else events.oom_kills,
        box_oom_kills=events.oom_kills - before.oom_kills if before else 0,
        cgroup_pids_hits=events.pids_hits - (before.pids_hits if before else 0),
        peak_memory_bytes=_most_memory(group, memory, report.peak_memory_bytes, is_shared=before is not None),
        processes=max(processes, report.processes),
    )


def _most_memory(group: Cgroup, counted: int, summed_bytes: int, *, is_shared: bool) -> int:
    """What the group ``counted``. A sum over processes counts a page once for each that maps it, so it may come to
    many times the limit. It is used where the group's peak is not this job's own (``is_shared``) or is not kept (v2
    before Linux 5.19), and then only up to what the group has held or may hold."""
    if counted and not is_shared:
        return counted
    limit = group.applied.get("memory")
    may_hold = int(str(limit.requested)) if limit and limit.applied else summed_bytes
    return min(summed_bytes, counted or may_hold)
