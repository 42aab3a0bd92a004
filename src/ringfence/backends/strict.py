"""STRICT: namespaces, a new root, cgroups, seccomp and Landlock. A hostile program gets nothing.

Works as an ordinary user and as root, without a daemon. The kernel holds the limits if there can be a cgroup, else the
watchdog does; the table says which. This module owns only the life of a box: ``sandbox/spec.py`` decides what it is
made of, and ``sandbox/strict_plan.py`` the steps of its processes.
"""

from __future__ import annotations

import os
import sys
from _collections_abc import Callable, Mapping

from ringfence.backends import groups, tables
from ringfence.backends.closing import Closing
from ringfence.backends.drafts import Draft, Drafts, Looks
from ringfence.backends.facts import PythonJobs, Traits
from ringfence.backends.groups import GroupVisit
from ringfence.backends.layers import Layers
from ringfence.backends.leader_client import LeaderClient, job_order
from ringfence.backends.leader_sources import ZygoteSource
from ringfence.backends.scratch import Scratch
from ringfence.errors import UnavailableError, UsageError
from ringfence.kernel.calls import native
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.lack import Lack
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Changes, Enforcement
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.sandbox import hiding, host, networks, showing
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.hidden import NOTHING, HiddenPaths
from ringfence.sandbox.spec import Spec, spec_of
from ringfence.sandbox.strict_plan import heard, plan_of, template_of, visit_of, wall
from ringfence.sandbox.view import USER, look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import BackendBox, Steps
    from ringfence.backends.egress_link import EgressLink
    from ringfence.backends.living.visit import BoxSupervisor, VisitToBox
    from ringfence.backends.process_images import Confinement, RestoredTree
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.model.own.own_watch import OwnWatch
    from ringfence.monitor.source import Source
    from ringfence.sandbox.root import RootSpec
    from ringfence.transport.request import Preload, StandbyRequest, Step, VisitRequest

_FOREVER_S = 1e9
_SIGKILL = 9


class StrictBackend:
    """Runs the job in a root of its own."""

    level = IsolationLevel.STRICT
    traits = Traits(files_apart=True, network_apart=True, has_layer=True)

    def __init__(self) -> None:
        self._drafts = Drafts()
        self._blocked, self._tables = Looks(), Looks()

    def transaction_kind(self) -> str:
        return "overlay" if _is_linux() and not host.user_namespaces_blocked() else "snapshot"

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        if not _is_linux():
            return tuple(Lack(capability=name, missing="Linux", fix=_ELSEWHERE, whole=True)
                         for name in policy.requested())  # fmt: skip
        blocked = host.user_namespaces_blocked()
        if blocked:
            from ringfence.backends import confined, walls

            return confined.lacks(policy, blocked, walls.look())
        return self._lacks_in_namespaces(policy, hiding.hidden_by(policy))

    def _lacks_in_namespaces(self, policy: SandboxPolicy, hidden: HiddenPaths) -> tuple[Lack, ...]:
        missing = [*tables.beyond_hard_limits(policy), *networks.lacks(policy), *groups.lacks(policy)]
        if showing.names_paths(policy):
            missing += [*hiding.lacks(policy, hidden), *showing.lacks(policy)]
        return tuple(missing)

    def open(self, policy: SandboxPolicy) -> BackendBox:
        """Open a box in namespaces; if there are none and the policy allows less, what is left without them."""
        blocked, hidden, lacks = self._look(policy)
        if blocked is None:
            table = self._tables.find((policy, lacks), lambda: tables.of_strict(policy, lacks))
            return StrictBox(policy, hidden, table, self._drafts)
        from ringfence.backends import confined

        return confined.open_box(policy, blocked, self.traits)

    def _look(self, policy: SandboxPolicy) -> tuple[tuple[str, str] | None, HiddenPaths, tuple[Lack, ...]]:
        """What prevents namespaces, what is hidden, what is lacking. Never cached: a link on the way of a hidden path
        may lead elsewhere the next time."""
        names_paths, on_linux = showing.names_paths(policy), _is_linux()
        if names_paths:
            showing.refuse_absent(policy)
            showing.refuse_places(policy)
        # If they are taken away meanwhile, the clone fails.
        blocked = self._blocked.find(None, host.user_namespaces_blocked) if on_linux else None
        if blocked:
            for name in ("shown_at", "root"):
                if getattr(policy, name):
                    raise UnavailableError(f"{name} requires namespaces: {blocked[0]}", fixes=(blocked[1],))
            return blocked, NOTHING, ()
        hidden = hiding.looked_up(policy) if names_paths else NOTHING
        return None, hidden, self._lacks_in_namespaces(policy, hidden) if on_linux else self.lacks(policy)


