"""PROCESS: a separate session with resource limits and a watchdog. Needs nothing but POSIX.

It bounds what a program uses and ends its whole tree. By itself it does not hide anything: the program has the
caller's user, files and network; where a policy names paths, walls are put up (``backends/walls.py``). Every box whose
jobs are plain child processes is a ``ProcessBox``: of this level, of ``unsafe``, and what is left of strict.
"""

from __future__ import annotations

import sys
from _collections_abc import Callable, Mapping
from types import MappingProxyType

from ringfence.backends.closing import Closing
from ringfence.backends.facts import PlainBox, PythonJobs, Traits
from ringfence.backends.leader_client import LeaderClient, job_order
from ringfence.backends.leader_sources import SCRATCH_CLEANERS, SPAWNER, ZygoteSource
from ringfence.backends.scratch import LANGUAGE, Scratch, place_on
from ringfence.backends.tables import PROCESS, beyond_hard_limits, entries, with_group
from ringfence.kernel import rlimits
from ringfence.model.job import Job
from ringfence.model.lack import NO_EGRESS, Lack
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Changes, Enforcement, Mechanism
from ringfence.model.policy import NO_NETWORK, PATH_FIELDS, SandboxPolicy
from ringfence.model.record import replace

if sys.platform == "linux":
    from ringfence.sandbox import filters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Steps, Walls
    from ringfence.backends.leader_sources import LeaderSource
    from ringfence.backends.tables import Mechanisms
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.kernel.cgroup.group import Cgroup
    from ringfence.monitor.source import Source
    from ringfence.transport.request import ClearRequest, Step, VisitRequest

    Rows = Callable[[SandboxPolicy], tuple[Mechanisms, tuple[Lack, ...]]]
    MakeWalls = Callable[[SandboxPolicy], Walls]

_UMASK = 0o022
_SIGKILL = 9
# A job of root, or of a user to whom the group was delegated, can leave its group. Wide enough that the group always
# acts first on a job that stays in it: it counts other pages than the watchdog.
_NET = 1.25
_NOT_HERE = {
    "cpu_share": ("cpu.max of a control group, which this level does not set", "use isolation strict"),
    "io": ("io.max of a control group, which this level does not set", "use isolation strict"),
    "network": ("a network namespace", "use isolation strict, which makes one"),
    "syscalls": ("a seccomp filter, which this level does not have", "use isolation strict"),
}


class ProcessBackend:
    """Runs the job as an ordinary child in a session of its own."""

    level = IsolationLevel.PROCESS
    traits = Traits()

    def transaction_kind(self) -> str:
        return "snapshot"

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        asked, (walled, unwalled) = policy.requested(), _wall_rows(policy)
        told = {*walled, *(lack.capability for lack in unwalled)}
        missing = [*(_not_here(name, policy) for name in asked if name in _NOT_HERE and name not in told), *unwalled]
        if sys.platform != "linux" and "disk" in asked:
            missing.append(Lack(capability="disk", missing="/proc/<pid>/io", fix="run on Linux"))
        return (*missing, *beyond_hard_limits(policy))

    def open(self, policy: SandboxPolicy) -> ProcessBox:
        lacks, (rows, _) = self.lacks(policy), _wall_rows(policy)
        if rows:
            return _walled(policy, rows, lacks)
        return ProcessBox(policy, entries(policy.requested(), PROCESS, lacks), group=make_group(policy))


def _landlock() -> tuple[Rows, MakeWalls]:
    from ringfence.backends import walls

    return walls.rows, walls.make


def _seatbelt() -> tuple[Rows, MakeWalls]:
    from ringfence.backends.on_macos import walls

    return walls.rows, walls.SeatbeltWalls


_WALLS_OF = {"linux": (PATH_FIELDS, _landlock)}
"""By platform: which capabilities ask for walls; and, loaded only then, what these enforce, and what makes them."""
_OTHER_WALLS = ((*PATH_FIELDS, "network"), _seatbelt)


def _wall_rows(policy: SandboxPolicy) -> tuple[Mechanisms, tuple[Lack, ...]]:
    """What walls enforce of the policy, and what they lack; nothing if the policy asks for no walls."""
    fields, load = _WALLS_OF.get(sys.platform, _OTHER_WALLS)
    if policy.requested().keys().isdisjoint(fields):
        return {}, ()
    rows, _ = load()
    return rows(policy)


