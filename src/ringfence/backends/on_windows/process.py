"""PROCESS on Windows: a job object with limits, and a thread that watches it. Needs nothing but Windows.

It bounds what a program uses and ends its whole tree. It hides nothing: the program has the caller's user, files and
network, but none of the caller's privileges.
"""

from __future__ import annotations

import os
import sys
from _collections_abc import Callable, Mapping

from ringfence.backends.closing import Closing
from ringfence.backends.facts import PlainBox, Traits
from ringfence.backends.on_windows.scratch import WindowsScratch
from ringfence.backends.on_windows.visit import JobVisit, measured
from ringfence.backends.scratch import place_on
from ringfence.backends.tables import (
    LOW_INTEGRITY,
    ON_WINDOWS,
    PLAIN,
    UNHELD_ON_WINDOWS,
    Mechanisms,
    entries,
    lacks_of_none,
)
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model import windows_paths as paths
from ringfence.model.job import Job
from ringfence.model.lack import NO_EGRESS, Lack
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Changes, Enforcement, Mechanism
from ringfence.model.policy import NO_NETWORK, SandboxPolicy
from ringfence.model.record import replace
from ringfence.windows import command_line, integrity
from ringfence.windows.host import Host, look
from ringfence.windows.job_limits import job_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ringfence.backends.contract import Steps
    from ringfence.backends.facts import PythonJobs
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.monitor.source import Source

_ENOENT = 2
_TRANSFER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "transfer.py")
_NO_STANDBY = "there are no standby interpreters on Windows"
_ELSEWHERE = "run on Linux, under isolation strict"
NOT_HERE = {
    "file_size": "a limit for the size of files: Windows has none",
    "io": "a limit for the speed of reads and writes",
    "network": "a way to keep a process from the network: job objects have none",
    "syscalls": "a filter for system calls: Windows has none",
    "readable_paths": "a way to hide files: job objects have none",
    "writable_paths": "a way to keep files from being written: job objects have none",
    "hidden_paths": "a way to hide files: job objects have none",
}
"""What job objects can't hold, ever."""


def mechanisms(host: Host) -> Mechanisms:
    """What holds what on this Windows, which was tried."""
    held = {"cpu_time": host.tells, "memory": host.memory, "pids": host.processes}
    unheld = {name: row for name, row in UNHELD_ON_WINDOWS.items() if not held[name]}
    return {**ON_WINDOWS, **unheld, **(LOW_INTEGRITY if host.integrity else {})}


def lacks_of(
    policy: SandboxPolicy, host: Host, is_low: Callable[[str], bool] | None = None
) -> tuple[Lack, ...]:  # fmt: skip
    """What job objects, or those of this Windows, can't hold of a policy. ``is_low``: whether a directory is labelled;
    absent: Windows is asked."""
    is_low = is_low or integrity.is_low
    if host.problem or not host.jobs:
        missing = f"job objects that end their processes: {host.problem or 'closing one ends nobody'}"
        return tuple(Lack(capability=name, missing=missing, fix="use Windows 8 or later", whole=True)
                     for name in policy.requested())  # fmt: skip
    asked = policy.requested()
    found = [_not_here(name, policy) for name in asked if name in NOT_HERE
             and not (name == "writable_paths" and host.integrity)]  # fmt: skip
    if host.integrity:
        found += [_unlabelled(path) for path in policy.writable_paths if not is_low(path)][:1]
    if "cpu_share" in asked and not host.cpu_share:
        missing = "CPU rate control of job objects"
        found.append(Lack(capability="cpu_share", missing=missing, fix="use Windows 8 or later, not Wine"))
    if "cpu_time" in asked and not host.times:
        missing = "the processor times of other processes"
        found.append(Lack(capability="cpu_time", missing=missing, fix="use Windows, not Wine"))
    if "nofile" in asked and not host.handles:
        found.append(Lack(capability="nofile", missing="counters of open handles", fix="use Windows, not Wine"))
    if "disk" in asked and not host.counts_writes:
        found.append(Lack(capability="disk", missing="counters of what a process writes", fix="use Windows, not Wine"))
    return tuple(found)


def _unlabelled(path: str) -> Lack:
    """Only the caller may give the label: it stays on the directory, and any program of low integrity may write there.
    The line is meant to be pasted, so it leaves out a name that a shell would not read as a plain name."""
    named = f'"{path}"' if all(sign.isalnum() or sign in " \\/:._-" for sign in path) else "FOLDER"
    return Lack(capability="writable_paths", missing=f"a low integrity label on {path}",
                fix=f'icacls {named} /setintegritylevel "(OI)(CI)low"')  # fmt: skip


def _not_here(name: str, policy: SandboxPolicy) -> Lack:
    if name == "network" and policy.network_rule != NO_NETWORK:
        return NO_EGRESS
    return Lack(capability=name, missing=NOT_HERE[name], fix=_ELSEWHERE)


class WindowsBackend:
    """Runs the job in a job object."""

    level = IsolationLevel.PROCESS
    traits = Traits()

    def transaction_kind(self) -> str:
        return "snapshot"

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        return lacks_of(policy, look())

    def open(self, policy: SandboxPolicy) -> WindowsBox:
        table = entries(policy.requested(), mechanisms(look()), self.lacks(policy))
        return WindowsBox(policy, table)


