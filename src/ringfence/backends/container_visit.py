"""One job in a container: its streams come over the engine's connection, and the engine and the kernel tell of its end.

Two threads serve it: one carries bytes and looks at the control group, the other waits for the end and holds the
deadline. What they find is in one report; the caller is woken by a pipe.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping

from ringfence.backends.facts import Report
from ringfence.container import first_process, group_files
from ringfence.container.api import Attached, Client
from ringfence.container.frames import STDERR, STDOUT, Frames
from ringfence.errors import SandboxError
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.monitor.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.egress_link import EgressLink
    from ringfence.transport.report import Note

_PIECE = 1 << 16
_LOOK_MS, _ASK_S = 25, 0.5
"""How often the group's files are read; and how often the engine is asked if they can't be read."""
_DRAIN_S, _KILL_S = 5.0, 10.0
_FIRST_SIGNAL, _LAST_SIGNAL = 129, 192
_SIGKILL = 9


class ContainerVisit:
    """Followed from its start to its end."""

    entered = True
    operations = -1

    def __init__(self, client: Client, container: str, name: str, attached: Attached, streams: tuple[int, ...],
                 policy: SandboxPolicy, close: Callable[[str, str], None], *, tty: bool = False,
                 has_group: bool = True, has_word: bool = False, link: EgressLink | None = None) -> None:  # fmt: skip
        """``close``: removes the container, once. ``has_group``: it has a control group of its own; else what an engine
        says of its use is the whole host's. ``has_word``: its first process is ours. ``link``: of a ``ListedVisit``."""
        self._link = link
        self.begun = True
        self._client, self._container, self._name = client, container, name
        self._policy, self._close, self._tty, self._has_group = policy, close, tty, has_group
        self._attached = attached
        self._word = first_process.LastWord() if has_word else None
        self._streams = [os.dup(stream) for stream in streams[:3]]
        self._begin_ns = time.monotonic_ns()
        self._deadline = time.monotonic() + policy.wall_time_s
        self.places = group_files.locate(container)
        self._facts = ContainerCounters()
        self._cause, self._measured = "", 0
        self._report: Report | None = None
        self._over, self._dropping = threading.Event(), threading.Event()
        self._told, self._tell = os.pipe()
        self._carrier = threading.Thread(target=self._carry, daemon=True, name="ringfence-container-streams")
        self._follower = threading.Thread(target=self._follow, daemon=True, name="ringfence-container-end")
        self._carrier.start()
        self._follower.start()

    # ---- what supervision asks

    def may_begin(self) -> bool:
        return False

    def is_stopped(self) -> bool:
        return False

    def source(self) -> Source:
        places = {"memory": self.places.get("memory"), "pids": self.places.get("pids"),
                  "cpu_usage": self.places.get("cpuacct")}  # fmt: skip
        groups = {name: place for name, place in places.items() if place}
        return Source(groups=groups, terminate=lambda: self.signal(_SIGKILL))

    def filenos(self) -> tuple[int, ...]:
        return () if self._told < 0 else (self._told,)

    def receive(self) -> Report | None:
        return self._report

    def take_notes(self) -> list[Note]:
        return []

    def signal(self, number: int) -> None:
        if number == _SIGKILL:
            self._kill("asked")
            return
        try:
            self._client.kill(self._container, number)
        except SandboxError:
            return  # it ends, or the engine does: the thread that waits for it reports that

    def abandon(self) -> None:
        """The engine has not answered: the guardian does what can be done."""
        self._dropping.set()
        self._attached.hang_up()
        self._finish(Report(leader_lost=True, wall_ns=time.monotonic_ns() - self._begin_ns))

    def close(self) -> None:
        """End it if it runs, and free what it holds."""
        if self._told < 0:
            return
        self._dropping.set()
        if self._report is None:
            self._kill("asked")
        self._follower.join(_KILL_S)
        self._attached.hang_up()
        self._carrier.join(_DRAIN_S)
        self._close(self._container, self._name)
        for descriptor in (self._told, self._tell):
            os.close(descriptor)
        self._told = -1
        if not self._carrier.is_alive():
            while self._streams:
                os.close(self._streams.pop())

    # ---- the end

    def _kill(self, cause: str, measured: int = 0) -> None:
        """Those that can be seen from here by us, the container by its engine: pid 1 may not get to run. In a thread of
        its own. The engine answers when the container has ended, and that happens only after its
        output is read, by the same threads that ask for the kill."""
        self._cause, self._measured = self._cause or cause, self._measured or measured

        def kill() -> None:
            group_files.kill(self.places)
            try:
                self._client.kill(self._container)
            except SandboxError:
                return  # the thread that waits for its end finds out

        threading.Thread(target=kill, daemon=True, name="ringfence-container-kill").start()

    def _finish(self, report: Report) -> None:
        if self._report is None:
            self._report = report
            self._over.set()
            os.write(self._tell, b"!")

    def _follow(self) -> None:
        try:
            while self._client.wait(self._container, max(0.01, self._deadline - time.monotonic())) is None:
                if self._cause:
                    break  # killed, and it still runs
                self._kill("wall_time")
                self._deadline = time.monotonic() + _KILL_S
            state = self._client.inspect(self._container).get("State")
        except SandboxError:  # the engine is gone: nobody knows how it went
            self._finish(Report(leader_lost=True, wall_ns=time.monotonic_ns() - self._begin_ns))
            return
        wall_ns = time.monotonic_ns() - self._begin_ns
        self._carrier.join(_DRAIN_S)  # what it printed comes before its end
        self._finish(self._reported(state if isinstance(state, Mapping) else {}, wall_ns))

    def _reported(self, state: Mapping[str, object], wall_ns: int) -> Report:
        """The engine's facts; nothing here is the job's word."""
        code = state.get("ExitCode")
        code = code if isinstance(code, int) else 255
        # An engine tells a signal as 128 and its number, as a shell does: an exit status of that number looks the same,
        # unless the first process is ours.
        exited = not _FIRST_SIGNAL <= code <= _LAST_SIGNAL or (self._word is not None and self._word.heard)
        signal = None if exited else code - 128
        facts = self._facts
        ooms = max(int(state.get("OOMKilled") is True), facts.ooms)
        return Report(
            exit_code=None if signal else code, signal=signal, cause=self._cause, measured=self._measured,
            wall_ns=wall_ns, cpu_user_us=facts.cpu_ns // 1000, peak_memory_bytes=facts.peak, processes=facts.tasks,
            cgroup_oom_kills=0 if self._cause else ooms, cgroup_pids_hits=facts.refused,
            survivors=int(state.get("Running") is True),
        )  # fmt: skip

    # ---- the streams, and a look at the group

    def _carry(self) -> None:
        carrier = _Carrier(self._attached, self._streams, self._dropping, self._word, tty=self._tty)
        size = (0, 0)
        events = group_files.pids_events(self.places)
        if events:
            carrier.watch(events)
        asked = 0.0
        try:
            while carrier.step(_LOOK_MS) and not self._over.is_set():
                if self.places:
                    self._facts.look(self.places)
                elif self._has_group and time.monotonic() - asked >= _ASK_S:
                    asked = time.monotonic()
                    self._facts.ask(self._client, self._container)
                if self._tty and size != (now := _size(self._streams[0])):
                    size = now
                    self._client.resize(self._container, *size)
                used_ms = self._facts.cpu_ns // 10**6
                if not self._cause and used_ms > self._policy.cpu_time_s * 1000:
                    self._kill("cpu_time", used_ms)
        except SandboxError:
            self._kill("asked")  # not frames: nothing in it can be reported
        finally:
            self._facts.look(self.places)
            carrier.close()
            self._attached.close()


