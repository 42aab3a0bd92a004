"""CONTAINER: each job in a container of its own, made by a container engine (docker or podman), closed by default.

The engine builds the walls; this level says which, and reads back what the engine did. The job has the files of an
image, and of the host only what the policy names and the workspace, read-only.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping

from ringfence.backends.closing import Closing
from ringfence.backends.container_visit import ContainerVisit, ListedVisit
from ringfence.backends.facts import PlainBox, Traits
from ringfence.backends.in_container import promises, standby
from ringfence.backends.in_container.hidden_watch import HiddenWatch
from ringfence.backends.in_container.place import Place, is_running, once, removed
from ringfence.backends.in_container.standby import Standby
from ringfence.backends.in_container.working_copies import WorkingCopies
from ringfence.backends.scratch import Scratch
from ringfence.backends.tables import entries
from ringfence.container import applied, first_process, group_files, job_spec, mounted, network_holder, orphans, visits
from ringfence.container.api import IMAGE_STEP, Client, connect
from ringfence.container.guardian import guardian_of
from ringfence.container.hardening import DEFAULT_IMAGE, ContainerSpec
from ringfence.errors import SandboxError, SetupError, UnavailableError
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.lack import Lack
from ringfence.model.limits import IsolationLevel, SyscallProfile
from ringfence.model.outcome import Changes, Enforcement
from ringfence.model.own.own_watch import OwnWatch
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.sandbox import networks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ringfence.backends.contract import Steps
    from ringfence.backends.egress_link import EgressLink
    from ringfence.backends.facts import PythonJobs
    from ringfence.backends.in_container.place_visit import PlaceVisit
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.monitor.source import Source

MOST_CONTAINERS = 10
"""For one pool: the containers that stand by, run or are being removed, counted together."""
_SLOT_S = 600.0
_NOT_FOUND = {127: errno.ENOENT, 126: errno.EACCES}
"""What an engine says of a container whose program could not be started."""
class ContainerBackend:
    """Runs the job in a container."""

    level = IsolationLevel.CONTAINER
    traits = Traits(
        files_apart=True, network_apart=True, by_engine=True, python="python3",
        untold=("nofile", "file_size", "disk"), most_standing=MOST_CONTAINERS,
    )  # fmt: skip

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(MOST_CONTAINERS)
        """For those of a pool, which has a backend of its own."""
        self.python_versions: dict[str, tuple[int, ...]] = {}
        self._client: Client | None = None
        self._info: dict[str, object] = {}

    def transaction_kind(self) -> str:
        return "snapshot"

    def client(self) -> Client:
        """UnavailableError where no engine answers."""
        if self._client is None:
            client = connect()
            self._info = client.info()
            self._client = client
        return self._client

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        asked = promises.asked_of(policy)
        try:
            client = self.client()
        except UnavailableError as error:
            return (promises.no_engine(error),)
        found = [*promises.lacks_of_groups(asked, self._info), *promises.lacks_of_level(policy, asked)]
        if networks.is_listed(policy):
            found += promises.lacks_of_list(policy, self._info, is_local=client.is_local)
        return tuple(found)

    def open(self, policy: SandboxPolicy) -> ContainerBox:
        lacks, asked = self.lacks(policy), promises.asked_of(policy)
        if lacks and lacks[0].whole:
            lacks = tuple(replace(lacks[0], capability=name) for name in asked)
        table = entries(asked, promises.CONTAINER, lacks)
        if networks.is_listed(policy) and table["network"].applied:
            table |= networks.enforced(policy, 0)
        return ContainerBox(self, policy, table, self._info)


class ContainerBox(PlainBox):
    """A box that takes one job, in one container."""

    def __init__(self, backend: ContainerBackend, policy: SandboxPolicy, enforced: Mapping[str, Enforcement],
                 info: Mapping[str, object]) -> None:  # fmt: skip
        self.policy, self.enforced, self.traits = policy, enforced, ContainerBackend.traits
        self._backend, self._info = backend, info
        self._scratch = Scratch(("work", "network", "door"))
        self._link: EgressLink | None = None
        self._place: Place | None = None
        self._standby: Standby | None = None
        self._watches: tuple[HiddenWatch | OwnWatch, ...] = ()
        self._copies: WorkingCopies | None = None
        self._name, self._has_slot = "", False
        self.network_limits: dict[str, float] = dict(policy.network_limits)
        """What the gateway holds for all connections together; see ``EgressLimits``."""
        self._closing = Closing()
        self._closing.add(self._scratch.remove)
        self._left = ""

    # ---- a container that takes visits

    def work_on(self, transaction: Transaction) -> None:
        """In working copies, at the originals' own paths."""
        self._copies = WorkingCopies(transaction, self.policy)
        self.enforced = self._copies.enforced(dict(self.enforced))

    def live(self, workspace: str | None) -> None:
        """Open the container. Visits go to it from now on, and share what it may use."""
        self._place = self._opened(workspace)

    def ended(self) -> bool:
        return self._place is not None and (self._place.ended() or any(watch.exposed() for watch in self._watches))

    def source(self) -> Source:
        assert self._place is not None
        return self._place.source()

    def egress(self) -> EgressLink | None:
        return self._link

    def start_steps(self, steps: Steps, streams: tuple[int, ...]) -> PlaceVisit:
        assert self._place is not None
        self._refuse_exposed()
        return self._place.transfer(steps, streams)

    # ---- a container that stands by

    def prewarm(self, python: PythonJobs) -> None:
        """Do now what does not depend on the job: the container is there, and its pid 1 waits."""
        if not self._backend.slots.acquire(timeout=_SLOT_S):
            raise SetupError(visits.STEP, f"all {MOST_CONTAINERS} containers are in use, and none has ended",
                             hint="run fewer jobs at once")  # fmt: skip
        self._has_slot = True
        self._closing.add(self._free_slot)
        self._place = self._opened(None, alone=True)
        self._standby = Standby(self._place, python, self.traits.python, self._backend.python_versions)

    def _free_slot(self) -> None:
        """Once, when its container is gone: another may be made then."""
        if self._has_slot:
            self._has_slot = False
            self._backend.slots.release()

    def is_ready(self) -> bool:
        return self._place is not None and not self.ended() and (self._link is None or self._link.serves())

    def let_go(self) -> None:
        if self._place is not None:
            self._place.close_soon()

    def _opened(self, workspace: str | None, *, alone: bool = False) -> Place:
        """A container whose pid 1 has come to the door. By then nothing of the container is left in our directories."""
        client = self._backend.client()
        promises.refuse_without_visits(is_local=client.is_local)
        name = self._name = orphans.new_name()
        folder = os.path.join(os.path.dirname(self._scratch.prepare()), "door")
        stamp, ours, hidden = state_folder.own_stamp(), state_folder.own_places(), self._watched(workspace)
        spec = self._spec_of_visits(client, workspace, folder, alone=alone)
        self._watches = (OwnWatch(stamp, ours, [bind.source for bind in spec.binds], self.let_go), hidden)
        listener = visits.Listener(folder)
        guardian_of(client.url).add(name)
        remove = once(self._remove_used, name)
        self._closing.add(remove)
        sources = mounted.Sources(spec)
        try:
            container = client.create(spec, name)
            self._read_back(spec, client.inspect(container), {})
            client.start(container)
            door = listener.accept(lambda: is_running(client.inspect(container)))
            sources.compare(group_files.locate(container))
        finally:
            listener.close()
            sources.close()
        place = Place(client, container, door, self.policy, remove, alone=alone, image=spec.image, workspace=workspace,
                      folder=spec.workdir, variables=spec.environment, link=self._link, copies=self._copies,
                      has_group=not applied.ignores_groups(self._info))  # fmt: skip
        self._closing.add(place.close)
        self._read_back(spec, client.inspect(container), group_files.limits(place.places))
        self._scratch.remove()  # what the container needs of it is mounted
        return place

    def _watched(self, workspace: str | None) -> HiddenWatch:
        """Watch hidden paths in what is shown; a working copy does not contain them."""
        shown = None if self._copies is not None else workspace
        watch = HiddenWatch(job_spec.hidden_in_shown(self.policy, shown), self.let_go)
        self._closing.add(watch.close)
        return watch

    def _refuse_exposed(self) -> None:
        for watch in self._watches:
            watch.refuse()

    def _spec_of_visits(self, client: Client, workspace: str | None, folder: str, *, alone: bool) -> ContainerSpec:
        shown = None if self._copies is not None else workspace
        spec = self._spec(client, Job(argv=(visits.INSIDE,), cwd=shown), profile=SyscallProfile.DEFAULT)
        if self._copies is not None:
            spec = self._copies.added(spec, self._copies.folder(workspace))
            self._copies.give_to_job()
        binds = (*spec.binds, standby.package()) if alone and self._copies is None else spec.binds
        spec = visits.added(replace(spec, pids=self.policy.pids_max + visits.OWN_TASKS, binds=binds), folder)
        if networks.by_gateway(self.enforced):
            return self._led_to_gateway(client, spec, f"{self._name}-network", lives=True)
        return spec

    def changes(self) -> Changes:
        """Without a transaction the job writes only host files that the policy names, and writes them directly."""
        return self._copies.transaction.changes() if self._copies is not None else Changes()

    def commit(self) -> None:
        if self._copies is not None:
            self._copies.transaction.commit()

    def keep(self, folder: str) -> bool:
        return False

    # ---- one job

    def start(self, job: Job, streams: tuple[int, ...]) -> ContainerVisit | PlaceVisit:
        if self._standby is not None:
            guardian_of(self._standby.place.client.url).add(self._name, self.policy.wall_time_s)
            return self._standby.start(job, streams)
        if self._place is None and self._copies is not None:
            self._place = self._opened(job.cwd, alone=True)
            guardian_of(self._place.client.url).add(self._name, self.policy.wall_time_s)
            for name, content in job.files.items():
                self._place.put(name, content)
        if self._place is not None:
            self._refuse_exposed()
            return self._place.start(job, streams)
        if job.channel:
            _refuse("calls of Python functions")
        client = self._backend.client()
        name = orphans.new_name()
        spec = self._spec(client, job)
        if networks.by_gateway(self.enforced):
            spec = self._led_to_gateway(client, spec, f"{name}-network")
        guardian_of(client.url).add(name, self.policy.wall_time_s)
        try:
            return self._started(client, spec, name, job, streams)
        except BaseException:
            self._remove(name, name)
            raise

    def _spec(self, client: Client, job: Job, profile: SyscallProfile | None = None) -> ContainerSpec:
        files: dict[str, str] = {}
        if job.files:
            folder = self._scratch.prepare(replace(job, cwd=None))
            os.chmod(folder, 0o755)  # the directory above it is the caller's alone
            files = {top: os.path.join(folder, top) for top in dict.fromkeys(name.split("/")[0] for name in job.files)}
        spec = job_spec.spec_of(
            self.policy, job, image=self.policy.image or DEFAULT_IMAGE, files=files,
            seccomp=job_spec.seccomp(self.policy, job, profile), labels=orphans.labels("job"),
            socket=client.socket_path, runtime=promises.runtime(), engine=client.kind,
        )  # fmt: skip
        return spec if profile else first_process.added(spec, is_local=client.is_local)

    def _led_to_gateway(self, client: Client, spec: ContainerSpec, name: str, *, lives: bool = False
                        ) -> ContainerSpec:  # fmt: skip
        """Return the job's container with a network that leads to the gateway from the start: it never has another."""
        from ringfence.backends.egress_link import EgressLink

        self._link = EgressLink(networks.rules_of(self.policy), self.network_limits)
        self._closing.add(self._link.close)
        gateway = networks.gateway(self.policy)
        gateway = (networks.growing(gateway) or gateway) if lives else gateway
        folder = os.path.join(os.path.dirname(self._scratch.prepare()), "network")
        network_holder.lay(folder, gateway, self._link.certificates())
        holder = self._hold(client, network_holder.holding(spec, folder), name, lives=lives)
        network_holder.lead(holder, self._link.listeners, gateway)
        self._link.handed_over()
        return network_holder.joining(spec, holder, folder, gateway)

    def _hold(self, client: Client, spec: ContainerSpec, name: str, *, lives: bool) -> str:
        """Start the container that holds a network, and return its id."""
        guardian_of(client.url).add(name, 0.0 if lives else self.policy.wall_time_s + network_holder.START_S)
        self._closing.add(lambda: self._remove(name, name))
        holder = client.create(spec, name)
        self._read_back(spec, client.inspect(holder), {})
        client.start(holder)
        return holder

    def _started(self, client: Client, spec: ContainerSpec, name: str, job: Job, streams: tuple[int, ...]
                 ) -> ContainerVisit:  # fmt: skip
        try:
            container = client.create(spec, name)
        except SetupError as error:
            if error.step == IMAGE_STEP:
                raise
            return self._without_init(error, client, spec, name, job, streams)
        self._read_back(spec, client.inspect(container), {})
        attached = client.attach(container)
        try:
            self._start(client, container)
            kind = ContainerVisit if self._link is None else ListedVisit
            visit = kind(client, container, name, attached, streams, self.policy, self._remove, link=self._link,
                         tty=job.terminal, has_group=not applied.ignores_groups(self._info),
                         has_word=first_process.is_in(spec))  # fmt: skip
        except SetupError as error:
            attached.close()
            return self._without_init(error, client, spec, name, job, streams)
        except BaseException:
            attached.close()
            raise
        try:
            self._read_back(spec, client.inspect(container), group_files.limits(visit.places))
        except BaseException:
            visit.close()
            raise
        return visit

    def _without_init(self, error: SetupError, client: Client, spec: ContainerSpec, name: str, job: Job,
                      streams: tuple[int, ...]) -> ContainerVisit:  # fmt: skip
        """The engine may not see our first process. It then uses its own, or has none: then the job itself is pid 1.
        Nothing of the job has run yet."""
        if first_process.is_in(spec):
            plainer = first_process.left_away(spec)
        elif spec.init and error.step != "exec":
            plainer = replace(spec, init=False, pids=spec.pids - job_spec.INIT_TASKS)
        else:
            raise error
        client.remove(name, force=True)
        return self._started(client, plainer, name, job, streams)

    def _start(self, client: Client, container: str) -> None:
        try:
            client.start(container)
        except SetupError as error:
            state = client.inspect(container).get("State")
            code = state.get("ExitCode") if isinstance(state, Mapping) else None
            if code in _NOT_FOUND:
                raise SetupError("exec", str(error), errno=_NOT_FOUND[code]) from error
            raise

    def _read_back(self, spec: ContainerSpec, inspected: Mapping[str, object], files: Mapping[str, str]) -> None:
        """End the container if a promise is not in force, unless the policy allows less."""
        found = applied.read_back(spec, inspected, self._info, files)
        missing = {name: entry.details for name, entry in found.items() if not entry.applied}
        if "swap" in missing:
            missing.setdefault("memory", f"swap: {missing.pop('swap')}")
        held = {name: entry for name, entry in self.enforced.items() if entry.applied and name in missing}
        others = {name: why for name, why in missing.items() if name not in self.enforced}
        if (held or others) and not self.policy.allow_partial:
            said = "; ".join(f"{name}: {missing[name]}" for name in (*held, *others))
            raise UnavailableError(f"the container engine did not apply what it was asked for: {said}",
                                   missing=(*held, *others),
                                   fixes=("use another engine", "or accept less with allow_partial"))  # fmt: skip
        lost = {name: replace(entry, applied=False, mechanism="none", details=missing[name], by=())
                for name, entry in held.items()}  # fmt: skip
        self.enforced = {**self.enforced, **promises.told(self.enforced, found), **lost}

    def _remove_used(self, name: str) -> None:
        self._remove(name, name)
        self._free_slot()

    def _remove(self, container: str, name: str) -> None:
        """What can't be removed now is left to the guardian and to the next clean-up."""
        try:
            client = self._backend.client()
            removed(client, container)
        except SandboxError as error:
            self._left = f"the container {name} could not be removed ({error}); ringfence cleanup removes it"
            return
        guardian_of(client.url).done(name)

    def close(self) -> str:
        left = self._closing.close()
        return "; ".join(filter(None, (left, self._left)))


def _refuse(what: str) -> NoReturn:
    raise UnavailableError(f"isolation container has no {what}: each job has a container of its own",
                           missing=(what,), hint="use run(), or isolation strict")  # fmt: skip