_ELSEWHERE = "run on Linux, or use isolation process (--isolation process)"


def _is_linux() -> bool:
    return sys.platform == "linux" and os.path.isdir("/proc/self/ns")


class StrictBox:
    """A cgroup, a layer and a plan; each visit is a new root over the same layer."""

    traits = StrictBackend.traits
    limits_of_a_visit = frozenset({"operations"})

    def __init__(
        self, policy: SandboxPolicy, hidden: HiddenPaths, table: Mapping[str, Enforcement], drafts: Drafts
    ) -> None:
        """``table``: what becomes of the policy without a control group."""
        self.policy = policy
        self._hidden = hidden
        self._drafts = drafts
        self._path, self._user = "", (USER, rootfs.HOME)
        self._scratch = Scratch(("work",))
        self._layers = Layers(policy, hidden)
        self._waiting: GroupVisit | None = None
        self._supervisor: BoxSupervisor | None = None
        self._watch: OwnWatch | None = None
        """For a sandbox that lives or stands by."""
        self._closing = Closing()
        self._closing.add(self._scratch.remove)
        self._cgroup = groups.make(policy, own_tasks=1)  # pid 1 of the sandbox is ours
        if self._cgroup is not None:
            self._closing.add(self._cgroup.remove)
        self._closing.add(self._layers.close)
        self.enforced: Mapping[str, Enforcement] = tables.with_group(table, self._cgroup)
        self._gateway = networks.by_gateway(self.enforced)
        self.network_limits: dict[str, float] = dict(policy.network_limits)
        """What the gateway holds for all connections together; see ``EgressLimits``."""

    # ---- what is to be made

    def _spec(self, job: Job, *, on_disk: bool = True, led_together: bool = False) -> Spec:
        laying = self._layers.laying(job.cwd, self._scratch.path)
        view = look(self.policy, job, laying, self._hidden)
        return spec_of(self.policy, self.enforced, laying, view, self._hidden, on_disk=on_disk,
                       led_together=led_together)  # fmt: skip

    def _adopted(self, spec: Spec) -> Spec:
        """The table says what records attempts on hidden paths; that depends on where they and the job lie, as the PATH
        does."""
        self._path, self._user = spec.search_path, (spec.root.user, spec.root.home)
        if "hidden_paths" in self.enforced and self.enforced["hidden_paths"].applied:
            entry = replace(self.enforced["hidden_paths"], details=hiding.details_of(spec.root))
            self.enforced = {**self.enforced, "hidden_paths": entry}
        return spec

    def _last(self, job: Job, program: str = "") -> Steps:
        """How the job's own program begins."""
        run: Step = ("exec", list(job.argv), self._environment(job), program)
        return [("terminal",), run] if job.terminal else [run]

    def _environment(self, job: Job) -> dict[str, str]:
        user, home = self._user
        clean = {"HOME": home, "TMPDIR": "/tmp", "USER": user, "LOGNAME": user, "SHELL": "/bin/sh"}
        trusted = networks.variables(self.policy) if self._gateway else {}
        return self._scratch.environment(self.policy, job, clean | {"PATH": self._path} | trusted)

    # ---- one job

    def start(self, job: Job, streams: tuple[int, ...]) -> LeaderClient:
        if self._waiting is not None:
            return self._send_order(job, streams)
        if self._supervisor is not None:
            return self.start_limited(job, streams, {})
        if (job.cwd or self._layers.transaction) and job.files:
            raise UsageError("files go into a private working directory, not over an existing one")
        self._prepare_disk(job.cwd)
        self._scratch.prepare(replace(job, cwd=None, files={}) if job.cwd else job)
        spec = self._adopted(self._spec(job))
        source = self._begun_zygote(spec)
        link = self._begun_link()
        visit = self._visit(self._request(spec, self._last(job, spec.program)), streams, source, link)
        if self._layers.transaction is not None:
            visit.earlier = self._layers.late().take
        return visit

    def _begun_zygote(self, spec: Spec) -> ZygoteSource:
        """While it is built, load everything that the layers need."""
        source = _zygote(spec, None)
        self._closing.add(source.withdraw)
        source.begin()
        self._layers.open()
        return source

    def _begun_link(self) -> EgressLink | None:
        """With a network list: the gateway takes the rules while the plan is made."""
        if not self._gateway:
            return None
        from ringfence.backends.egress_link import EgressLink

        link = EgressLink(networks.rules_of(self.policy), self.network_limits)
        self._closing.add(link.close)
        return link

    def _visit(
        self, request: VisitRequest | StandbyRequest, streams: tuple[int, ...], source: ZygoteSource,
        link: EgressLink | None,
    ) -> GroupVisit:  # fmt: skip
        """Start a sandbox; with a network list the gateway knows of it before its leader is forked."""
        if link is None:
            return GroupVisit(request, streams, source, self._cgroup)
        from ringfence.backends.egress_link import EgressVisit

        return EgressVisit(link, request, streams, source, self._cgroup)

    def planned(self, job: Job) -> tuple[RootSpec, VisitRequest]:
        """What a job would be started with. Nothing is started."""
        spec = self._adopted(self._spec(job))
        return spec.root, self._request(spec, self._last(job))

    def _request(self, spec: Spec, last: Steps, *, confined: bool = True) -> VisitRequest:
        """With tables of calls in place of most steps. ``confined``: the job is bound from its start."""
        from ringfence.steps import call_table

        request = plan_of(spec, last, confined=confined)
        return request | {"calls": call_table.compiled(request["plan"]), "groups": groups.paths_of(self._cgroup)}

    def _prepare_disk(self, workspace: str | None) -> None:
        if self._gateway:
            from ringfence.egress import client

            client.start_early()
        self._scratch.prepare()
        written = self._layers.prepare(self._scratch.path, workspace)
        if written:
            held = groups.throttle_folders(self._cgroup, self.policy, self.enforced, written)
            self.enforced = {**self.enforced, **held}

    # ---- a box that lives

    def live(self, workspace: str | None) -> None:
        """Open the place. Its pid 1 takes visits from now on, and they share what the place may use."""
        from ringfence.backends.living.hearing import BoxHearing
        from ringfence.backends.living.visit import BoxSupervisor

        self._refuse_root("a living box")
        self._prepare_disk(workspace)
        spec = self._adopted(self._spec(Job(argv=(sys.executable,), cwd=workspace)))
        spec = replace(spec, root=replace(spec.root, gateway=networks.growing(spec.root.gateway)))
        request = self._request(spec, [("drop capabilities",), ("serve visits",)], confined=False)
        request["limits"] = {**spec.watched_limits, "wall_time": _FOREVER_S}
        request |= {"standby": True, "visited": True}
        source, hearing = self._begun_zygote(spec), BoxHearing(self._layers.late(), wired=spec.root.tripwires)
        link = self._begun_link()
        visit = self._visit(request, (), source, link)
        hearing.begin(visit)
        self._closing.add(hearing.finish)
        self._closing.add(visit.release)
        visit.await_ready()
        self._watch = _watch(self._layers.stamp, spec, spec.shown_paths(), lambda: visit.signal(_SIGKILL))
        self._supervisor = BoxSupervisor(visit=visit, spec=spec, source=source, hearing=hearing, link=link)

    def ended(self) -> bool:
        if self._supervisor is None or self._watch is None:
            return False
        return self._supervisor.visit.receive() is not None or bool(self._watch.exposed())

    def source(self) -> Source:
        assert self._supervisor is not None
        return self._supervisor.visit.source()

    def egress(self) -> EgressLink | None:
        return self._supervisor.link if self._supervisor is not None else None

    def start_limited(self, job: Job, streams: tuple[int, ...], limits: Mapping[str, float]) -> VisitToBox:
        """A job in the living box, which is held to these limits beside the policy's."""
        entered: Steps = [("chdir", showing.inside(self.policy, job.cwd))] if job.cwd else []
        return self._enter([*entered, *self._last(job)], streams, limits, self._layers.checkpoint())

    def start_steps(self, steps: Steps, streams: tuple[int, ...]) -> VisitToBox:
        """A visit to the living box that is nobody's result."""
        return self._enter(steps, streams, {}, None)

    def _enter(
        self, steps: Steps, streams: tuple[int, ...], limits: Mapping[str, float], since: str | None
    ) -> VisitToBox:
        from ringfence.backends.living.visit import VisitToBox

        assert self._supervisor is not None and self._watch is not None
        self._watch.refuse()
        return VisitToBox(visit_of(self._supervisor.spec, steps, limits), streams, self._supervisor, since)

    def confinement(self) -> Confinement:
        """What confines processes in the living box, for processes that are restored in one."""
        from ringfence.backends import process_images

        assert self._supervisor is not None
        spec = self._supervisor.spec
        enter = self._cgroup.enter_paths if self._cgroup else ()
        walls = wall(spec, spec.box_scopes)
        leader = self._supervisor.visit.leader
        return process_images.confinement(leader, self.policy, spec.root, heard(spec), walls, enter)

    def begin_closing(self) -> None:
        if self._supervisor is not None:
            self._supervisor.hearing.begin_closing()

    def hear_restored(self, tree: RestoredTree) -> None:
        assert self._supervisor is not None
        self._supervisor.hearing.hear(tree, self._layers.checkpoint())

    def _refuse_root(self, what: str) -> None:
        """Its first processes run in Python, which an image need not have, and which would be the image's own."""
        if self.policy.root:
            raise UsageError(f"root: {what} has no root of its own", hint="use run(), which takes one")

    # ---- a box that stands by

    def prewarm(self, python: PythonJobs) -> GroupVisit:
        """Do now what does not depend on the job; the next one starts at once. Its directory lies in memory."""
        self._refuse_root("a pool")
        stamp = state_folder.own_stamp()
        draft = self._drafts.find((self.policy, python, self.enforced, stamp), lambda: self._draft(python))
        self._adopted(draft.spec)
        self._watch = _watch(stamp, draft.spec, draft.shown, self.let_go)
        paths = groups.paths_of(self._cgroup)
        request: StandbyRequest = {"draft": draft.source.number, "groups": paths, "standby": True}
        self._waiting = self._visit(request, (), draft.source.for_one(), self._begun_link())
        self._closing.add(self._waiting.release)
        return self._waiting

    def _draft(self, python: PythonJobs) -> Draft:
        together = not self._gateway
        spec = self._adopted(self._spec(Job(argv=(sys.executable,)), on_disk=False, led_together=together))
        source = _zygote(spec, python.as_data(self._usual_environment()), led_together=together)
        request = self._request(spec, [("await job", True)])
        return Draft(spec=spec, shown=spec.shown_paths(), source=source.with_draft(request))

    def _usual_environment(self) -> dict[str, str]:
        """What most jobs have; without what is passed on from this process, which may change from job to job."""
        own = self._environment(Job(argv=(sys.executable,))).items()
        return {name: value for name, value in own if name not in self.policy.pass_environment}

    def is_ready(self) -> bool:
        """Not if something of ours is not hidden from it: another sandbox is made in its place."""
        exposed = self._watch is not None and self._watch.exposed()
        return self._waiting is not None and not exposed and self._waiting.waits()

    def let_go(self) -> None:
        if self._waiting is not None:
            self._waiting.let_go()

    def _send_order(self, job: Job, streams: tuple[int, ...]) -> GroupVisit:
        assert self._waiting is not None
        if job.cwd:
            raise UsageError("a standby sandbox always uses its own directory", hint="pass files=, or use run()")
        visit, self._waiting = self._waiting, None
        visit.send_order(job_order(job, "", self._environment(job)), streams)
        return visit

    # ---- what it changed, and its end

    def work_on(self, transaction: Transaction) -> None:
        self._layers.work_on(transaction)

    def changes(self) -> Changes:
        return self._layers.changes()

    def commit(self) -> None:
        self._layers.commit(mounted=self._supervisor is not None)

    def keep(self, folder: str) -> bool:
        return self._supervisor is None and self._layers.keep(folder, self._scratch.path)

    def close(self) -> str:
        return self._closing.close()


def _watch(stamp: object, spec: Spec, shown: tuple[str, ...], end: Callable[[], object]) -> OwnWatch:
    from ringfence.model.own.own_watch import OwnWatch  # not for a single run

    return OwnWatch(stamp, spec.root.ours, shown, end)


def _zygote(spec: Spec, python: Preload | None, *, led_together: bool = False) -> ZygoteSource:
    """Builds once what sandboxes of this kind have in common; ``led_together``: and leads all of them."""
    about_the_host = host.mount_table() + host.which_are_there(spec.root.hidden.folders)
    template = template_of(spec, python, native=native.is_wanted())
    return ZygoteSource(template | {"warden": led_together}, about_the_host)
