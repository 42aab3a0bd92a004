"""PROCESS: a separate session with resource limits and a watchdog. Needs nothing but POSIX.

It bounds what a program uses and ends its whole tree. By itself it does not hide anything: the program has the
caller's user, files and network; where a policy names paths, walls are put up (``backends/walled.py``). The two levels
that run a job as a plain child process, this one and ``unsafe``, differ in one table.
"""

from __future__ import annotations

import os
import sys
from _collections_abc import Callable, Mapping

from ringfence.backends.facts import Lack
from ringfence.backends.forkers import FOLDER_KEEPERS, SPAWNER, FromMould
from ringfence.backends.led_visit import LedVisit, PythonJobs, order_of
from ringfence.backends.scratch import Scratch
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.limits import LIMIT_OF, IsolationLevel
from ringfence.model.outcome import Changes, Enforcement
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.posix import rlimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.checkpoint.transaction import Transaction
    from ringfence.monitor.source import Source

_UMASK = 0o022
_SIGKILL = 9
_NOT_HERE = {
    "cpu_share": ("cgroups", "use isolation strict, which holds it with cpu.max"),
    "io": ("cgroups", "use isolation strict, which holds it with io.max"),
    "network": ("a network namespace or seccomp", "use isolation strict"),
    "syscalls": ("seccomp", "use isolation strict"),
}
MECHANISMS: Mapping[str, tuple[str, str]] = {
    "wall_time": ("deadline", "the whole tree is killed at the deadline"),
    "cpu_time": ("RLIMIT_CPU and watchdog", "a process by the kernel, the tree a second later"),
    "memory": ("RLIMIT_AS and watchdog", "address space of a process, resident memory of the tree"),
    "pids": ("watchdog", "tasks of the tree, looked at every 25 ms; RLIMIT_NPROC as a net under it"),
    "nofile": ("RLIMIT_NOFILE", "per process"),
    "output": ("pipe reader", "each stream"),
    "disk": ("watchdog", "bytes written to storage by the tree, looked at every 25 ms; not what fallocate reserves"),
    "file_size": ("RLIMIT_FSIZE", "each file; not what fallocate reserves behind its end"),
}
FILTERED: Mapping[str, tuple[str, str]] = {
    "disk": ("watchdog", "bytes written to storage by the tree, looked at every 25 ms; none can be reserved unwritten"),
    "file_size": ("RLIMIT_FSIZE", "each file; nothing can be reserved behind its end"),
}
"""What a filter makes of them."""


class ProcessBackend:
    """Runs the job as an ordinary child in a session of its own."""

    level = IsolationLevel.PROCESS

    def transaction_kind(self) -> str:
        return "snapshot"

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        if os.name != "posix":
            return tuple(_windows_lack(name) for name in policy.requested())
        asked, walls = policy.requested(), _walls(policy)
        missing = [_not_here(name) for name in asked if name in _NOT_HERE and not (walls and name in walls.WALLS)]
        missing += walls.lacks(policy, walls.look()) if walls else ()
        if sys.platform != "linux" and "disk" in asked:
            missing.append(Lack(capability="disk", missing="/proc/<pid>/io", fix="run on Linux"))
        return (*missing, *beyond_hard_limits(policy))

    def open(self, policy: SandboxPolicy) -> ProcessBox:
        lacking = {lack.capability: lack for lack in self.lacks(policy)}
        walls = _walls(policy)
        if walls:
            box: ProcessBox = walls.open_box(policy, lacking)
            return box
        return ProcessBox(policy, enforcement_table(policy, MECHANISMS, lacking), plan_limits)


def _walls(policy: SandboxPolicy) -> Any:
    """The module that puts them up, where the policy asks for them; loaded only then."""
    if not (policy.readable_paths or policy.writable_paths or policy.hidden_paths):
        return None
    from ringfence.backends import walled

    return walled


def enforcement_table(
    policy: SandboxPolicy, mechanisms: Mapping[str, tuple[str, str]], lacking: Mapping[str, Lack]
) -> dict[str, Enforcement]:
    """What becomes of every capability that the policy asks for."""
    return entries(policy.requested(), mechanisms, lacking)


