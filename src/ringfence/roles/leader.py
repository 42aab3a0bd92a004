"""The process that leads one visit: starts the job, holds its limits, ends its whole tree, reports.

Runs as: leader, one for each job; that of a box, which has no job of its own, is the supervisor of the box.
Parent: spawner, zygote
Holds: one request, the pipes to and from the caller, a pidfd of the caller, the listener of the filter, the orphans of
    its tree. Its memory is hidden, and it ignores SIGINT, SIGTERM, SIGHUP and SIGQUIT.
Must not have: the caller's other descriptors; another job; trust in what the job says.

It is forked by a fork server, lives as long as the job and belongs to nobody's thread: it goes on holding
the limits when the caller is stopped, and ends everything when the caller is gone. On Linux it adopts
the orphans of its tree, so «no child left» means that nothing is left. It trusts the caller and
nothing that the job does.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import sys
import time
from _collections_abc import Callable, Sequence

from ringfence.roles import job_start
from ringfence.roles.job_tree import JobTree, become_leader
from ringfence.roles.loop import Descriptors, Loop, Timer
from ringfence.roles.observed import Observed
from ringfence.roles.standby import READY, RUNS, TOKEN_BYTES
from ringfence.roles.watchdog import TICK_NS, Watchdog
from ringfence.steps import executor as plan
from ringfence.transport import wire
from ringfence.transport.plain_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.kernel.seccomp.witness import Witness
    from ringfence.roles.sandbox_end import SandboxEnd
    from ringfence.transport.report import EndedFrame, NotedFrame
    from ringfence.transport.request import VisitRequest


STARTS, RUNS_JOB, ENDS, OVER = range(4)
"""The phases of a visit: its job is made, runs, is ended with all that it left; nothing is left."""


class Leader:
    """One job, from the request to the report. A loop drives it: it waits for nothing itself."""

    make_tree: Callable[[], JobTree] = JobTree
    phase = STARTS
    owner_gone = False
    contained: SandboxEnd | None = None
    observed: Observed | None = None
    """For a plain job: what answers its listener."""
    witness: Witness | None = None
    setup, _problem = -1, b""
    """The pipe of failed steps, until the program runs, and what came through it so far."""
    listeners = -1
    """Where the sockets that the gateway accepts on are passed on; -1: there are none."""
    farewell, token = -1, b""
    """Where a Python job sends its token and its exit status when only the end of its process is left."""
    runs, early = False, b""
    """Whether the job's program runs, and the signals that came before that, which it gets then."""
    cause, measured, wall_ns = "", 0, 0
    _told = _failed = False
    """Whether the caller knows how it ended; or that it did not begin."""

    def __init__(
        self, request: VisitRequest, commands: int, reports: int, owner: int, loop: Loop | None = None
    ) -> None:
        self.loop = loop or Loop()
        self.request = request
        self.limits: dict[str, float] = request["limits"]
        self._cgroups = request["groups"]["cgroups"] if "groups" in request else []
        self.commands, self.reports, self.owner = commands, reports, owner
        self.outbox = wire.Outbox(reports)
        self.tree = self.make_tree()
        self.table = self.tree.table
        self.poller = Descriptors(self.loop, self.hear)
        self._deadline = self._next = Timer(lambda: None)
        """When its time is over, and when it is looked at next."""

    # ---- one step after the other

    def begin(self, streams: Sequence[int]) -> None:
        """Fork the job. The rest follows from what is heard."""
        self._guarded(self._start, streams)

    def hear(self, descriptor: int) -> None:
        """Something waits at one of our descriptors."""
        self._guarded(self._hear, descriptor)

    def _guarded(self, act: Callable[..., None], *arguments: object) -> None:
        """Act and go on from there; an error is reported, and ends this visit."""
        try:
            act(*arguments)
            self._go_on()
        except plan.StepFailed as failed:
            self._fail(wire.failed_frame(failed.step, failed.errno, failed.problem))
        except Exception as error:
            self._fail(wire.failed_frame("lead", 0, f"{type(error).__name__}: {error}"))

    def _go_on(self) -> None:
        if self.phase == STARTS and self.cause:
            self._run()
        if self.phase == RUNS_JOB:
            self.outbox.flush()
            if self.tree.reap() or self.cause:
                self._finish()
        if self.phase == ENDS:
            self._end()

    # ---- start

    def _start(self, streams: Sequence[int]) -> None:
        written, layers = self.request.get("written", []), self.request.get("layers", [])
        own_io, thread_io = become_leader(self.table, counting="operations" in self.limits)
        self.watchdog = Watchdog(self.table, self.limits, own_io, written, layers)
        self.watchdog.thread_io = thread_io
        # Before the job can stop or kill this process: the caller must know whom to end then.
        wire.say(self.reports, wire.started_frame(os.getpid()))
        self.started = time.monotonic_ns()
        try:
            self._fork_job(streams)
        except OSError as error:
            raise plan.StepFailed("fork", error) from error

    def _fork_job(self, streams: Sequence[int]) -> None:
        self.setup, writer = os.pipe()
        self.request["plan"].insert(0, ("die with leader", os.getpid()))
        if self.request.get("witness"):
            self.observed = Observed(self.request["witness"])
            self.watchdog.answering_s, self.witness = self.observed.answering_s, self.observed.witness
        doors = [self.observed.theirs] if self.observed else []
        self.tree.child = job_start.fork(self.request)
        if self.tree.child == 0:
            job_start.become_job(self.request, streams, [writer, *doors])
        for descriptor in (writer, *streams):
            os.close(descriptor)
        if self.observed:
            self.observed.listen(self.poller)
        self._listen()

    def _stop_hearing(self, descriptor: int) -> None:
        self.poller.unregister(descriptor)
        os.close(descriptor)

    def _stand_by(self) -> None:
        """Everything is ready but the job."""
        self.tree.stood_by = self.tree.group()
        self.outbox.put(wire.ready_frame(0 if self.contained is None else self.contained.identity))
        self._rehearse()

    def _rehearse(self) -> None:
        """Pages that are written for the first time have to be copied; now that delays nobody."""
        self.table.usage(self.tree.stood_by), self.tree.is_empty(), wire.ended_frame(self._report(0))
        if self.contained is not None:
            self.contained.last_word()

    def _listen(self) -> None:
        """Listen to the set-up, to ends of children, and to the caller: a set-up that hangs must end with it."""
        self.poller.register(self.commands)
        self.poller.register(self.tree.wakeup)
        self.poller.register(self.setup)
        if sys.platform == "linux":
            self.poller.register(self.owner)

    def _hear_setup(self) -> None:
        """Either the program runs, which closes the pipe, or a failed step comes through it."""
        piece = os.read(self.setup, 4096)
        if piece == READY:
            self._stand_by()
        elif piece[:1] == RUNS:
            self.farewell, self.token, self.setup = self.setup, piece[1 : 1 + TOKEN_BYTES], -1
            if len(piece) > 1 + TOKEN_BYTES:
                self._hear_farewell(piece[1 + TOKEN_BYTES :])
            self._run()
        elif piece:
            self._problem += piece
        else:
            self._stop_hearing(self.setup)
            self.setup = -1
            self._run()

    # ---- the job runs

    def _run(self) -> None:
        """From now on until the job's first process has ended, or a reason to end it is found."""
        if self.tree.stood_by:
            self.started = time.monotonic_ns()  # nothing looked at it until now
        if self._problem and not self.cause:
            step, errno, text = wire.decode_failed(self._problem)
            raise plan.StepFailed(step, OSError(errno, text))
        if self.contained is not None:
            self.contained.close_handover()
            self.poller.register(self.contained.status)
        self.watchdog.count_group(self._cgroups)
        self.runs, self.phase = True, RUNS_JOB
        if self.witness is not None and self.limits["pids"] < float("inf"):
            self.witness.may_grow = self._may_grow
        for number in self.early:
            self.tree.signal(number)
        self._deadline = self.loop.at(self.started + int(self.limits["wall_time"] * 1e9), self._time_is_up)
        self._next = self.loop.look_at(self.started + TICK_NS, self._tick)

    def _time_is_up(self) -> None:
        self._guarded(self._note, "wall_time", self.limits["wall_time"])

    def _tick(self) -> None:
        self._next = self.loop.look_at(time.monotonic_ns() + self.watchdog.tick_ns, self._tick)
        self._guarded(self._look)

    def _look(self) -> None:
        self._note(*(self.watchdog.look() or ("", 0)))
        self._look_at_operations()

    def _look_at_operations(self) -> None:
        self._note(*(self.watchdog.look_at_operations(self._root(), self._waited_for()) or ("", 0)))

    def _waited_for(self) -> int | None:
        """Operations of children that the root process has waited for; None: that is this process, which can tell."""
        return None

    def _note_attempt(self, attempt: NotedFrame) -> None:
        """Tell the caller, now or when it reads: the limits must be held meanwhile."""
        self.outbox.put(wire.frame(wire.NOTED, dumps(attempt).encode()))

    def _hear(self, descriptor: int) -> None:
        if descriptor == self.tree.wakeup:
            os.read(descriptor, 4096)
        elif descriptor in (self.commands, self.owner):
            self._hear_caller(descriptor)
        elif descriptor == self.setup:
            self._hear_setup()
        elif descriptor == self.farewell:
            self._hear_farewell(os.read(descriptor, 64))
        elif self.observed is not None and self.observed.hears(descriptor):
            self.observed.on_readable(descriptor)
        elif self.contained is not None:
            self._hear_contained(self.contained, descriptor)

    def _may_grow(self) -> bool:
        """Asked before the memory limit can refuse the stack of a thread: one thread too many is always reported as
        that."""
        self._look()
        return not self.cause

    def _hear_contained(self, contained: SandboxEnd, descriptor: int) -> None:
        if descriptor == contained.status:
            self.poller.unregister(descriptor)
            self._note_end(contained.ended())
        else:
            contained.on_readable(descriptor)

    def _note_end(self, ended: tuple[int, ...] | None) -> None:
        self.tree.note_end(ended)

    def _hear_caller(self, descriptor: int) -> None:
        # The owner's descriptor is never read: it becomes ready only when the caller has ended.
        data = os.read(descriptor, 4096) if descriptor == self.commands else b""
        if not data:
            self.owner_gone = True
            self._note("owner_gone", 0)
        for number in data:
            if number == wire.TELL and self.contained is not None:
                self.outbox.put_long(self.contained.page_frame())
            elif number == wire.SAY_ON:
                self.outbox.put(wire.frame(wire.SAID, b""))
            elif number == signal.SIGKILL:
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
            if said[-1] and self.witness is not None:
                self.witness.see_end(self.tree.stood_by)  # it never comes to its own exit

    def _note(self, cause: str, measured: float) -> None:
        if cause and not self.cause:
            self.cause, self.measured = cause, int(measured)

    # ---- the end

    def _finish(self) -> None:
        """Report, then end what is left; or the other way round."""
        self.wall_ns = time.monotonic_ns() - self.started
        if self.cause or self.wall_ns > TICK_NS:
            self.watchdog.look_last(self._root())
        self._look_at_operations()
        self._drain()
        # The caller of a pool need not wait for an empty sandbox to be torn down.
        if self.request.get("standby") and self.tree.used and self.tree.is_empty():
            self._tell()
        self._begin_end()

    def _drain(self) -> None:
        """What is left is killed next: record what it asks for now."""
        if self.contained is not None:
            self.contained.drain()

    def _fail(self, frame: bytes) -> None:
        if self._failed:  # this process ends, and with it all of the job
            raise RuntimeError("a visit that has failed can't be ended")
        self.outbox.end(frame)
        self._told = self._failed = True
        self._begin_end()
        self._once_more()

    def tell_broken(self, error: Exception) -> None:
        if not self._told:
            self.outbox.end(wire.failed_frame("lead", 0, f"{type(error).__name__}: {error}"))

    def _begin_end(self) -> None:
        self.phase = ENDS
        self._deadline.cancel()
        self.poller.clear()
        if self.tree.wakeup >= 0:
            self.poller.register(self.tree.wakeup)

    def _end(self) -> None:
        """Once nothing is left. A tree that forks while it dies needs several passes."""
        self._next.cancel()
        if self.end_tree():
            if not self._told:
                self._tell()
            self._leave()
        else:
            self._next = self.loop.at(time.monotonic_ns() + self.tree.pause_ns(), self._once_more)

    def _once_more(self) -> None:
        self._guarded(lambda: None)

    def end_tree(self) -> bool:
        """Kill; return whether nothing is left."""
        return self.tree.end()

    def _leave(self) -> None:
        self.phase = OVER
        self.poller.clear()
        self.clear_scratch()

    def _root(self) -> int:
        """The process above the whole job; 0: this one."""
        return 0

    def _tell(self) -> None:
        self._look_at_operations()  # now that they are all waited for
        health = b"" if self.contained is None else wire.frame(wire.HEALTH, self.contained.close())
        self.outbox.end(health + wire.ended_frame(self._report(self.wall_ns)))
        self._told = True

    def _report(self, wall_ns: int) -> EndedFrame:
        used = self.watchdog.usage(self.tree.used or self.tree.waited_for())
        user_us, system_us, largest, voluntary, involuntary = used
        seen = self.witness.seen if self.witness else {}
        living = self.tree.living()
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
            "written_bytes": max(self.watchdog.written(living), self.measured if self.cause == "disk" else 0),
            "voluntary_switches": voluntary,
            "involuntary_switches": involuntary,
            "oom_kills": self.tree.oom_kills(),
            "survivors": self.tree.survivors,
            "largest_bytes": largest,
            "written_chars": max(self.watchdog.written_chars(living), seen.get("written_chars", 0)),
            "refused_bytes": seen.get("refused_bytes", 0),
            "exit_memory_bytes": seen.get("exit_memory_bytes", 0),
            "exit_address_bytes": seen.get("exit_address_bytes", 0),
            "exit_descriptors": seen.get("exit_descriptors", 0),
            "exit_slots": seen.get("exit_slots", 0),
            "operations": -1 if self.watchdog.operations is None else self.watchdog.operations.most,
        }

    def clear_scratch(self) -> None:
        """The caller removes the private directory and the cgroups; if it is gone, this process does. A directory
        that stood by for one job is removed here: the caller would come to it later, and may be killed before."""
        if self.owner_gone and self._cgroups:
            from ringfence.kernel.cgroup import tree as cgroup_tree

            cgroup_tree.remove(self._cgroups)
        stood_by = self.contained is None and self.tree.stood_by
        if self.request["scratch"] and (self.owner_gone or stood_by):
            from ringfence.roles.removal import remove_tree

            remove_tree(self.request["scratch"])
