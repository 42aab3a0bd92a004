"""A container that takes visits, from its start to its removal: what it may use in total, and who waits for it.

Its pid 1 (``container/visits``) holds the time of each visit and ends its processes. What all of them use together is
held by the container's control group; their processor time is looked at here, by one thread. When the caller hangs up,
or is gone, pid 1 ends, and with it everything inside.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache

from ringfence.backends.container_visit import ContainerCounters
from ringfence.backends.in_container.place_visit import PlaceVisit
from ringfence.container import group_files, job_spec, visits
from ringfence.container.api import Client
from ringfence.errors import SandboxError, SetupError
from ringfence.model.job import Job
from ringfence.model.limits import SyscallProfile
from ringfence.model.policy import SandboxPolicy
from ringfence.monitor.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Steps
    from ringfence.backends.egress_link import EgressLink
    from ringfence.backends.in_container.working_copies import WorkingCopies

_LOOK_S, _IDLE_S, _ASK_S = 0.025, 0.25, 0.5
"""How often its group is looked at: with a visit, without one, and where the engine has to be asked."""
_TRANSFER_S = 60.0
_AGAIN_S = (0.2, 1.0)


class Place:
    """One container with a door. May be used by several threads."""

    def __init__(self, client: Client, container: str, door: visits.Door, policy: SandboxPolicy,
                 remove: Callable[[], None], *, folder: str, image: str, alone: bool = False, has_group: bool = True,
                 variables: Mapping[str, str], link: EgressLink | None = None, copies: WorkingCopies | None = None,
                 workspace: str | None = None) -> None:  # fmt: skip
        """``folder``: where visits begin that do not name one. ``alone``: it is for one job, and no visit follows.
        ``variables``: of all visits; a visit's own override them. ``has_group``: what the engine says of its use is its
        own. ``workspace``: a directory of the host that it shows, or a copy of it."""
        self.client, self.container, self.policy = client, container, policy
        self.folder, self.image, self.alone, self.link = folder, image, alone, link
        self.variables, self._copies, self._workspace = variables, copies, workspace if copies is None else None
        self.places = group_files.locate(container)
        self.facts = ContainerCounters()
        self.cause, self.measured = "", 0
        self._door, self._remove, self._has_group = door, remove, has_group
        self._visits: list[PlaceVisit] = []
        self._lock = threading.Lock()
        self._over, self._removed = threading.Event(), threading.Event()
        self._watcher: threading.Thread | None = None
        self._closer: threading.Thread | None = None

    # ---- visits

    def start(self, job: Job, streams: tuple[int, ...]) -> PlaceVisit:
        variables = {**self.variables, **job_spec.environment(self.policy, job)}
        closed = _filter(self.policy, self._workspace)
        order = visits.VisitOrder(argv=job.argv, environment=variables, folder=job.cwd or self.folder,
                                  descriptors=self.policy.nofile, syscall_filter=closed)  # fmt: skip
        return self.visit(order, streams, terminal=job.terminal)

    def visit(
        self, order: visits.VisitOrder, streams: tuple[int, ...], *, terminal: bool = False, alone: bool | None = None
    ) -> PlaceVisit:
        """Begin a visit. A place that has ended takes no visit, which is no error: a guest may have ended it."""
        alone = self.alone if alone is None else alone
        flags = terminal * visits.TERMINAL | alone * visits.ALONE
        self._watch()
        self.look()
        before = (self.facts.ooms, self.facts.refused)
        try:
            number, report = self._door.visit(order, streams, self.policy.wall_time_s, flags)
        except OSError:
            number, report = 0, -1
        visit = PlaceVisit(self, order.argv[0], number, report, before, is_last=alone)
        with self._lock:
            self._visits = [*(each for each in self._visits if each.filenos()), visit]
        return visit

    def put(self, name: str, content: bytes) -> None:
        """Write a file for a job that begins afterwards; SetupError if that fails."""
        given, said = os.memfd_create("file"), os.memfd_create("said")
        try:
            with open(given, "wb", closefd=False) as file:
                file.write(content)
            os.lseek(given, 0, os.SEEK_SET)
            order = visits.VisitOrder(argv=(name,), environment={}, folder=self.folder, what=visits.PUT)
            visit = self.visit(order, (given, said, said), alone=False)
            try:
                report = visit.wait(_TRANSFER_S)
            finally:
                visit.close()
            if report is None or report.exit_code != 0:
                words = os.pread(said, 200, 0).decode("utf-8", "replace")
                raise SetupError("put the job's files", f"{name}: {words or 'it has not been taken'}")
        finally:
            os.close(given)
            os.close(said)

    def transfer(self, steps: Steps, streams: tuple[int, ...]) -> PlaceVisit:
        """A visit that is not a program: a file that is put or got."""
        ((kind, *named),) = steps
        name, *most = named
        what = {"put file": visits.PUT, "get file": visits.GET}[str(kind)]
        most_bytes = most[0] if most and isinstance(most[0], int) else 0
        order = visits.VisitOrder(argv=(str(name),), environment={}, folder=self.folder, what=what,
                                  most_bytes=most_bytes)  # fmt: skip
        return self.visit(order, streams)

    def signal(self, visit: int, number: int) -> None:
        self._door.signal(visit, number)

    def source(self) -> Source:
        named = {"memory": "memory", "pids": "pids", "cpu_usage": "cpuacct"}
        groups = {name: self.places[place] for name, place in named.items() if place in self.places}
        network = self.link.network_bytes if self.link is not None else None
        return Source(groups=groups, terminate=lambda: self.end("asked"), network=network)

    # ---- what all use together

    def _watch(self) -> None:
        with self._lock:
            if self._watcher is None and not self._over.is_set():
                self._watcher = threading.Thread(target=self._look_on, daemon=True, name="ringfence-container-place")
                self._watcher.start()

    def _look_on(self) -> None:
        limit_ms = self.policy.cpu_time_s * 1000
        while not self._over.wait(self._pause()):
            self.look()
            used_ms = self.facts.cpu_ns // 10**6
            if used_ms > limit_ms:
                self.end("cpu_time", used_ms)
            written = self._copies.written(group_files.members(self.places)) if self._copies is not None else 0
            if written:
                self.end("disk", written)
            if self._door.is_shut():
                return

    def _pause(self) -> float:
        visited = any(visit.filenos() for visit in self._visits)
        return _IDLE_S if not visited else _LOOK_S if self.places else _ASK_S

    def look(self) -> None:
        if self.places:
            self.facts.look(self.places)
        elif self._has_group:
            self.facts.ask(self.client, self.container)

    # ---- the end

    def ended(self) -> bool:
        return bool(self.cause) or self._over.is_set() or self._door.is_shut()

    def end(self, cause: str, measured: int = 0) -> None:
        """End everything in it."""
        self.cause, self.measured = self.cause or cause, self.measured or measured
        self._shut()

    def _shut(self) -> None:
        """Pid 1 ends when it is told to; if it does not get to run, all are killed from here."""
        self._door.shut()
        group_files.kill(self.places)

    def kill(self) -> None:
        """Have the engine end it if pid 1 does not."""
        self.end("asked")
        try:
            self.client.kill(self.container)
        except SandboxError:
            return  # it is removed later, by us or by the guardian

    def close_soon(self) -> None:
        """In a thread of its own: an engine takes longer to remove a container than a small job runs."""
        with self._lock:
            if self._closer is None:
                self._closer = threading.Thread(target=self.close, daemon=True, name="ringfence-container-removal")
                self._closer.start()

    def close(self) -> None:
        """End everything in it and remove it, once; a later caller waits until that is done."""
        with self._lock:
            first = not self._over.is_set()
            self._over.set()
        if not first:
            self._removed.wait()
            return
        try:
            self._shut()
            if self._watcher is not None:
                self._watcher.join()
            self.look()
            self._remove()
            self._door.close()
        finally:
            self._removed.set()


def once(work: Callable[[str], None], name: str) -> Callable[[], None]:
    """The work is done once. A second call, even from another thread, returns only when it is done."""
    lock, left = threading.Lock(), [name]

    def ask() -> None:
        with lock:
            if left:
                work(left[0])
                left.clear()

    return ask


def removed(client: Client, container: str) -> None:
    """Remove the container. An engine that is just noticing its end may say that it can't be removed now."""
    for pause_s in _AGAIN_S:
        try:
            client.remove(container, force=True)
            return
        except SetupError:
            time.sleep(pause_s)
    client.remove(container, force=True)


def is_running(inspected: Mapping[str, object]) -> bool:
    """Whether the engine says that the container runs."""
    state = inspected.get("State")
    return isinstance(state, Mapping) and state.get("Running") is True


def _filter(policy: SandboxPolicy, workspace: str | None) -> bytes:
    """The filter that a job has on top of the container's; pid 1, which connects to our door, lives under that only."""
    if policy.syscall_profile is SyscallProfile.TIGHT:
        return _compiled("tight_exec", os.uname().machine)
    return _compiled("unix_pairs", os.uname().machine) if job_spec.shows_host(policy, workspace) else b""


@lru_cache
def _compiled(profile: str, architecture: str) -> bytes:
    from ringfence.kernel.seccomp import profiles
    from ringfence.kernel.seccomp.compile import compile

    return compile(profiles.PROFILES[profile], architecture)