def _walled(policy: SandboxPolicy, rows: Mechanisms, lacks: tuple[Lack, ...]) -> ProcessBox:
    unfiltered = {each.capability: "default" for each in lacks if each.capability == "syscalls"}
    table = entries(unfiltered | policy.requested(), {**PROCESS, **rows}, lacks)
    _, make = _WALLS_OF.get(sys.platform, _OTHER_WALLS)[1]()
    walls = make(policy)
    return ProcessBox(policy, table, group=make_group(policy), walls=walls)


def make_group(policy: SandboxPolicy) -> Cgroup | None:
    """A control group for the memory and the tasks of the tree; None if there can't be one."""
    if sys.platform != "linux":
        return None
    from ringfence.backends import groups

    if policy.cpu_share is not None or policy.io_bytes_per_s is not None:  # not held at this level
        policy = policy.with_changes(cpu_share=None, io_bytes_per_s=None)
    return groups.make(policy)


def _not_here(name: str, policy: SandboxPolicy) -> Lack:
    if name == "network" and policy.network_rule != NO_NETWORK:
        return NO_EGRESS
    missing, fix = _NOT_HERE[name]
    return Lack(capability=name, missing=missing, fix=fix, by_level=True)


def _plan_limits(policy: SandboxPolicy) -> Steps:
    """The rlimit steps of the plan, in the order of the table."""
    asked = policy.numbers()
    for capability, _, _ in rlimits.beyond_hard_limit(asked):
        del asked[capability]  # the host's own hard limit is below it and stays in force
    return [("rlimit", *row) for row in rlimits.rows(asked, _host_tasks() + rlimits.NPROC_SLACK)]


def _host_tasks() -> int:
    if sys.platform == "linux":
        from ringfence.kernel.proc import procfs

        return procfs.task_count()
    return 0


def _sees(enforced: Mapping[str, Enforcement]) -> bool:
    """Whether a limit of each process is in force here, and its refusal can be seen."""
    return sys.platform == "linux" and enforced["nofile"].applied


def _entered(steps: list[Step]) -> list[str]:
    """The directories that these steps go to."""
    return [str(argument) for name, *arguments in steps if name == "chdir" for argument in arguments]
class NoWalls:
    """For jobs that have the caller's files and network."""

    shares: tuple[Step, ...] = ()
    before_transfer: tuple[Step, ...] = ()
    environment: Mapping[str, str] = MappingProxyType({})

    def work_on(self, transaction: Transaction) -> dict[str, Enforcement]:
        return {}

    def admit(self, job: Job) -> None:
        return

    def refuse_standby(self) -> None:
        return

    def steps(self, job: Job, folder: str, scratch: Scratch, limits: Steps) -> Steps:
        return [("chdir", folder), *limits]

    def through(self, last: Step, folder: str, scratch: Scratch) -> Step:
        return last

    def copies(self) -> list[str]:
        return []


_TRANSFER = Job(argv=(sys.executable,))
"""Stands for a visit that is not a program."""


