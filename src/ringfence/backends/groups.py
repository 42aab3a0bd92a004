"""The control group of a box: made where the kernel has one for us, and what it counted of a visit."""

from __future__ import annotations

from ringfence.backends.facts import Lack, Report
from ringfence.backends.led_visit import LedVisit
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.led_visit import Forker
    from ringfence.linux.cgroups import Cgroup


def lack(capability: str) -> list[Lack]:
    """What keeps a control group from holding this capability here; empty: nothing does."""
    from ringfence.linux import cgroups

    missing = cgroups.probe().missing(capability)
    return [Lack(capability=capability, missing=missing[0], fix=missing[1])] if missing else []


def make(policy: SandboxPolicy, *, own_tasks: int = 0) -> Cgroup | None:
    """A group with what the kernel can hold here, and room for tasks of ours; None where it can hold nothing."""
    from ringfence.linux import cgroups

    found = cgroups.probe()
    if found.kind == "none":
        return None
    limits = cgroups.CgroupLimits(
        mem_bytes=policy.mem_bytes, pids_max=policy.pids_max + own_tasks, cpu_share=policy.cpu_share
    )
    return cgroups.create(limits, host=found, allow_partial=True)


class GroupVisit(LedVisit):
    """A visit whose report is made exact by what the control group counted."""

    def __init__(
        self, request: dict[str, object], streams: tuple[int, ...], forker: Forker, cgroup: Cgroup | None
    ) -> None:
        self._cgroup = cgroup
        super().__init__(request, streams, forker)

    def receive(self) -> Report | None:
        report = super().receive()
        return report if report is None or self._cgroup is None else _counted(report, self._cgroup)


def _counted(report: Report, cgroup: Cgroup) -> Report:
    events, (memory_bytes, processes) = cgroup.events(), cgroup.peaks()
    return replace(
        report,
        cgroup_oom_kills=events.oom_kills,
        cgroup_pids_hits=events.pids_hits,
        peak_memory_bytes=max(memory_bytes, report.peak_memory_bytes),
        processes=max(processes, report.processes),
    )