class ListedVisit(ContainerVisit):
    """A visit whose network leads to the gateway: it reports what the gateway decided."""

    @property
    def link(self) -> EgressLink:
        assert self._link is not None
        return self._link

    def filenos(self) -> tuple[int, ...]:
        return self.link.beside(super().filenos())

    def receive(self) -> Report | None:
        self.link.read()
        return self.link.ended_with(super().receive())

    def take_notes(self) -> list[Note]:
        return self.link.take()

    def source(self) -> Source:
        return replace(super().source(), network=self.link.network_bytes)


class ContainerCounters:
    """What was seen while it ran; each number only grows."""

    def __init__(self) -> None:
        self.cpu_ns = self.peak = self.tasks = self.refused = self.ooms = 0

    def look(self, places: Mapping[str, str]) -> None:
        self.cpu_ns = max(self.cpu_ns, group_files.processor_ns(places))
        self.peak = max(self.peak, group_files.peak_bytes(places))
        self.tasks = max(self.tasks, group_files.tasks(places))
        self.refused = max(self.refused, group_files.refused_tasks(places))
        self.ooms = max(self.ooms, group_files.killed_for_memory(places))

    def ask(self, client: Client, container: str) -> None:
        try:
            said = client.stats(container)
        except SandboxError:
            return  # it has ended
        self.cpu_ns = max(self.cpu_ns, _number(said, "cpu_stats", "cpu_usage", "total_usage"))
        self.peak = max(self.peak, _number(said, "memory_stats", "max_usage"), _number(said, "memory_stats", "usage"))
        self.tasks = max(self.tasks, _number(said, "pids_stats", "current"))


