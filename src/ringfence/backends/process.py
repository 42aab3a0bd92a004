"""PROCESS: a separate session with resource limits and a watchdog. Needs nothing but POSIX.

It bounds what a program uses and ends its whole tree. It does not hide anything: the program has the
caller's user, files and network. The two levels that run a job as a plain child process, this one and
``unsafe``, differ in one table.
"""

from __future__ import annotations

import os
import sys
from _collections_abc import Callable, Mapping

from ringfence.backends.facts import Lack, Report
from ringfence.backends.scratch import Scratch
from ringfence.errors import SetupError
from ringfence.model.job import Job
from ringfence.model.limits import LIMIT_OF, IsolationLevel
from ringfence.model.outcome import Change, Enforcement
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.posix import rlimits, spawner, wire

_UMASK = 0o022
_SIGKILL = 9
_MAX_NOTES = 10_000
_WATCHDOG = "watchdog"
# Longer than a leader tries to end its tree; then it is killed, and that takes no time.
_END_WAIT_MS, _KILL_WAIT_MS = 12_000, 1_000
_NOT_HERE = {
    "cpu_share": ("cgroups", "use isolation strict, which holds it with cpu.max"),
    "network": ("a network namespace or seccomp", "use isolation strict"),
    "readable_paths": ("a mount namespace or Landlock", "use isolation strict"),
    "writable_paths": ("a mount namespace or Landlock", "use isolation strict"),
    "hidden_paths": ("a mount namespace or Landlock", "use isolation strict"),
    "syscalls": ("seccomp", "use isolation strict"),
}
_MECHANISMS: Mapping[str, tuple[str, str]] = {
    "wall_time": ("deadline", "the whole tree is killed at the deadline"),
    "cpu_time": ("RLIMIT_CPU and watchdog", "a process by the kernel, the tree a second later"),
    "memory": ("RLIMIT_AS and watchdog", "address space of a process, resident memory of the tree"),
    "pids": (_WATCHDOG, "tasks of the tree, looked at every 25 ms; RLIMIT_NPROC as a net under it"),
    "nofile": ("RLIMIT_NOFILE", "per process"),
    "output": ("pipe reader", "each stream"),
    "disk": (_WATCHDOG, "bytes written to storage by the tree, looked at every 25 ms"),
    "file_size": ("RLIMIT_FSIZE", "each file"),
}


class ProcessBackend:
    """Runs the job as an ordinary child in a session of its own."""

    level = IsolationLevel.PROCESS

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        if os.name != "posix":
            return tuple(_windows_lack(name) for name in policy.requested())
        asked = policy.requested()
        missing = [_not_here(name) for name in asked if name in _NOT_HERE]
        if sys.platform != "linux" and "disk" in asked:
            missing.append(Lack(capability="disk", missing="/proc/<pid>/io", fix="run on Linux"))
        return (*missing, *beyond_hard_limits(policy))

    def open(self, policy: SandboxPolicy) -> ProcessBox:
        lacking = {lack.capability: lack for lack in self.lacks(policy)}
        return ProcessBox(policy, enforcement_table(policy, _MECHANISMS, lacking), plan_limits)


def enforcement_table(
    policy: SandboxPolicy, mechanisms: Mapping[str, tuple[str, str]], lacking: Mapping[str, Lack]
) -> dict[str, Enforcement]:
    """What becomes of every capability that the policy asks for."""
    table = {}
    for name, asked in policy.requested().items():
        if name in lacking:
            lack = lacking[name]
            entry = Enforcement(
                requested=asked, applied=False, mechanism="none",
                details=f"missing: {lack.missing}; to have it: {lack.fix}",
            )  # fmt: skip
        else:
            mechanism, details = mechanisms[name]
            entry = Enforcement(requested=asked, applied=True, mechanism=mechanism, details=details)
        table[name] = entry
    return table


def _not_here(name: str) -> Lack:
    missing, fix = _NOT_HERE[name]
    return Lack(capability=name, missing=missing, fix=fix)


