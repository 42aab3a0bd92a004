"""The caller's end of the pipes to the leader of one visit.

Used by every level whose jobs are processes of this host. It trusts the leader no more than the job: what comes back
are small frames of fixed layout.
"""

from __future__ import annotations

import os
import time
from _collections_abc import Callable
from _thread import RLock

from ringfence.backends.facts import Report
from ringfence.backends.leader_process import EXEC_HINTS, kill_pidfd, open_pidfd, owner_watch, report_of
from ringfence.errors import SetupError, is_of_a_call
from ringfence.model.job import Job
from ringfence.model.record import replace
from ringfence.roles import spawner, standby
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.leader_sources import LeaderSource
    from ringfence.checkpoint.late import Late
    from ringfence.monitor.source import Source
    from ringfence.transport.report import Note
    from ringfence.transport.request import ClearRequest, JobOrder, StandbyRequest, VisitRequest


_SIGKILL = 9
_MAX_NOTES = 10_000
_MAX_PAGES = 100
"""A leader tells one when it is asked, and they are taken then."""
# Longer than a leader tries to end its tree; then it is killed, and that takes no time.
_END_WAIT_MS, _KILL_WAIT_MS = 12_000, 1_000
# A slow machine that starts many at once takes long for the last one; meanwhile we check whether a process is stopped.
_START_WAIT_S, _LOOK_MS = 60.0, 1_000
_ASK_LOOK_S = 0.02
_LEAD, _STAND_BY, _REACH = "lead", "stand by", "reach the waiting sandbox"
UNDELIVERED = (_STAND_BY, _REACH)
"""The steps of a SetupError after which another sandbox may get the same job: nothing of the job has begun."""


_SLOW = "the machine may be overloaded, or a ringfence process stopped; try again"


def job_order(job: Job, folder: str, environment: dict[str, str]) -> JobOrder:
    """What a waiting sandbox is told of its job; ``folder``: where to go first, empty: it is there."""
    return {
        "argv": list(job.argv),
        "environment": environment,
        "files": dict(job.files),
        "folder": folder,
        "terminal": job.terminal,
        "python": job.python,
    }


