"""The process that leads one visit: starts the job, holds its limits, ends its whole tree, reports.

It is forked by a forker, lives as long as the job and belongs to nobody's thread: it goes on holding
the limits when the caller is stopped, and ends everything when the caller is gone. On Linux it adopts
the orphans of its tree, so «no child left» means that nothing is left. It trusts the caller and
nothing that the job does.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import select
import sys
import time
from _collections_abc import Mapping, Sequence

from ringfence.posix import job_start, passing, plan, wire
from ringfence.posix.processor_time import ProcessorTime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.linux.telling import Telling

_REAP_WAIT_S = 10.0
_TICK_NS = 25_000_000
_ASK_KILL = b"\x09"


def _table() -> Any:
    """The reader of the process tree that this system has."""
    if sys.platform == "linux":
        from ringfence.linux import procfs

        return procfs
    from ringfence.posix import process_table

    return process_table


def lead(commands: int, reports: int, owner: int, streams: Sequence[int]) -> None:
    """Lead one visit from the request to the report. ``owner`` becomes readable when the caller ends."""
    try:
        request = wire.read_request(commands)
    except EOFError:
        return
    visit = Visit(request, commands, reports, owner)
    try:
        visit.begin(streams)
        visit.watch()
        visit.finish()
    except plan.StepFailed as failed:
        _say(reports, wire.failed_frame(failed.step, failed.errno, failed.problem))
    except Exception as error:
        _say(reports, wire.failed_frame("lead", 0, f"{type(error).__name__}: {error}"))
    finally:
        visit.end_tree()
        visit.clear_scratch()


def _say(reports: int, data: bytes) -> None:
    try:
        wire.write_all(reports, data)
    except OSError:
        pass  # the caller is gone; nobody listens, and everything is ended all the same


class Visit:
    """One job and what is below it."""

    def __init__(self, request: dict[str, object], commands: int, reports: int, owner: int) -> None:
        self.plan = list(request["plan"])  # type: ignore[call-overload]
        self.limits: dict[str, float] = request["limits"]  # type: ignore[assignment]
        self.scratch = str(request["scratch"])
        self.owner_gone = False
        self.commands = commands
        self.reports = reports
        self.owner = owner
        self.table = _table()
        self.own_io = -1
        self.contained = bool(request.get("contained"))
        self.cgroups: list[str] = request.get("cgroups", [])  # type: ignore[assignment]
        self.group = str(request.get("group", ""))
        """A v2 control group to fork the job into; empty: none."""
        self.inside = -1
        self.listeners = -1
        self.profile = str(request.get("profile", ""))
        self.telling: Telling | None = None
        self.job = 0
        self.wait_status: int | None = None
        self.cause = ""
        self.measured = 0
        self.processor_time = ProcessorTime(self.table.TICKS_PER_S)
        self.peak_memory = 0
        self.peak_tasks = 0
        self.survivors = 0

    # ---- start

    def begin(self, streams: Sequence[int]) -> None:
        """Fork the job and wait until its program runs."""
        if sys.platform == "linux":
            from ringfence.linux import processes

            processes.adopt_orphans()
            self.own_io = self.table.open_own_io()  # not to be opened any more once memory is hidden
            processes.hide_memory()
        self.wakeup = job_start.wake_on_child()
        self.oom_before = self.table.oom_kills()
        # Before the job can stop or kill this process: the caller must know whom to end then.
        _say(self.reports, wire.started_frame(os.getpid()))
        self.started = time.monotonic_ns()
        try:
            self.job, problem = self._fork_job(streams)
        except OSError as error:
            raise plan.StepFailed("fork", error) from error
        for descriptor in streams:
            os.close(descriptor)
        if problem:
            step, errno, text = wire.decode_failed(problem)
            raise plan.StepFailed(step, OSError(errno, text))

    def _fork_job(self, streams: Sequence[int]) -> tuple[int, bytes]:
        """(pid, nothing) once the program runs, else (pid, the failed step)."""
        leader = os.getpid()
        reader, writer = os.pipe()
        keep = [writer]
        if self.contained:
            self.inside, told = os.pipe()
            self.listeners, door = passing.channel()
            keep += [told, door]
        child = self._fork()
        if child == 0:
            job_start.become_job(self.plan, streams, keep, leader)
        for descriptor in keep:
            os.close(descriptor)
        problem = job_start.read_to_end(reader)
        if self.contained and not problem:
            first = self._told_by_inside()  # pid 1 of the sandbox, in whose name the job is led
            child = child if first is None else first
        return child, problem

    def _fork(self) -> int:
        """Into the group where the kernel can do that; where not, a step of the plan enters it."""
        if not self.group:
            return os.fork()
        from ringfence.linux import plan as linux_plan
        from ringfence.linux import processes

        linux_plan.BUILDING.born_in = self.group
        try:
            return processes.fork_into(self.group)
        except OSError:
            linux_plan.BUILDING.born_in = ""
            return os.fork()

    def _told_by_inside(self) -> int | None:
        """The next number from inside: first the pid of pid 1, then how the job ended."""
        data = os.read(self.inside, 4)
        return int.from_bytes(data, "big", signed=True) if len(data) == 4 else None

    # ---- the loop

    def watch(self) -> None:
        """Until the job's first process has ended, or a reason to end it is found."""
        poller = select.poll()
        poller.register(self.commands, select.POLLIN)
        poller.register(self.wakeup, select.POLLIN)
        if sys.platform == "linux":
            poller.register(self.owner, select.POLLIN)
        if self.profile:
            poller.register(self._take_listener(), select.POLLIN)
        deadline = self.started + int(self.limits["wall_time"] * 1e9)
        tick = self.started
        while not self._reap() and not self.cause:
            until = min(deadline, tick + _TICK_NS)
            # Rounded up: waking before the time is due would mean to ask again at once.
            for descriptor, _ in poller.poll(max(0, until - time.monotonic_ns()) // 1_000_000 + 1):
                self._hear(descriptor)
            now = time.monotonic_ns()
            if now >= deadline:
                self._note("wall_time", self.limits["wall_time"])
            elif now >= tick + _TICK_NS:
                tick = now
                self._measure()

    def _take_listener(self) -> int:
        """The seccomp listener, which the job handed over before its program began."""
        from ringfence.linux.telling import Telling

        _, descriptors = passing.receive(self.listeners)
        self.telling = Telling(descriptors[0], self.profile, self._note_attempt)
        return descriptors[0]

    def _note_attempt(self, attempt: Mapping[str, object]) -> None:
        """Tell the caller, unless it does not read: the limits must be held all the same."""
        import json

        data = wire.frame(wire.NOTED, json.dumps(dict(attempt)).encode())
        if len(data) > select.PIPE_BUF or not _has_room(self.reports):
            raise OSError("the caller does not read")
        os.write(self.reports, data)

    def _hear(self, descriptor: int) -> None:
        if self.telling is not None and descriptor == self.telling.fileno():
            return self.telling.handle()
        if descriptor == self.wakeup:
            os.read(descriptor, 4096)
            return None
        # The owner's descriptor is never read: that it is ready at all says that the caller ended.
        data = os.read(descriptor, 4096) if descriptor == self.commands else b""
        if not data:
            self.owner_gone = True
            self._note("owner_gone", 0)
        for number in data:
            if number == _ASK_KILL[0]:
                self._note("asked", 0)
            else:
                _signal_group(self._group(), number)
        return None

    def _group(self) -> int:
        """The job's process group: named after its first process, which in a sandbox is pid 1's first child."""
        if not self.contained:
            return self.job
        first = self.table.children(self.job)
        return min(first, default=0)

    def _note(self, cause: str, measured: float) -> None:
        if not self.cause:
            self.cause, self.measured = cause, int(measured)

    def _measure(self) -> None:
        """Hold what the kernel does not hold for a whole tree: processor time, memory, tasks, writes."""
        tree = self.table.descendants(os.getpid())
        resident = sum(row.rss_bytes for row in tree)
        # The dead that nobody has waited for hold a pid and have used processor time, too.
        tasks = sum(1 if row.zombie else row.threads for row in tree)
        self.peak_memory = max(self.peak_memory, resident)
        self.peak_tasks = max(self.peak_tasks, sum(row.threads for row in tree if not row.zombie))
        if tasks > self.limits["pids"]:
            return self._note("pids", tasks)
        if resident > self.limits["memory"]:
            resident = sum(self.table.proportional_bytes(row) for row in tree)
            if resident > self.limits["memory"]:
                return self._note("memory", resident)
        cpu_s = self.processor_time.used_s(tree)
        if cpu_s >= self.limits["cpu_time"] + 1:  # a second later than RLIMIT_CPU, which says it better
            return self._note("cpu_time", cpu_s)
        if "disk" in self.limits:
            written = self._written(tree)
            if written > self.limits["disk"]:
                return self._note("disk", written)
        return None

    def _written(self, tree: Sequence[object]) -> int:
        live = sum(self.table.written_bytes(row.pid) for row in tree)  # type: ignore[attr-defined]
        return int(live + self.table.own_written_bytes(self.own_io))

    # ---- the end

    def _reap(self) -> bool:
        """Collect the dead; true once the job's first process is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return self.wait_status is not None
            if pid == self.job:
                told = self._told_by_inside() if self.contained else None
                self.wait_status = status if told is None else told

    def end_tree(self) -> None:
        """Kill until no child is left. A tree that forks while it dies needs several passes."""
        give_up = time.monotonic() + _REAP_WAIT_S
        pause = 0.0005
        while self.job and time.monotonic() < give_up:
            if self.wait_status is None:
                _signal_group(self._group(), signal.SIGKILL)
            alive = self.table.descendants(os.getpid())
            for row in alive:
                self.table.kill(row, signal.SIGKILL)
            if self._no_child_left():
                return
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        self.survivors = len(self.table.descendants(os.getpid())) if self.job else 0

    def _no_child_left(self) -> bool:
        self._reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def finish(self) -> None:
        """End what is left and report."""
        wall_ns = time.monotonic_ns() - self.started
        self.end_tree()
        if self.telling is not None:
            _say(self.reports, wire.frame(wire.HEALTH, self._recorder_health()))
        _say(self.reports, wire.ended_frame(self._report(wall_ns)))

    def _recorder_health(self) -> bytes:
        import json

        assert self.telling is not None
        health = self.telling.recorder.close()
        counted = {name: value for name, value in vars(health).items() if isinstance(value, int)}
        words = {"forbidden": self.telling.forbidden, "problems": list(health.problems), "complete": health.complete}
        return json.dumps(counted | words).encode()

    def _report(self, wall_ns: int) -> dict[str, int]:
        import resource

        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        largest = used.ru_maxrss * (1024 if sys.platform == "linux" else 1)
        return {
            "wait_status": -1 if self.wait_status is None else self.wait_status,
            "cause": wire.CAUSES.index(self.cause),
            "measured": self.measured,
            "wall_ns": wall_ns,
            "cpu_user_us": int(used.ru_utime * 1e6),
            "cpu_system_us": int(used.ru_stime * 1e6),
            "peak_memory_bytes": max(self.peak_memory, largest),
            "processes": max(self.peak_tasks, 1),
            "written_bytes": self._written(()),
            "voluntary_switches": used.ru_nvcsw,
            "involuntary_switches": used.ru_nivcsw,
            "oom_kills": max(0, self.table.oom_kills() - self.oom_before),
            "survivors": self.survivors,
        }

    def clear_scratch(self) -> None:
        """The caller removes the private folder and the cgroups; when it is gone, this process does."""
        if not self.owner_gone:
            return
        if self.cgroups:
            from ringfence.linux import cgroup_tree

            cgroup_tree.remove(self.cgroups)
        if self.scratch:
            from ringfence.posix.removal import remove_tree

            remove_tree(self.scratch)


def _signal_group(job: int, number: int) -> None:
    """Signal the job's process group in one step, which a fork can't slip past."""
    try:
        if job > 1:
            os.killpg(job, number)
    except OSError:
        pass


def _has_room(pipe: int) -> bool:
    """Whether a small frame can be written at once, and whole."""
    poller = select.poll()
    poller.register(pipe, select.POLLOUT)
    return bool(poller.poll(0))
