"""STRICT: namespaces, a new root, cgroups, seccomp and Landlock. A hostile program gets nothing.

Works as an ordinary user and as root, without a daemon. Limits are the kernel's where a cgroup is to be
had, the watchdog's where not; the table says which.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ringfence.backends import filters, groups, hiding, showing, strict_table
from ringfence.backends.drafts import Draft, Drafts
from ringfence.backends.facts import NO_EGRESS, Lack
from ringfence.backends.forkers import FromMould
from ringfence.backends.layers import IN_SCRATCH, Layers
from ringfence.backends.led_visit import LedVisit, PythonJobs, order_of
from ringfence.backends.living import Keeper, Stragglers, VisitToBox
from ringfence.backends.process import beyond_hard_limits
from ringfence.backends.scratch import Scratch
from ringfence.errors import UsageError
from ringfence.linux import host, landlock, namespaces, rootfs
from ringfence.linux.hidden import HiddenPaths
from ringfence.linux.rootfs import Step, Wish
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Changes, Enforcement
from ringfence.model.policy import NO_NETWORK, SandboxPolicy
from ringfence.model.record import replace
from ringfence.posix import rlimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Box
    from ringfence.backends.kept_processes import Held
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.monitor.source import Source

NAMESPACES = ["user", "mount", "pid", "net", "ipc", "uts"]
_UMASK = 0o022
# The filter's listener is handed to the leader, which the kernel refuses while the user has more descriptors under way
# than this limit: another sandbox of the same user keeps as many there as its own limit lets it.
_AFTER_THE_FILTER = "RLIMIT_NOFILE"
_UNWATCHED = dict.fromkeys(("cpu_time", "memory", "pids"), float("inf"))
_USER = "user"
_FOREVER_S = 1e9
# A box has a network namespace, at which abstract sockets end; within it CRIU has to reach the processes by one.
_IN_BOX_SCOPES = ("signal",)


class StrictBackend:
    """Runs the job in a root of its own."""

    level = IsolationLevel.STRICT

    def __init__(self) -> None:
        self._drafts = Drafts()

    def transaction_kind(self) -> str:
        return "overlay" if _is_linux() and not host.user_namespaces_blocked() else "snapshot"

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        if not _is_linux():
            return tuple(Lack(capability=name, missing="Linux", fix="run on Linux") for name in policy.requested())
        blocked = host.user_namespaces_blocked()
        if blocked:
            from ringfence.backends import confined

            return confined.lacks(policy, confined.look(blocked))
        return self._lacks_in_namespaces(policy, hiding.hidden_by(policy))

    def _lacks_in_namespaces(self, policy: SandboxPolicy, hidden: HiddenPaths) -> tuple[Lack, ...]:
        missing = list(beyond_hard_limits(policy))
        if policy.network_rule != NO_NETWORK:
            missing.append(NO_EGRESS)
        missing += groups.lacks(policy)
        missing += [*hiding.lacks(policy, hidden), *showing.lacks(policy)]
        return tuple(missing)

    def open(self, policy: SandboxPolicy) -> Box:
        """In namespaces; where there are none, and the policy allows less, what is left without them."""
        blocked = host.user_namespaces_blocked() if _is_linux() else None
        if blocked:
            from ringfence.backends import confined

            return confined.ConfinedBox(policy, confined.look(blocked))
        hidden = hiding.hidden_by(policy)
        hiding.refuse_covered(hidden, readable_paths=policy.readable_paths, writable_paths=policy.writable_paths)
        lacks = self._lacks_in_namespaces(policy, hidden) if _is_linux() else self.lacks(policy)
        return StrictBox(policy, hidden, lacks, self._drafts)


def _is_linux() -> bool:
    return os.path.isdir("/proc/self/ns")


def _namespaces() -> list[str]:
    """With one of time where the kernel has it: its file in /proc/self/ns can be locked, and would be shared."""
    return [*NAMESPACES, "time"] if os.path.exists("/proc/self/ns/time") else NAMESPACES


class StrictBox:
    """A cgroup, a layer and a plan; each visit is a new root over the same layer."""

    def __init__(
        self, policy: SandboxPolicy, hidden: HiddenPaths, lacks: tuple[Lack, ...], drafts: Drafts
    ) -> None:
        self.policy = policy
        self._hidden = hidden
        self._path = ""
        self._scratch = Scratch(("work",))
        self._layers = Layers(hidden)
        self._waiting: groups.GroupVisit | None = None
        self._visited: groups.GroupVisit | None = None
        self._keeper: Keeper | None = None
        self._drafts = drafts
        self._cgroup = groups.make(policy, own_tasks=1)  # pid 1 of the sandbox is ours
        held = self._cgroup.applied if self._cgroup else {}
        table = strict_table.promises(policy, lacks)
        self.enforced: Mapping[str, Enforcement] = table | {
            name: replace(entry, requested=table[name].requested) for name, entry in held.items() if entry.applied
        }

    def _name_recorder(self, wish: Wish) -> None:
        """The table says what records attempts on hidden paths; that depends on where they and the job lie, as the PATH
        does."""
        self._path = rootfs.search_path(os.environ.get("PATH", ""), wish)
        if "hidden_paths" in self.enforced and self.enforced["hidden_paths"].applied:
            entry = replace(self.enforced["hidden_paths"], details=hiding.details_of(wish))
            self.enforced = {**self.enforced, "hidden_paths": entry}

    def start(self, job: Job, streams: tuple[int, ...]) -> LedVisit:
        if self._waiting is not None:
            return self._send_order(job, streams)
        if self._keeper is not None:
            last = self._last(job)
            return self.start_steps([("folder", job.cwd), *last] if job.cwd else last, streams)
        if (job.cwd or self._layers.transaction) and job.files:
            raise UsageError("files go into a private working folder, not over an existing one")
        self._prepare_disk(job.cwd)
        self._scratch.prepare(replace(job, cwd=None, files={}) if job.cwd else job)
        wish = self._wish(job)
        self._name_recorder(wish)
        return groups.GroupVisit(self._request(wish, self._last(job)), streams, _mould(wish, {}), self._cgroup)

    def _last(self, job: Job) -> list[Step]:
        """How the job's own program begins."""
        run = ("exec", list(job.argv), self._environment(job))
        return [("terminal",), run] if job.terminal else [run]

    def work_on(self, transaction: Transaction) -> None:
        self._layers.work_on(transaction)

    def _prepare_disk(self, workspace: str | None) -> None:
        self._scratch.prepare()
        written = self._layers.prepare(self._scratch.path, workspace)
        if written:
            held = groups.throttle_folders(self._cgroup, self.policy, self.enforced, written)
            self.enforced = {**self.enforced, **held}

    def live(self, workspace: str | None) -> None:
        """Open the place; its pid 1 takes visits from now on, and what it may use it may use in all."""
        self._prepare_disk(workspace)
        wish = self._wish(Job(argv=(sys.executable,), cwd=workspace))
        self._name_recorder(wish)
        forker = _mould(wish, {})
        request = self._request(wish, [("drop capabilities",), ("serve visits",)], confined=False)
        limits = self._watched() | {"wall_time": _FOREVER_S}
        keeper = groups.GroupVisit(request | {"standby": True, "limits": limits}, (), forker, self._cgroup)
        keeper.await_ready()
        self._keeper = Keeper(visit=keeper, wish=wish, forker=forker, stragglers=Stragglers())

    def ended(self) -> bool:
        return self._keeper is not None and self._keeper.visit.receive() is not None

    def source(self) -> Source:
        assert self._keeper is not None
        return self._keeper.visit.source()

    def start_steps(self, steps: list[Step], streams: tuple[int, ...]) -> VisitToBox:
        """A visit to the living box."""
        assert self._keeper is not None
        keeper = self._keeper
        request = {
            "in_box": True,
            "plan": [*self._confine(keeper.wish, _IN_BOX_SCOPES), *steps],
            # The time of its processes is held for the box as a whole; here what it has this leader do.
            "limits": _UNWATCHED | {"wall_time": self.policy.wall_time_s, "cpu_time": self.policy.cpu_time_s},
            "scratch": "",
            **self._heard(keeper.wish),
        }
        return VisitToBox(request, streams, keeper)

    def stand_by(self, python: PythonJobs) -> groups.GroupVisit:
        """Do now what does not depend on the job; the next one starts at once. Its folder lies in memory."""
        draft = self._drafts.find((self.policy, python, self.enforced), lambda: self._draft(python))
        self._name_recorder(draft.wish)
        request = draft.request | groups.paths_of(self._cgroup) | {"standby": True}
        self._waiting = groups.GroupVisit(request, (), draft.forker, self._cgroup)
        return self._waiting

    def _draft(self, python: PythonJobs) -> Draft:
        wish = replace(self._wish(Job(argv=(sys.executable,))), on_disk=False)
        request = self._request(wish, [("await job", True)])
        return Draft(wish=wish, request=request, forker=_mould(wish, python.as_data()))

    def stands(self) -> bool:
        return self._waiting is not None and self._waiting.waits()

    def let_go(self) -> None:
        if self._waiting is not None:
            self._waiting.let_go()

    def _send_order(self, job: Job, streams: tuple[int, ...]) -> groups.GroupVisit:
        assert self._waiting is not None
        if job.cwd:
            raise UsageError("a sandbox that stands by has a folder of its own", hint="give files, or use run()")
        visit, self._waiting = self._waiting, None
        self._visited = visit
        visit.send_order(order_of(job, "", self._environment(job)), streams)
        return visit

    def _heard(self, wish: Wish) -> dict[str, object]:
        """What the leader needs to know of the filter, to answer what it tells."""
        return {
            "ids": (wish.uid, wish.gid),
            "profile": filters.profile_name(self.policy),
            "watched": self._hidden_names() if wish.hidden else [],
            "wired": wish.tripwires,
            "share": self.policy.cpu_share or 0.0,
        }

    def _request(self, wish: Wish, last: list[Step], *, confined: bool = True) -> dict[str, object]:
        inside = [("drop capabilities",), ("run as init",), *self._confine(wish)] if confined else []
        own = [*filter(None, (self._scratch.path, *self._layers.written))]
        return {
            "prepare": self._prepare(wish),
            "plan": [*self._enter(wish), *rootfs.steps(wish), *inside, *last],
            "namespaces": _namespaces(),
            "limits": self._watched(),
            "scratch": self._scratch.path,
            "written": [*own, *self.policy.writable_paths],
            "layers": own,
            "contained": True,
            **self._heard(wish),
            **groups.paths_of(self._cgroup),
        }

    def _prepare(self, wish: Wish) -> list[Step]:
        """What only root can do, done by the leader, which still is: ids mapped, devices made."""
        if not wish.by_root:
            return []
        scratch = ("", "work", *IN_SCRATCH) if rootfs.uses_scratch(wish) else ()
        owned = [os.path.join(self._scratch.path, name) for name in scratch]
        return [("give folders", owned), *self._clone(wish), rootfs.device_folder()]

    def _clone(self, wish: Wish) -> list[Step]:
        steps: list[Step] = [("clone sources", rootfs.own_sources(wish, self._scratch.path))]
        kept = rootfs.kept_layers(wish)
        return [*steps, ("clone layers", kept, wish.by_root)] if kept else steps

    def _enter(self, wish: Wish) -> list[Step]:
        """How the leader's child becomes pid 1 of the sandbox."""
        steps: list[Step] = [("await leader",)]
        if wish.tripwires:
            steps.append(("open fuse",))
        steps.append(("take identity", wish.uid, wish.gid))
        if not wish.by_root:
            steps += self._clone(wish)
        return [*steps, ("own group namespace",)]

    def _confine(self, wish: Wish, scopes: tuple[str, ...] = tuple(landlock.SCOPES)) -> list[Step]:
        """What the job is bound by; the filter last, for it closes what came before."""
        steps: list[Step] = [("session",), ("folder", wish.folder), ("umask", _UMASK), ("signals",)]
        steps.append(("no new privileges",))
        limits = [("rlimit", *row) for row in (*rlimits.shares(), *rlimits.rows(self._by_rlimit(), 1 << 20))]
        steps += [step for step in limits if step[1] != _AFTER_THE_FILTER]
        steps += self._wall(wish, scopes)
        if watched := bool(wish.hidden):  # the leader reads paths from it, also before an exec, and as an ordinary user
            steps.append(("show memory",))
        program = filters.compiled(filters.profile_name(self.policy), (wish.uid, wish.gid), watched, wish.tripwires)
        return [*steps, ("seccomp", program, True), *(step for step in limits if step[1] == _AFTER_THE_FILTER)]

    def _wall(self, wish: Wish, scopes: tuple[str, ...]) -> list[Step]:
        if not strict_table.landlock_abi():
            return []
        private = [*rootfs.PRIVATE, *rootfs.worked_on(wish)]
        return [rootfs.wall(private, showing.shared(self.policy), strict_table.landlock_abi(), scopes)]

    def held(self) -> Held:
        """What processes in the living box are held by, for those that are to be restored in one."""
        from ringfence.backends import kept_processes

        assert self._keeper is not None
        wish = self._keeper.wish
        heard = self._heard(wish)
        walls = self._wall(wish, _IN_BOX_SCOPES)
        enter = self._cgroup.enter_paths if self._cgroup else ()
        return kept_processes.held(self._keeper.visit.leader, self.policy, wish, heard, walls, enter)

    def _by_rlimit(self) -> dict[str, float]:
        """An address-space limit breaks programs that reserve much and use little; a cgroup needs none."""
        numbers = self.policy.numbers()
        if self.enforced["memory"].mechanism != strict_table.MECHANISMS["memory"][0]:
            del numbers["memory"]
        return {name: value for name, value in numbers.items() if self.enforced[name].applied or name == "pids"}

    def _watched(self) -> dict[str, float]:
        """What the watchdog holds: what the kernel does not hold here for the whole tree."""
        numbers = self.policy.numbers()
        return _UNWATCHED | {
            name: value
            for name, value in numbers.items()
            if self.enforced[name].applied and "cgroup" not in self.enforced[name].mechanism
        }

    def _wish(self, job: Job) -> Wish:
        ours = self._layers.ours
        hiding.refuse_ours(ours, self.policy.readable_paths, self.policy.writable_paths)
        laid = self._layers.laid(job.cwd)
        within = tuple(each.path for each in laid)
        hiding.refuse_workspace(ours, within, self.policy.readable_paths)
        links = host.system_links()
        system = host.system_folders()
        tops = tuple(entry.path for entry in system) + tuple(path for path, _ in links)
        readable = list(self.policy.readable_paths) + host.interpreter_folders(job.argv[0], self._search_path(job))
        named = frozenset(self.policy.readable_paths) | set(map(os.path.realpath, self.policy.readable_paths))
        found = [path for path in host.outside_the_system(readable, tops + within)
                 if path in named or not any(each.startswith(path + "/") for each in within)]  # fmt: skip
        extra = showing.entries(found, "ro", named)
        there = filter(os.path.lexists, self.policy.writable_paths)
        writable = showing.entries(there, "rw", frozenset(self.policy.writable_paths))
        root = _is_root()
        etc, copies = host.configuration()
        wish = Wish(
            shown=(*system, *extra, *writable),
            etc=etc,
            copies=copies,
            workspaces=laid,
            folder=self._layers.first_folder(job.cwd, laid),
            stage=host.free_folder([*within, *readable, *self.policy.writable_paths, self._scratch.path or "/tmp"]),
            caller=(os.geteuid(), os.getegid()),
            by_root=root,
            owner=(laid[0].owner if laid else (os.geteuid(), os.getegid())) if root else (),
            hidden=self._hidden,
            ours=HiddenPaths(ours),
            links=links,
            user=_USER,
            uid=namespaces.GUEST_ID if root else os.getuid(),
            gid=namespaces.GUEST_ID if root else os.getgid(),
            tmp_bytes=min(self.policy.disk_bytes or self.policy.mem_bytes, self.policy.mem_bytes),
            proc_files=host.present("/proc", rootfs.PROC_FILES),
            proc_folders=host.present("/proc", rootfs.PROC_FOLDERS),
        )
        return replace(wish, tripwires=hiding.recorder_of(wish) == hiding.TRIPWIRES)

    def _hidden_names(self) -> list[str]:
        """As the policy writes them and as the kernel meets them."""
        return list(dict.fromkeys((*self.policy.hidden_paths, *self._hidden)))

    def _search_path(self, job: Job) -> str:
        set_here = dict(self.policy.environment) | dict(job.environment)
        return set_here.get("PYTHONPATH", "")

    def _environment(self, job: Job) -> dict[str, str]:
        clean = {"HOME": rootfs.HOME, "TMPDIR": "/tmp", "USER": _USER, "LOGNAME": _USER, "SHELL": "/bin/sh"}
        return self._scratch.environment(self.policy, job, clean | {"PATH": self._path})

    def changes(self) -> Changes:
        return self._layers.changes()

    def commit(self) -> None:
        self._layers.commit(mounted=self._keeper is not None)

    def keep(self, folder: str) -> bool:
        return self._keeper is None and self._layers.keep(folder, self._scratch.path)

    def close(self) -> str:
        for visit in (self._waiting, self._visited):
            if visit is not None:
                visit.release()
        if self._keeper is not None:
            self._keeper.visit.release()
            self._keeper.stragglers.await_end()
        self._layers.close()
        if self._cgroup is not None:
            self._cgroup.remove()
        return self._scratch.remove()


def _mould(wish: Wish, python: dict[str, object]) -> FromMould:
    """Where what sandboxes of this wish have in common is built once."""
    template = {"template": rootfs.template(wish), "owner": list(wish.owner), "python": python}
    about_the_host = host.mount_table() + host.which_are_there(wish.hidden.folders)
    return FromMould(template, about_the_host)


def _is_root() -> bool:
    return os.geteuid() == 0