class LeaderClient:
    """The caller's end of the pipes to one leader."""

    leader = 0
    """Its pid; if it leads many sandboxes, that of pid 1. 0: not known yet, or gone."""
    ready = False
    """Everything but the job is done; only for a sandbox that stands by."""
    entered = True
    begun = False
    """Its leader has spoken."""
    earlier: Callable[[], list[Late]] | None = None
    """Returns what was tried on the same layers after the last result, for this result to tell; absent: nothing was."""
    is_a_result = True
    """Its report becomes somebody's result; that of a box's supervisor does not."""

    def __init__(
        self, request: VisitRequest | StandbyRequest | ClearRequest, streams: tuple[int, ...], source: LeaderSource
    ) -> None:
        self._source = source
        self._frames = wire.Frames()
        self._commands = self._reports = self._leader_pidfd = self._post = -1
        self._open_lock = RLock()
        """Another thread may signal while this one closes, and a closed number may belong to another file by then. A
        signal handler may run in this thread meanwhile, so the lock must let it in."""
        self._identity = 0
        self._report: Report | None = None
        self._notes: list[Note] = []
        self._pages: list[Note] = []
        """What the recorder said of itself that is in no report."""
        self._pages_heard = 0
        self.is_over = self.has_left = False
        """It says nothing any more; before that it has said that this is all (``wire.LEFT``)."""
        self._forked = self._given_up = self._asked_to_end = False
        self._asked_s = time.monotonic()
        self._stood_by = bool(request.get("standby"))
        message = wire.packed(request) if source.led_together else wire.encode_request(request)
        try:
            self._open(streams, message if source.led_together else b"")
            if not source.led_together:
                self._send(message)
        except BaseException as error:
            self.close()
            if is_of_a_call(error):
                raise SetupError("reach the leader", str(error)) from error
            raise

    def _open(self, streams: tuple[int, ...], message: bytes) -> None:
        theirs: list[int] = []
        try:
            commands, self._commands = os.pipe()
            theirs.append(commands)
            self._reports, reports = os.pipe()
            theirs.append(reports)
            theirs.append(owner_watch(commands))
            if self._stood_by:
                self._post, post = passing.channel()
                theirs.append(post)
            self._source.fork_leader([*theirs, *streams], message)
            self._forked = True
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(self._reports, False)

    def send_order(self, order: JobOrder, streams: tuple[int, ...]) -> None:
        """Give the waiting sandbox its job; if that fails, nothing of the sandbox is left."""
        try:
            self.await_ready()
            passing.give_pipes(streams[1:3], self._identity)
            standby.send_order(self._post, order, streams)
        except BaseException as error:
            self.close()
            if is_of_a_call(error):
                raise SetupError(_REACH, str(error)) from error
            raise
        post, self._post = self._post, -1
        os.close(post)

    @property
    def operations(self) -> int:
        return -1 if self._report is None else self._report.operations

    @property
    def post(self) -> int:
        """The socket to the process that waits inside."""
        return self._post

    def waits(self, forgiven: str = "") -> bool:
        """Whether the sandbox is still there for a job; ``forgiven``: only this failed step means no, empty: any."""
        try:
            return self.receive() is None
        except SetupError as error:
            if forgiven and error.step != forgiven:
                raise
            return False

    def await_ready(self) -> None:
        """A sandbox that is ready reads its order at once; only its leader knows who must own the streams."""
        import select

        poller = select.poll()
        poller.register(self._reports, select.POLLIN)
        while not self.ready:
            if not poller.poll(_LOOK_MS) and not self.may_begin():
                self.abandon()
                raise SetupError(_STAND_BY, f"the sandbox was not ready after {self._waited()}", hint=_SLOW)
            if not self.waits(_LEAD):
                raise SetupError(_STAND_BY, "the sandbox ended before it had a job")

    def may_begin(self) -> bool:
        """Whether to wait on for the start: no process that has to act is stopped, and a busy machine gets time."""
        return time.monotonic() < self._asked_s + _START_WAIT_S and not self.is_stopped()

    def is_stopped(self) -> bool:
        led_by = 0 if self._source.led_together else self.leader
        return spawner.is_stopped(led_by or self._source.pid())

    def _waited(self) -> str:
        return f"{time.monotonic() - self._asked_s:.0f} s"

    def filenos(self) -> tuple[int, ...]:
        return (self._reports,) if self._reports >= 0 else ()

    def _send(self, data: bytes) -> None:
        with self._open_lock:
            if self._commands < 0:
                return
            try:
                wire.write_all(self._commands, data)
            except BrokenPipeError:
                pass  # the leader has ended; receive() tells how

    def receive(self) -> Report | None:
        with self._open_lock:  # all visits to a living box listen to its supervisor
            return self._receive()

    def _receive(self) -> Report | None:
        if self._reports < 0:
            return self._report or self._lost()
        try:
            data = os.read(self._reports, 65536)
        except BlockingIOError:
            return self._report
        if not data and not self.begun:
            given_up = f", given up after {self._waited()}" if self._given_up else ""
            raise SetupError(_LEAD, f"the supervising process ended before the job began{given_up}",
                             hint=_SLOW if given_up else _hint(_LEAD, 0))  # fmt: skip
        if not data:
            self.is_over = True
            return self._report or self._lost()
        return self._take(data)

    def _take(self, data: bytes) -> Report | None:
        try:
            for kind, body in self._frames.feed(data):
                self._handle(kind, body)
        except wire.Garbled:
            self.begun = True  # whichever of them speaks
            return self._lost()
        return self._report

    def ask(self, within_s: float) -> bool:
        """Have the leader report everything recorded up to now. Return whether it has, or had when it left."""
        before, give_up = self._pages_heard, time.monotonic() + within_s
        self._send(bytes((wire.TELL,)))
        while self._pages_heard == before and not self.has_left:
            if self.is_over or self._reports < 0 or time.monotonic() > give_up:
                return self.has_left or self._pages_heard != before  # another thread may have heard it just now
            self.await_word(_ASK_LOOK_S)  # not for long: another thread may take what is waited for
        return True

    def await_word(self, within_s: float) -> None:
        """Take what the leader says, if it comes in this time; nobody waits for a report any more."""
        try:
            if self._reports >= 0 and wire.is_readable(self._reports, within_s):
                with self._open_lock:
                    self._receive()
        except SetupError:
            self.is_over = True

    @property
    def is_told(self) -> bool:
        """Whether it has reported its end."""
        return self._report is not None

    def take_pages(self) -> list[Note]:
        """What the recorder has said of itself since the last time, except for what is in the report."""
        taken, self._pages = self._pages, []
        return taken

    def _handle(self, kind: bytes, body: bytes) -> None:
        if kind == wire.STARTED:
            self.begun = True
            self.leader = wire.decode_started(body)
            self._leader_pidfd = open_pidfd(self.leader)
        elif kind == wire.READY:
            self._identity, self.ready = wire.decode_ready(body), True
        elif kind == wire.FAILED:
            step, number, problem = wire.decode_failed(body)
            hint = EXEC_HINTS.get(number, "") if step == "exec" else _hint(step, number)
            raise SetupError(step, problem, errno=number, hint=hint)
        elif kind == wire.NOTED and len(self._notes) < _MAX_NOTES:
            self._notes.append(wire.decode_json(body))
        elif kind == wire.HEALTH:
            if len(self._pages) >= _MAX_PAGES:
                raise wire.Garbled(f"more than {_MAX_PAGES} pages of a recorder")
            self._pages.append(wire.decode_json(body) if body else dict(wire.NOTHING_SEEN))
            self._pages_heard += 1
        elif kind == wire.LEFT:
            self.has_left = True
        elif kind == wire.ENDED:
            recorder = self._pages[-1] if self._pages else {}
            self._report = self._with_earlier(report_of(wire.decode_ended(body), recorder))
            if self.is_a_result:
                self._pages.clear()

    def _with_earlier(self, report: Report) -> Report:
        late = self.earlier() if self.earlier is not None else ()
        if not late:
            return report
        from ringfence.checkpoint.late import with_late

        self._notes += (dict(note) for each in late for note in each.notes)
        return replace(report, recorder=with_late(report.recorder, (), late))

    def take_notes(self) -> list[Note]:
        taken, self._notes = self._notes, []
        return taken

    def _lost(self) -> Report:
        """The leader ended without a word: it was killed, by the job or by the host."""
        self.abandon()
        return Report(leader_lost=True, signal=9)

    def source(self) -> Source:
        """Where this visit's processes can be looked at."""
        from ringfence.monitor.source import Source

        return Source(leaders=lambda: (self.leader,) if self.leader else (), terminate=lambda: self.signal(_SIGKILL))

    def signal(self, number: int) -> None:
        self._send(bytes((number,)))

    def abandon(self) -> None:
        if self._source.led_together and not self._asked_to_end:
            self._abandon_one_of_many()
        else:
            self._abandon_leader()

    def _abandon_leader(self) -> None:
        with self._open_lock:
            if self._leader_pidfd >= 0:
                kill_pidfd(self._leader_pidfd)
            # One of many sandboxes of a warden was asked to end and does not: does the warden still answer?
            if self._reports < 0 or (self.begun and not self._source.led_together):
                return
            reports = os.dup(self._reports)
        self._given_up = not self.begun
        try:
            self._source.give_up(reports)
        finally:
            os.close(reports)

    def _abandon_one_of_many(self) -> None:
        """Its leader ends it when it hears this. A leader that is stopped hears nothing, and holds no limits."""
        self._asked_to_end, self._given_up = True, not self.begun
        if self.is_stopped():
            self._source.kill()
        else:
            self.signal(_SIGKILL)

    def close(self) -> None:
        """End the job if it runs, and wait until its tree is gone: its directory is removed next.

        The end of a sandbox that stood by is told before the last of it is gone: its box waits for that (``release``).
        """
        if self._report is None or not self._stood_by:
            self.release()

    def let_go(self) -> None:
        if self._forked and self._report is None:
            self.signal(_SIGKILL)

    def release(self) -> None:
        """Wait until nothing is left, and free what the visit holds."""
        self.let_go()
        if self._forked and (self._report is None or self._stood_by):
            self._await_end()
        self._forked = False
        self.leader = 0
        with self._open_lock:
            self._close_descriptors()

    def _close_descriptors(self, close: Callable[[int], None] = os.close) -> None:
        for name in ("_commands", "_reports", "_leader_pidfd", "_post"):
            descriptor = getattr(self, name, -1)
            setattr(self, name, -1)
            if descriptor >= 0:
                close(descriptor)

    def __del__(self) -> None:
        """Dropped without being closed: its leader sees that the caller is gone, and ends and clears everything."""
        self._close_descriptors()

    def _await_end(self) -> None:
        """Until the leader has closed its side, which it does when nothing of the tree is left."""
        import select

        self.earlier = None  # nobody reads its report any more, so it must not use up late attempts
        poller = select.poll()
        poller.register(self._reports, select.POLLIN)
        for wait_ms in (_END_WAIT_MS, _KILL_WAIT_MS):
            while poller.poll(wait_ms):
                data = os.read(self._reports, 65536)
                if not data:
                    return
                self._hear_last(data)
            self.abandon()

    def _hear_last(self, data: bytes) -> None:
        """Report what it tried, but no longer how it failed."""
        try:
            self._take(data)
        except SetupError:
            pass


def _hint(step: str, number: int) -> str:
    from ringfence.sandbox import container_around

    return container_around.hint(step, number)