def _number(said: object, *path: str) -> int:
    for name in path:
        said = said.get(name) if isinstance(said, Mapping) else None
    return said if isinstance(said, int) else 0


class _Carrier:
    """Carries bytes between the job's descriptors and the connection, in one thread."""

    def __init__(self, attached: Attached, streams: list[int], dropping: threading.Event,
                 word: first_process.LastWord | None, *, tty: bool) -> None:  # fmt: skip
        """``dropping``: nobody reads any more, so nothing is passed on. ``word``: after which to listen."""
        self._word = word
        self._attached, self._streams, self._dropping = attached, streams, dropping
        for stream in streams[1:]:
            os.set_blocking(stream, False)
        self._frames = None if tty else Frames()
        if tty:
            _make_raw(streams[0])
        self._pending = memoryview(b"")
        self._feeds = True
        self._events = -1
        self._poller = select.poll()
        self._poller.register(attached.fileno(), select.POLLIN)
        self._poller.register(streams[0], select.POLLIN)

    def watch(self, path: str) -> None:
        """Wake when this file of the kernel's changes."""
        try:
            self._events = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.pread(self._events, 100, 0)  # what is new is new from here on
            self._poller.register(self._events, select.POLLPRI)
        except OSError:
            return

    def step(self, wait_ms: int) -> bool:
        """Carry what is there; False when the job's output has ended."""
        for descriptor, ready in self._poller.poll(wait_ms):
            if descriptor == self._events:
                self._heard()
            elif descriptor == self._streams[0]:
                self._take_input()
            elif ready & ~select.POLLOUT and not self._pass_output():
                return False
        self._feed()
        return True

    def _heard(self) -> None:
        try:
            os.pread(self._events, 100, 0)
        except OSError:  # the group is gone
            self._poller.unregister(self._events)

    def _pass_output(self) -> bool:
        data = self._attached.receive(_PIECE)
        if not data:
            return False
        if self._frames is None:
            self._write(self._streams[1], self._without_word(memoryview(data)))
            return True
        for stream, piece in self._frames.feed(data):
            passed = self._without_word(piece) if stream == STDERR else piece
            self._write(self._streams[{STDOUT: 1, STDERR: 2}[stream]], passed)
        return True

    def _without_word(self, data: memoryview) -> memoryview:
        return data if self._word is None else self._word.pass_on(data)

    def _write(self, descriptor: int, data: memoryview) -> None:
        """Whoever reads may be slow, or gone."""
        while data and not self._dropping.is_set():
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(descriptor, select.POLLOUT)
                waiting.poll(_LOOK_MS)
            except OSError:
                return

    def _take_input(self) -> None:
        """One piece at a time: what the job does not read stays where it is."""
        try:
            data = os.read(self._streams[0], _PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._poller.unregister(self._streams[0])
        self._pending = memoryview(data)
        if not data:
            self._end_input()

    def _feed(self) -> None:
        if not self._pending:
            return
        try:
            self._pending = self._pending[self._attached.send(self._pending) :]
        except BlockingIOError:
            pass
        except OSError:
            self._end_input()
        self._poller.modify(self._attached.fileno(), select.POLLIN | (select.POLLOUT if self._pending else 0))
        if not self._pending and self._feeds:
            self._poller.register(self._streams[0], select.POLLIN)

    def _end_input(self) -> None:
        self._pending = memoryview(b"")
        self._feeds = False
        self._attached.close_input()

    def close(self) -> None:
        if self._word is not None:
            self._write(self._streams[1 if self._frames is None else 2], memoryview(self._word.rest()))
        if self._events >= 0:
            os.close(self._events)


def _make_raw(terminal: int) -> None:
    """The job's terminal is the engine's; ours only passes on what is typed and shown."""
    import tty

    try:
        tty.setraw(terminal)
    except OSError:
        return  # somebody has closed its other side


def _size(terminal: int) -> tuple[int, int]:
    """Rows and columns."""
    try:
        columns, rows = os.get_terminal_size(terminal)
    except OSError:
        return 0, 0
    return rows, columns