def beyond_hard_limits(policy: SandboxPolicy) -> tuple[Lack, ...]:
    """What this process itself may not grant."""
    return tuple(_over(*row) for row in rlimits.beyond_hard_limit(policy.numbers()))


def _over(capability: str, name: str, hard: int) -> Lack:
    flag = LIMIT_OF[capability].flag
    return Lack(
        capability=capability,
        missing=f"room under this process' hard {name} of {hard}",
        fix=f"ask for less with {flag}, or raise the hard limit before starting (ulimit -H)",
    )


def _windows_lack(name: str) -> Lack:
    return Lack(capability=name, missing="a POSIX system", fix="run on Linux or macOS")


def plan_limits(policy: SandboxPolicy) -> list[tuple[object, ...]]:
    """The rlimit steps of the plan, in the order of the table."""
    asked = policy.numbers()
    for capability, _, _ in rlimits.beyond_hard_limit(asked):
        del asked[capability]  # the host's own hard limit is below it and stays in force
    return [("rlimit", *row) for row in rlimits.rows(asked, _host_tasks())]


def _host_tasks() -> int:
    if sys.platform == "linux":
        from ringfence.linux import procfs

        return procfs.task_count()
    return 0


class ProcessBox:
    """A box that is only a folder and a plan; each visit is led by a process of its own."""

    def __init__(
        self,
        policy: SandboxPolicy,
        enforced: Mapping[str, Enforcement],
        limit_steps: Callable[[SandboxPolicy], list[tuple[object, ...]]],
    ) -> None:
        self.policy = policy
        self.enforced = enforced
        self._limit_steps = limit_steps
        self._scratch = Scratch()

    def start(self, job: Job, streams: tuple[int, ...]) -> ProcessVisit:
        folder = self._scratch.prepare(job)
        return ProcessVisit(self._request(job, folder), streams)

    def _request(self, job: Job, folder: str) -> dict[str, object]:
        environment = self._scratch.environment(self.policy, job)
        steps: list[tuple[object, ...]] = [("session",)]
        if job.terminal:
            steps.append(("terminal",))
        steps += [("folder", folder), ("umask", _UMASK), ("signals",), ("no new privileges",)]
        # Last, because they bind this process too and exec must still find room.
        steps += self._limit_steps(self.policy)
        steps.append(("exec", list(job.argv), environment))
        return {
            "plan": steps,
            "limits": self._watched(),
            "scratch": self._scratch.path,
        }

    def _watched(self) -> dict[str, float]:
        unlimited = dict.fromkeys(("cpu_time", "memory", "pids"), float("inf"))
        numbers = self.policy.numbers()
        return unlimited | {name: numbers[name] for name in numbers if self.enforced[name].applied}

    def changes(self) -> tuple[Change, ...]:
        return ()  # the job writes the caller's files themselves

    def commit(self) -> None:
        return

    def close(self) -> str:
        return self._scratch.remove()