class WindowsUnsafeBackend:
    """NONE: only the deadline and the output are bounded."""

    level = IsolationLevel.NONE
    traits = Traits(isolates=False)

    def transaction_kind(self) -> str:
        return "snapshot"

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        return lacks_of_none(policy, "use isolation process")

    def open(self, policy: SandboxPolicy) -> WindowsBox:
        return WindowsBox(policy, entries(policy.requested(), PLAIN, self.lacks(policy)), traits=self.traits)


class WindowsBox(PlainBox):
    """A box that is a directory and a policy; each visit has a job object of its own."""

    def __init__(
        self, policy: SandboxPolicy, enforced: Mapping[str, Enforcement], traits: Traits = WindowsBackend.traits
    ) -> None:
        self.policy = policy
        self.traits = traits
        self.enforced: Mapping[str, Enforcement] = enforced
        self.network_limits: dict[str, float] = {}
        self._low = "writable_paths" in enforced and Mechanism.LOW_INTEGRITY in enforced["writable_paths"].by
        self._scratch = WindowsScratch(low=self._low)
        self._closing = Closing()
        self._closing.add(self._scratch.remove)
        self._visits: tuple[JobVisit, ...] = ()
        self._transaction: Transaction | None = None
        self._place = ""

    def work_on(self, transaction: Transaction) -> None:
        """In working copies; the first one's is where jobs begin unless they say otherwise."""
        self._place = place_on(transaction)
        self._transaction = transaction
        for base in transaction.bases if self._low else ():
            integrity.label_tree(os.path.normpath(transaction.place(base)))

    def live(self, workspace: str | None) -> None:
        """Visits from now on go to this directory. It is a place for files; what a visit leaves running ends with
        it."""
        self._place = self._scratch.living_place(workspace, self._transaction, self._place)

    def ended(self) -> bool:
        return False

    def source(self) -> Source:
        from ringfence.monitor.source import Source

        return Source(measure=lambda: measured(self._visits), terminate=self._end_visits)

    def _end_visits(self) -> None:
        for visit in self._visits:
            visit.signal(9)

    def start_steps(self, steps: Steps, streams: tuple[int, ...]) -> JobVisit:
        """A program of ours, as a job of the box: it reaches what a job reaches."""
        ((kind, *named),) = steps
        name, *most = named
        path = str(name)
        if paths.kind(path) == "relative":
            why = next(filter(None, map(paths.problem, path.replace("/", "\\").split("\\"))), "")
            if why:
                raise UsageError(f"{path!r} can't be a file on Windows: {why}")
        else:
            path = paths.checked(path)
        return self.start(Job(argv=(sys.executable, "-I", "-S", _TRANSFER, str(kind), path, *map(str, most))), streams)

    def start(self, job: Job, streams: tuple[int, ...]) -> JobVisit:
        if job.terminal:
            raise UnavailableError("a job has no terminal of its own on Windows", missing=("a terminal",),
                                   hint="redirect its input or output")  # fmt: skip
        if job.python:
            raise UnavailableError(_NO_STANDBY, missing=("fork",))
        job, folder = self._placed(job)
        environment = self._scratch.environment(self.policy, job)
        search = next((value for name, value in environment.items() if name.upper() == "PATH"), "")
        program = command_line.program(job.argv[0], folder, search, os.path.isfile)
        if not program:
            raise SetupError("exec", f"No such file or directory: {job.argv[0]}", errno=_ENOENT,
                             hint="check that it is installed, and on the PATH")  # fmt: skip
        command = (program, command_line.command_line(job.argv), command_line.environment_block(environment), folder)
        limits = job_limits(self._held(), os.cpu_count() or 1)
        visit = JobVisit(command, streams, limits, self._watched(), low=self._low)
        self._visits = (*(known for known in self._visits if known.filenos()), visit)
        return visit

    def prewarm(self, python: PythonJobs) -> NoReturn:
        raise UnavailableError(_NO_STANDBY, missing=("fork",))

    def is_ready(self) -> bool:
        return False

    def let_go(self) -> None:
        return

    def _numbers(self) -> dict[str, float]:
        """What is in force of what was asked."""
        return {name: value for name, value in self.policy.numbers().items() if self.enforced[name].applied}

    def _held(self) -> dict[str, float]:
        """What the job object is told, including limits that it may not hold here, as a safety net."""
        return {name: value for name, value in self._numbers().items()
                if {Mechanism.JOB_OBJECT, Mechanism.WATCHDOG} & set(self.enforced[name].by)}  # fmt: skip

    def _watched(self) -> dict[str, float]:
        wall = {"wall_time": self.policy.wall_time_s}
        return wall | {name: value for name, value in self._numbers().items()
                       if {Mechanism.WATCHDOG, Mechanism.DEADLINE} & set(self.enforced[name].by)}  # fmt: skip

    def _placed(self, job: Job) -> tuple[Job, str]:
        """The job, and the directory that it begins in, with its files."""
        if self._transaction is not None:
            place = self._transaction.working_copy(job.cwd) if job.cwd else self._place
            job = replace(job, cwd=place)
        folder = self._scratch.prepare(job)
        return job, os.path.normpath(self._place if self._place and job.cwd is None else folder)

    def changes(self) -> Changes:
        """Without a transaction the job writes the caller's files directly."""
        return self._transaction.changes() if self._transaction else Changes()

    def commit(self) -> None:
        if self._transaction:
            self._transaction.commit()

    def keep(self, folder: str) -> bool:
        return False

    def close(self) -> str:
        for visit in self._visits:
            visit.close()
        return self._closing.close()