class ProcessBox(PlainBox):
    """A box that is a directory, a plan and perhaps walls; each visit is led by a process of its own."""

    limits_of_a_visit = frozenset({"operations"} if sys.platform == "linux" else ())

    def __init__(
        self,
        policy: SandboxPolicy,
        enforced: Mapping[str, Enforcement],
        *,
        group: Cgroup | None = None,
        walls: Walls | None = None,
        shares_group: bool = False,
        limited: bool = True,
        traits: Traits = ProcessBackend.traits,
    ) -> None:
        """``group`` becomes the box's own; ``shares_group``: it is held as a whole, by all visits together.
        ``limited``: each process has its limits."""
        self.policy = policy
        self.traits = traits
        self._group = group
        self.enforced: Mapping[str, Enforcement] = with_group(enforced, group)
        self.network_limits: dict[str, float] = {}
        self._walls: Walls = walls or NoWalls()
        self._shares_group = shares_group
        self._limited = limited
        self._scratch = Scratch()
        self._closing = Closing()
        self._closing.add(self._scratch.remove)
        if group is not None:
            self._closing.add(group.remove)
        self._waiting: LeaderClient | None = None
        self._place = ""
        self._supervisor: LeaderClient | None = None
        """For a living box: what clears up when the caller is killed."""
        self._visits: tuple[LeaderClient, ...] = ()
        """Visits to the living box that may still run."""
        self._transaction: Transaction | None = None

    def work_on(self, transaction: Transaction) -> None:
        """In working copies; the first one's is where jobs begin unless they say otherwise."""
        self._place = place_on(transaction)
        self._transaction = transaction
        self.enforced = {**self.enforced, **self._walls.work_on(transaction)}

    def live(self, workspace: str | None) -> None:
        """Visits from now on go to this directory. It is a place for files; what a visit leaves running ends with
        it."""
        self._scratch.name()
        self._supervisor = LeaderClient(self._cleared(self._group), (), SCRATCH_CLEANERS)
        self._closing.add(self._supervisor.release, last=True)  # the caller may be killed in the middle of the rest
        self._place = self._scratch.living_place(workspace, self._transaction, self._place)

    def ended(self) -> bool:
        return False

    def source(self) -> Source:
        """Return the source of all visits: each has a leader of its own."""
        from ringfence.monitor.source import Source

        def leaders() -> tuple[int, ...]:
            return tuple(visit.leader for visit in self._visits if visit.leader)

        shared = self._group if self._shares_group else None
        return Source(leaders=leaders, terminate=self._end_visits, groups=shared.places if shared else {})

    def _end_visits(self) -> None:
        for visit in self._visits:
            visit.signal(_SIGKILL)

    def _keep(self, visit: LeaderClient) -> None:
        if self._place:
            self._visits = (*(known for known in self._visits if known.filenos()), visit)

    def start_steps(self, steps: Steps, streams: tuple[int, ...]) -> LeaderClient:
        self._scratch.prepare()
        inside = self._inside(_TRANSFER, self._place)
        last = [self._walls.through(step, self._place, self._scratch) for step in steps]
        return self._lead([*self._walls.before_transfer, *inside, *last], streams)

    def start(self, job: Job, streams: tuple[int, ...]) -> LeaderClient:
        return self.start_limited(job, streams, {})

    def start_limited(self, job: Job, streams: tuple[int, ...], limits: Mapping[str, float]) -> LeaderClient:
        """A job that is held to these limits beside the policy's."""
        if job.cwd and self._group is not None:
            from ringfence.backends import groups

            self.enforced = {
                **self.enforced, **groups.throttle_folders(self._group, self.policy, self.enforced, (job.cwd,))
            }  # fmt: skip
        self._walls.admit(job)
        job, folder = self._placed(job)
        if self._waiting is not None:
            return self._send_order(job, folder, streams)
        first: Steps = [("terminal",)] if job.terminal else []
        run = self._walls.through(("exec", list(job.argv), self._environment(job)), folder, self._scratch)
        return self._lead([*first, *self._inside(job, folder), run], streams, limits)

    def _inside(self, job: Job, folder: str) -> Steps:
        """A memory limit per process refuses what a group for all of them would allow; with a group there is none."""
        limits = [*self._walls.shares, *_plan_limits(self.policy)] if self._limited else []
        limits = [step for step in limits if rlimits.MEMORY not in step or not self._by_group("memory")]
        return self._walls.steps(job, folder, self._scratch, limits)

    def _lead(
        self, steps: Steps, streams: tuple[int, ...], limits: Mapping[str, float] = MappingProxyType({})
    ) -> LeaderClient:
        visit = self._visit(steps, streams, SPAWNER, limits=limits)
        self._keep(visit)
        return visit

    def _visit(
        self, steps: Steps, streams: tuple[int, ...], source: LeaderSource, *, standby: bool = False,
        limits: Mapping[str, float] = MappingProxyType({}),
    ) -> LeaderClient:  # fmt: skip
        """In a living box each visit has a group of its own, so that one visit's acts are not blamed on another; or all
        share the box's."""
        if self._group is None:
            return LeaderClient(self._request(steps, limits) | {"standby": standby}, streams, source)
        from ringfence.backends import groups

        lives = self._supervisor is not None
        own = lives and not self._shares_group
        group = make_group(self.policy) if own else self._group
        request = self._request(steps, limits, group) | {"standby": standby}
        return groups.GroupVisit(request, streams, source, group, own=own, in_living_box=lives and self._shares_group)

    def _placed(self, job: Job) -> tuple[Job, str]:
        """The job, and the directory that it begins in, with its files."""
        if self._transaction is not None:
            place = self._transaction.working_copy(job.cwd) if job.cwd else self._place
            job = replace(job, cwd=place)
        folder = self._scratch.prepare(job)
        return job, self._place if self._place and job.cwd is None else folder

    def prewarm(self, python: PythonJobs) -> LeaderClient:
        """Do now what does not depend on the job; the next one starts at once."""
        self._walls.refuse_standby()
        steps = [*self._inside(_TRANSFER, self._scratch.prepare()), ("await job", True)]
        usual = python.as_data({"LANG": LANGUAGE, **self.policy.environment})
        source = ZygoteSource({"template": [], "owner": [], "python": usual})
        self._waiting = self._visit(steps, (), source, standby=True)
        self._closing.add(self._waiting.release)
        return self._waiting

    def is_ready(self) -> bool:
        return self._waiting is not None and self._waiting.waits()

    def let_go(self) -> None:
        if self._waiting is not None:
            self._waiting.let_go()

    def _send_order(self, job: Job, folder: str, streams: tuple[int, ...]) -> LeaderClient:
        assert self._waiting is not None
        visit, self._waiting = self._waiting, None
        visit.send_order(job_order(replace(job, files={}), folder, self._environment(job)), streams)
        return visit

    def _environment(self, job: Job) -> dict[str, str]:
        return self._scratch.environment(self.policy, job, self._walls.environment)

    def _request(self, last: Steps, limits: Mapping[str, float], group: Cgroup | None = None) -> VisitRequest:
        steps, born_in = self._entered(group)
        steps += [("setsid",), ("umask", _UMASK), ("reset signals",), ("no new privileges",)]
        witness = filters.witnessed(self.policy, self.enforced) if _sees(self.enforced) else {}
        if witness:  # before the limits: a small limit of descriptors would keep the listener from being handed over
            steps.append(("observe", filters.witness_alone(witness)))
        cleared = self._cleared(group)
        return {
            "plan": [*steps, *last],
            "limits": self._watched() | dict(limits),
            "written": [self._scratch.path, *_entered(last), *self.policy.writable_paths, *self._walls.copies()],
            "groups": {"group": born_in, "enter": [], "cgroups": cleared["cgroups"]},
            "witness": witness,
            "scratch": "" if self._supervisor else cleared["scratch"],
        }

    def _cleared(self, group: Cgroup | None) -> ClearRequest:
        """Return what the scratch cleaner of a living box, or else the leader, removes when the caller is gone."""
        return {"scratch": self._scratch.path, "cgroups": list(group.directories) if group is not None else []}

    def _entered(self, group: Cgroup | None) -> tuple[Steps, str]:
        """The step that enters the group, and where the job can be forked into it at once."""
        return ([], "") if group is None else ([("join groups", list(group.enter_paths))], group.v2_directory)

    def _watched(self) -> dict[str, float]:
        """Limits that the kernel does not hold for the whole tree, and a safety net under those that a group holds."""
        unlimited = dict.fromkeys(("cpu_time", "memory", "pids"), float("inf"))
        held = ((name, value) for name, value in self.policy.numbers().items() if self.enforced[name].applied)
        return unlimited | {name: value * _NET if self._by_group(name) else value for name, value in held}

    def _by_group(self, name: str) -> bool:
        return name in self.enforced and Mechanism.CGROUP in self.enforced[name].by

    def changes(self) -> Changes:
        """Without a transaction the job writes the caller's files directly."""
        return self._transaction.changes() if self._transaction else Changes()

    def commit(self) -> None:
        if self._transaction:
            self._transaction.commit()

    def keep(self, folder: str) -> bool:
        return False

    def close(self) -> str:
        return self._closing.close()
