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
from _collections_abc import Callable, Mapping, Sequence

from ringfence.posix import job_start, plan, wire
from ringfence.posix.job_tree import JobTree
from ringfence.posix.standby import READY, RUNS, TOKEN_BYTES
from ringfence.posix.watchdog import TICK_NS, Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.posix.contained import Guest


def lead(commands: int, reports: int, owner: int, streams: Sequence[int]) -> None:
    """Lead one visit from the request to the report. ``owner`` becomes readable when the caller ends."""
    try:
        request = wire.read_request(commands)
    except EOFError:
        return
    visit = _kind_of(request)(request, commands, reports, owner)
    try:
        visit.begin(streams)
        visit.watch()
        visit.finish()
    except plan.StepFailed as failed:
        wire.say(reports, wire.failed_frame(failed.step, failed.errno, failed.problem))
    except Exception as error:
        wire.say(reports, wire.failed_frame("lead", 0, f"{type(error).__name__}: {error}"))
    finally:
        visit.end_tree()
        visit.clear_scratch()


def _kind_of(request: dict[str, Any]) -> type[Visit]:
    if not request.get("in_box"):
        return Visit
    from ringfence.posix.boxed_visit import BoxedVisit

    return BoxedVisit


class Visit:
    """One job, from the request to the report."""

    make_tree: Callable[[], JobTree] = JobTree

    def __init__(self, request: dict[str, Any], commands: int, reports: int, owner: int) -> None:
        self.request = request
        self.limits: dict[str, float] = request["limits"]
        self.owner_gone = False
        self.commands = commands
        self.reports = reports
        self.outbox = wire.Outbox(reports)
        self.owner = owner
        self.tree = self.make_tree()
        self.table = self.tree.table
        self.contained: Guest | None = None
        self.poller = select.poll()
        self.release: Callable[[], None] | None = None
        self.farewell, self.token = -1, b""
        """Where a Python job says, after its token, its exit status: when all is done but the end of its process."""
        self.runs, self.early = False, b""
        """Whether the job's program runs, and what signals came before that: it gets them then."""
        self.cause = ""
        self.measured = 0

    # ---- start

    def begin(self, streams: Sequence[int]) -> None:
        """Fork the job and wait until its program runs, or is told that it may not."""
        written, layers = self.request.get("written", []), self.request.get("layers", [])
        self.watchdog = Watchdog(self.table, self.limits, self._become_leader(), written, layers)
        self.oom_before = self.table.oom_kills()
        # Before the job can stop or kill this process: the caller must know whom to end then.
        wire.say(self.reports, wire.started_frame(os.getpid()))
        self.started = time.monotonic_ns()
        try:
            problem = self._fork_job(streams)
        except OSError as error:
            raise plan.StepFailed("fork", error) from error
        if self.tree.stood_by:
            self.started = time.monotonic_ns()  # nobody waited for it until now
        if problem:
            step, errno, text = wire.decode_failed(problem)
            raise plan.StepFailed(step, OSError(errno, text))

    def _become_leader(self) -> int:
        """Adopt and hide; our own io file, which can't be opened while memory is hidden."""
        if sys.platform != "linux":
            return -1
        from ringfence.linux import processes

        processes.adopt_orphans()
        processes.show_memory()  # hidden by what it was forked from, as an ordinary user its counts are root's
        own_io: int = self.table.open_own_io()
        processes.hide_memory()
        return own_io

    def _fork_job(self, streams: Sequence[int]) -> bytes:
        """Nothing once the program runs, else the failed step."""
        reader, writer = os.pipe()
        if self.request.get("contained"):
            self._fork_contained(streams, writer)
        else:
            self.request["plan"].insert(0, ("die with leader", os.getpid()))
            self.tree.child = os.fork()
            if self.tree.child == 0:
                job_start.become_job(self.request, streams, [writer])
        for descriptor in (writer, *streams):
            os.close(descriptor)
        if self.release is not None:
            self.release()
        return self._await_start(reader)

    def _fork_contained(self, streams: Sequence[int], writer: int) -> None:
        from ringfence.linux.building import BUILDING
        from ringfence.posix.contained import Contained

        self.contained = self.tree.contained = contained = Contained(self.request, self._note_attempt)
        self.watchdog.answering_s = contained.answering_s
        self.tree.child = contained.fork(streams)
        if self.tree.child == 0:
            job_start.become_job(self.request, streams, [writer, *contained.keep()], [*BUILDING.trees.values()])
        contained.listen(self.poller)
        self.watchdog.first, self.watchdog.tally = contained.pid, contained.tally
        self.release = contained.release

    def _await_start(self, reader: int) -> bytes:
        """Serve the set-up until the program runs, which closes the pipe, or a failed step is told through it. The
        caller is heard already: a set-up that hangs must end with it."""
        self._listen()
        self.poller.register(reader, select.POLLIN)
        problem = b""
        while not self.cause:
            for descriptor, _ in self.poller.poll():
                if descriptor != reader:
                    self._hear(descriptor)
                    continue
                piece = os.read(reader, 4096)
                if piece == READY:
                    self._stand_by()
                elif piece[:1] == RUNS:
                    self.farewell, self.token = reader, piece[1 : 1 + TOKEN_BYTES]
                    if len(piece) > 1 + TOKEN_BYTES:
                        self._hear_farewell(piece[1 + TOKEN_BYTES :])
                    return b""
                elif piece:
                    problem += piece
                else:
                    self._stop_hearing(reader)
                    return problem
        return b""

    def _stop_hearing(self, descriptor: int) -> None:
        self.poller.unregister(descriptor)
        os.close(descriptor)

    def _stand_by(self) -> None:
        """Everything is ready but the job."""
        self.tree.stood_by = self.tree.group()
        identity = 0 if self.contained is None else self.contained.identity
        wire.say(self.reports, wire.ready_frame(identity))
        # What is touched for the first time has to be copied first; now that takes nobody's time.
        self.table.usage(self.tree.stood_by), self.tree.is_empty(), wire.ended_frame(self._report(0))
        if self.contained is not None:
            self.contained.last_word()

    def _listen(self) -> None:
        """To the caller, and to the end of children."""
        self.poller.register(self.commands, select.POLLIN)
        self.poller.register(self.tree.wakeup, select.POLLIN)
        if sys.platform == "linux":
            self.poller.register(self.owner, select.POLLIN)

    # ---- the loop

    def watch(self) -> None:
        """Until the job's first process has ended, or a reason to end it is found."""
        if self.contained is not None:
            self.contained.shut_door()
            self.poller.register(self.contained.status, select.POLLIN)
        self._count_group()
        self.runs = True
        for number in self.early:
            self.tree.signal(number)
        deadline = self.started + int(self.limits["wall_time"] * 1e9)
        tick = self.started
        while not self.tree.reap() and not self.cause:
            until = min(deadline, tick + TICK_NS)
            # Rounded up: waking before the time is due would mean to ask again at once.
            for descriptor, _ in self.poller.poll(max(0, until - time.monotonic_ns()) // 1_000_000 + 1):
                self._hear(descriptor)
            self.outbox.flush()
            now = time.monotonic_ns()
            if now >= deadline:
                self._note("wall_time", self.limits["wall_time"])
            elif now >= tick + TICK_NS:
                tick = now
                self._note(*(self.watchdog.look() or ("", 0)))

    def _count_group(self) -> None:
        """Children whose end nobody is told of are in the count of the group alone."""
        if self.request.get("cgroups"):
            from ringfence.posix.group_time import GroupTime

            self.watchdog.processor_time.group_s = GroupTime(self.request["cgroups"]).used_s

    def _note_attempt(self, attempt: Mapping[str, object]) -> None:
        """Tell the caller, now or when it reads: the limits must be held meanwhile."""
        import json

        self.outbox.put(wire.frame(wire.NOTED, json.dumps(dict(attempt)).encode()))

    def _hear(self, descriptor: int) -> None:
        if descriptor == self.tree.wakeup:
            os.read(descriptor, 4096)
        elif descriptor in (self.commands, self.owner):
            self._hear_caller(descriptor)
        elif descriptor == self.farewell:
            self._hear_farewell(os.read(descriptor, 64))
        elif self.contained is not None:
            self._hear_contained(self.contained, descriptor)

    def _hear_contained(self, contained: Guest, descriptor: int) -> None:
        if descriptor == contained.status:
            self.poller.unregister(descriptor)
            self._note_end(contained.ended())
        else:
            contained.hear(descriptor)

    def _note_end(self, ended: tuple[int, ...] | None) -> None:
        self.tree.note_end(ended)

    def _hear_caller(self, descriptor: int) -> None:
        # The owner's descriptor is never read: that it is ready at all says that the caller ended.
        data = os.read(descriptor, 4096) if descriptor == self.commands else b""
        if not data:
            self.owner_gone = True
            self._note("owner_gone", 0)
        for number in data:
            if number == signal.SIGKILL:
                self._note("asked", 0)
            elif self.runs:
                self.tree.signal(number)
            else:
                self.early += bytes((number,))

    def _hear_farewell(self, said: bytes) -> None:
        self._stop_hearing(self.farewell)
        self.farewell = -1
        if said[:-1] == self.token and self.tree.wait_status is None and not self.cause:
            self.tree.dismiss(said[-1])

    def _note(self, cause: str, measured: float) -> None:
        if cause and not self.cause:
            self.cause, self.measured = cause, int(measured)

    # ---- the end

    def end_tree(self) -> None:
        self.tree.end()

    def finish(self) -> None:
        """End what is left and report."""
        wall_ns = time.monotonic_ns() - self.started
        if self.cause or wall_ns > TICK_NS:  # what is ended now has nobody who waits for it, and is in no other count
            self.watchdog.look(self._root())
        # The caller of a pool need not wait until an empty sandbox is taken apart.
        early = bool(self.request.get("standby")) and bool(self.tree.used) and self.tree.is_empty()
        if early:
            self._tell(wall_ns)
        self.end_tree()
        if not early:
            self._tell(wall_ns)

    def _root(self) -> int:
        """The process below which all of the job is; 0: this one."""
        return 0

    def _tell(self, wall_ns: int) -> None:
        health = b"" if self.contained is None else wire.frame(wire.HEALTH, self.contained.close())
        self.outbox.end(health + wire.ended_frame(self._report(wall_ns)))

    def _report(self, wall_ns: int) -> dict[str, int]:
        user_us, system_us, largest, voluntary, involuntary = self._usage()
        status = self.tree.wait_status
        return {
            "wait_status": -1 if status is None else status,
            "cause": wire.CAUSES.index(self.cause),
            "measured": self.measured,
            "wall_ns": wall_ns,
            "cpu_user_us": user_us,
            "cpu_system_us": system_us,
            "peak_memory_bytes": max(self.watchdog.peak_memory, largest),
            "processes": max(self.watchdog.peak_tasks, 1),
            "written_bytes": self.watchdog.written_bytes(self.tree.living()),
            "voluntary_switches": voluntary,
            "involuntary_switches": involuntary,
            "oom_kills": self._oom_kills(),
            "survivors": self.tree.survivors,
        }

    def _oom_kills(self) -> int:
        """Of a job that was killed: to read the host's counts takes longer than the rest of the report."""
        status = self.tree.wait_status
        killed = status is None or os.WIFSIGNALED(status)
        return max(0, self.table.oom_kills() - self.oom_before) if killed else 0

    def _usage(self) -> tuple[int, ...]:
        """As it was told of the job, or where more was seen of the whole tree, that; and what we did for it."""
        user_us, system_us, *rest = self.tree.used or self._waited_for()
        user_us, system_us = max((user_us, system_us), self.watchdog.used_us(), key=sum)
        return (user_us, system_us + int(self.watchdog.answering_s() * 1e6), *rest)

    def _waited_for(self) -> tuple[int, ...]:
        import resource

        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        largest = used.ru_maxrss * (1024 if sys.platform == "linux" else 1)
        return (int(used.ru_utime * 1e6), int(used.ru_stime * 1e6), largest, used.ru_nvcsw, used.ru_nivcsw)

    def clear_scratch(self) -> None:
        """The caller removes the private folder and the cgroups; when it is gone, this process does. A folder that
        stood by for one job goes with it: the caller comes to it later, and may be killed before."""
        if self.owner_gone and self.request.get("cgroups"):
            from ringfence.linux import cgroup_tree

            cgroup_tree.remove(self.request["cgroups"])
        stood_by = self.contained is None and self.tree.stood_by
        if self.request["scratch"] and (self.owner_gone or stood_by):
            from ringfence.posix.removal import remove_tree

            remove_tree(str(self.request["scratch"]))