def entries(
    asked: Mapping[str, object], mechanisms: Mapping[str, tuple[str, str]], lacking: Mapping[str, Lack]
) -> dict[str, Enforcement]:
    """What becomes of each of these capabilities."""
    table = {}
    for name, requested in asked.items():
        if name in lacking:
            lack = lacking[name]
            entry = Enforcement(
                requested=requested, applied=False, mechanism="none",
                details=f"missing: {lack.missing}; to have it: {lack.fix}",
            )  # fmt: skip
        else:
            mechanism, details = mechanisms[name]
            entry = Enforcement(requested=requested, applied=True, mechanism=mechanism, details=details)
        table[name] = entry
    return table


def _not_here(name: str) -> Lack:
    missing, fix = _NOT_HERE[name]
    return Lack(capability=name, missing=missing, fix=fix)


def beyond_hard_limits(policy: SandboxPolicy) -> tuple[Lack, ...]:
    """What this process itself may not grant."""
    return tuple(_over(*row) for row in rlimits.beyond_hard_limit(policy.numbers()))


def _over(capability: str, name: str, hard: int) -> Lack:
    flag = LIMIT_OF[capability].flag
    return Lack(
        capability=capability,
        missing=f"room under this process' hard {name} of {hard}",
        fix=f"ask for less with {flag}, or raise the hard limit before starting (ulimit -H)",
    )


def _windows_lack(name: str) -> Lack:
    return Lack(capability=name, missing="a POSIX system", fix="run on Linux or macOS")


def plan_limits(policy: SandboxPolicy) -> list[tuple[object, ...]]:
    """The rlimit steps of the plan, in the order of the table."""
    asked = policy.numbers()
    for capability, _, _ in rlimits.beyond_hard_limit(asked):
        del asked[capability]  # the host's own hard limit is below it and stays in force
    return [("rlimit", *row) for row in rlimits.rows(asked, _host_tasks())]


def _host_tasks() -> int:
    if sys.platform == "linux":
        from ringfence.linux import procfs

        return procfs.task_count()
    return 0