class ProcessVisit:
    """The caller's end of the pipes to one leader."""

    def __init__(self, request: dict[str, object], streams: tuple[int, ...]) -> None:
        self._frames = wire.Frames()
        self._commands = self._reports = self._leader_pidfd = -1
        self._report: Report | None = None
        self._notes: list[dict[str, object]] = []
        self._recorder: dict[str, object] = {}
        self._forked = self._started = False
        message = wire.encode_request(request)
        try:
            self._open(streams)
            self._send(message)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise SetupError("reach the leader", str(error)) from error
            raise

    def _fork_leader(self, descriptors: list[int]) -> None:
        spawner.fork_leader(descriptors)

    def _give_up_on_forker(self) -> None:
        spawner.give_up_on_spawner()

    def _open(self, streams: tuple[int, ...]) -> None:
        theirs: list[int] = []
        try:
            commands, self._commands = os.pipe()
            theirs.append(commands)
            self._reports, reports = os.pipe()
            theirs.append(reports)
            theirs.append(_owner_watch(commands))
            self._fork_leader([*theirs, *streams])
            self._forked = True
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(self._reports, False)

    def fileno(self) -> int:
        return self._reports

    def _send(self, data: bytes) -> None:
        try:
            wire.write_all(self._commands, data)
        except BrokenPipeError:
            pass  # the leader has ended; receive() tells how

    def receive(self) -> Report | None:
        try:
            data = os.read(self._reports, 65536)
        except BlockingIOError:
            return None
        if not data and not self._started:
            raise SetupError("lead", "the supervising process ended before the job began")
        if not data:
            return self._report or self._lost()
        try:
            for kind, body in self._frames.feed(data):
                self._handle(kind, body)
        except wire.Garbled:
            self._started = True  # whoever it is that speaks
            return self._lost()
        return self._report

    def _handle(self, kind: bytes, body: bytes) -> None:
        if kind == wire.STARTED:
            self._started = True
            self._leader_pidfd = _pidfd(wire.decode_started(body))
        elif kind == wire.FAILED:
            step, number, problem = wire.decode_failed(body)
            raise SetupError(step, problem, hint=_setup_hint(step, number))
        elif kind == wire.NOTED and len(self._notes) < _MAX_NOTES:
            self._notes.append(wire.decode_json(body))
        elif kind == wire.HEALTH:
            self._recorder = wire.decode_json(body)
        elif kind == wire.ENDED:
            self._report = replace(_as_report(wire.decode_ended(body)), recorder=self._recorder)

    def take_notes(self) -> list[dict[str, object]]:
        taken, self._notes = self._notes, []
        return taken

    def _lost(self) -> Report:
        """The leader ended without a word: it was killed, by the job or by the host."""
        self.abandon()
        return Report(leader_lost=True, signal=9)

    def signal(self, number: int) -> None:
        self._send(bytes((number,)))

    def abandon(self) -> None:
        if self._leader_pidfd >= 0:
            _kill_pidfd(self._leader_pidfd)
        elif not self._started:
            self._give_up_on_forker()

    def close(self) -> None:
        """End the job if it runs, and wait until its tree is gone: its folder is removed next."""
        if self._forked and self._report is None:
            self.signal(_SIGKILL)
            self._await_end()
        self._forked = False
        for name in ("_commands", "_reports", "_leader_pidfd"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)

    def _await_end(self) -> None:
        """Until the leader has closed its side, which it does when nothing of the tree is left."""
        import select

        poller = select.poll()
        poller.register(self._reports, select.POLLIN)
        for wait_ms in (_END_WAIT_MS, _KILL_WAIT_MS):
            while poller.poll(wait_ms):
                if not os.read(self._reports, 65536):
                    return
            self.abandon()


def _as_report(fields: dict[str, int]) -> Report:
    status = fields.pop("wait_status")
    cause = fields.pop("cause")
    if not 0 <= cause < len(wire.CAUSES):
        raise wire.Garbled(f"cause {cause}")
    report = Report(cause=wire.CAUSES[cause], **fields)  # type: ignore[arg-type]
    if status >= 0 and os.WIFEXITED(status):
        return replace(report, exit_code=os.WEXITSTATUS(status))
    return replace(report, signal=os.WTERMSIG(status) if status >= 0 else 9)


def _setup_hint(step: str, number: int) -> str:
    import errno

    if step == "exec" and number == errno.ENOENT:
        return "is the program's name right, and is it on the PATH that the job gets?"
    if step == "exec" and number == errno.EACCES:
        return "is the file executable?"
    return ""


def _owner_watch(commands: int) -> int:
    """Readable when this process ends, whatever other process holds copies of its pipes."""
    if sys.platform == "linux":
        return os.pidfd_open(os.getpid())
    return os.dup(commands)  # elsewhere the end of the command pipe has to do; the leader ignores this


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid) if sys.platform == "linux" and pid > 1 else -1
    except OSError:
        return -1


def _kill_pidfd(descriptor: int) -> None:
    import signal

    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        pass