class ProcessBox:
    """A box that is only a folder and a plan; each visit is led by a process of its own."""

    def __init__(
        self,
        policy: SandboxPolicy,
        enforced: Mapping[str, Enforcement],
        limit_steps: Callable[[SandboxPolicy], list[tuple[object, ...]]],
    ) -> None:
        self.policy = policy
        self.enforced = enforced
        self._limit_steps = limit_steps
        self._scratch = Scratch()
        self._waiting: LedVisit | None = None
        self._visited: LedVisit | None = None
        self._place = ""
        self._keeper: LedVisit | None = None
        """Of a living box: who clears up when the caller is killed."""
        self._visits: tuple[LedVisit, ...] = ()
        """Those to the living box that may still run."""
        self._transaction: Transaction | None = None

    def work_on(self, transaction: Transaction) -> None:
        """In working copies; the first one's is where jobs begin unless they say otherwise."""
        if transaction.kind != "snapshot":
            raise UsageError(f"a transaction of kind {transaction.kind} needs isolation strict",
                             hint="create it with the kind that transaction_kind(policy) tells")  # fmt: skip
        self._transaction = transaction
        self._place = transaction.place(transaction.bases[0])

    def live(self, workspace: str | None) -> None:
        """Visits from now on go to this folder. It is a place for files; what a visit leaves running ends with it."""
        self._scratch.name_living()
        self._keeper = LedVisit({"cgroups": [], **self._cleared()}, (), FOLDER_KEEPERS)
        if self._transaction is not None:
            self._place = self._transaction.working_copy(workspace) if workspace else self._place
        else:
            self._place = workspace or self._scratch.prepare()
        if not os.path.isdir(self._place):
            raise UsageError(f"{workspace}: no such folder", hint="the working folder must exist")

    def ended(self) -> bool:
        return False

    def source(self) -> Source:
        """Of all visits: each has a leader of its own."""
        from ringfence.monitor.source import Source

        def leaders() -> tuple[int, ...]:
            return tuple(visit.leader for visit in self._visits if visit.leader)

        return Source(leaders=leaders, terminate=self._end_visits)

    def _end_visits(self) -> None:
        for visit in self._visits:
            visit.signal(_SIGKILL)

    def _keep(self, visit: LedVisit) -> None:
        if self._place:
            self._visits = (*(known for known in self._visits if known.fileno() >= 0), visit)

    def start_steps(self, steps: list[tuple[object, ...]], streams: tuple[int, ...]) -> LedVisit:
        return LedVisit(self._request([("folder", self._place), *steps]), streams, SPAWNER)

    def start(self, job: Job, streams: tuple[int, ...]) -> LedVisit:
        job, folder = self._placed(job)
        if self._waiting is not None:
            return self._send_order(job, folder, streams)
        steps: list[tuple[object, ...]] = [("terminal",)] if job.terminal else []
        steps += [("folder", folder), ("exec", list(job.argv), self._environment(job))]
        visit = LedVisit(self._request(steps), streams, SPAWNER)
        self._keep(visit)
        return visit

    def _placed(self, job: Job) -> tuple[Job, str]:
        """The job, and the folder that it begins in, with its files."""
        if self._transaction is not None:
            place = self._transaction.working_copy(job.cwd) if job.cwd else self._place
            job = replace(job, cwd=place)
        folder = self._scratch.prepare(job)
        return job, self._place if self._place and job.cwd is None else folder

    def stand_by(self, python: PythonJobs) -> LedVisit:
        """Do now what does not depend on the job; the next one starts at once."""
        folder = self._scratch.prepare()
        steps: list[tuple[object, ...]] = [("folder", folder), ("await job", True)]
        forker = FromMould({"template": [], "owner": [], "python": python.as_data()})
        self._waiting = LedVisit(self._request(steps) | {"standby": True}, (), forker)
        return self._waiting

    def stands(self) -> bool:
        return self._waiting is not None and self._waiting.waits()

    def let_go(self) -> None:
        if self._waiting is not None:
            self._waiting.let_go()

    def _send_order(self, job: Job, folder: str, streams: tuple[int, ...]) -> LedVisit:
        assert self._waiting is not None
        visit, self._waiting = self._waiting, None
        self._visited = visit
        visit.send_order(order_of(replace(job, files={}), folder, self._environment(job)), streams)
        return visit

    def _environment(self, job: Job) -> dict[str, str]:
        return self._scratch.environment(self.policy, job)

    def _request(self, last: list[tuple[object, ...]]) -> dict[str, object]:
        steps: list[tuple[object, ...]] = [("session",), ("umask", _UMASK), ("signals",), ("no new privileges",)]
        # Last, because they bind this process too and exec must still find room.
        steps += [*self._limit_steps(self.policy), *last]
        return {
            "plan": steps,
            "limits": self._watched(),
            "written": [self._scratch.path, *(step[1] for step in last if step[0] == "folder"),
                        *self.policy.writable_paths],
            **({"scratch": ""} if self._keeper else self._cleared()),
        }  # fmt: skip

    def _cleared(self) -> dict[str, object]:
        """What somebody must remove when the caller is gone: of a living box its keeper, else the job's leader."""
        return {"scratch": self._scratch.path}

    def _watched(self) -> dict[str, float]:
        unlimited = dict.fromkeys(("cpu_time", "memory", "pids"), float("inf"))
        numbers = self.policy.numbers()
        return unlimited | {name: numbers[name] for name in numbers if self.enforced[name].applied}

    def changes(self) -> Changes:
        """Without a transaction the job writes the caller's files themselves."""
        return self._transaction.changes() if self._transaction else Changes()

    def commit(self) -> None:
        if self._transaction:
            self._transaction.commit()

    def keep(self, folder: str) -> bool:
        return False

    def close(self) -> str:
        for visit in (self._waiting, self._visited):
            if visit is not None:
                visit.release()
        left = self._scratch.remove()
        if self._keeper is not None:  # last: the caller may be killed in the middle of it
            self._keeper.release()
        return left
