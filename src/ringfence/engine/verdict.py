"""From the bare facts of an end to a status, a return code and a reason with the evidence in it.

Only here is decided what an end means. The one thing taken from the job itself is the last line of
its stderr, and only to say *which* of the limits in force made a program fail that failed anyway: a
program can make its failure look like another failure, never like a success.
"""

from __future__ import annotations

from _collections_abc import Callable

from ringfence.backends.facts import Report
from ringfence.model.limits import format_size
from ringfence.model.outcome import FIXED_RC, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record, replace

_KILLED_RC = 128 + 9
_CRASH_SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGQUIT"})
_SIGNAL_STATUS = {
    "SIGTERM": Status.KILLED_TERM,
    "SIGKILL": Status.KILLED_KILL,
    "SIGXFSZ": Status.FILE_SIZE_LIMIT,
    "SIGSYS": Status.FORBIDDEN_SYSCALL,
}
_CAPABILITY_STATUS = {
    "wall_time": Status.TIMEOUT,
    "cpu_time": Status.CPU_LIMIT,
    "memory": Status.MEM_LIMIT,
    "pids": Status.PIDS_LIMIT,
    "nofile": Status.NOFILE_LIMIT,
    "file_size": Status.FILE_SIZE_LIMIT,
    "disk": Status.DISK_LIMIT,
    "output": Status.OUTPUT_LIMIT,
    "asked": Status.KILLED_KILL,
    "owner_gone": Status.KILLED_KILL,
}
# What programs say on stderr when the kernel refused them something, and whose limit that is.
_CLUES: tuple[tuple[bytes, str], ...] = (
    (b"MemoryError", "memory"),
    (b"Cannot allocate memory", "memory"),
    (b"std::bad_alloc", "memory"),
    (b"out of memory", "memory"),
    (b"Too many open files", "nofile"),
    (b"File too large", "file_size"),
    (b"File size limit exceeded", "file_size"),
    (b"No space left on device", "disk"),
    (b"can't start new thread", "pids"),
    (b"Resource temporarily unavailable", "pids"),
)


@record
class Verdict:
    """What an end means."""

    status: Status
    rc: int
    reason: str
    limits_hit: tuple[str, ...] = ()


def judge(report: Report, policy: SandboxPolicy, applied: frozenset[str], stderr_tail: bytes) -> Verdict:
    """The first rule that fits decides."""
    for rule in _RULES:
        verdict = rule(report, policy, applied, stderr_tail)
        if verdict is not None:
            return _with_memory_of_the_box(verdict, report, policy)
    raise AssertionError("the last rule fits everything")


def _with_memory_of_the_box(verdict: Verdict, report: Report, policy: SandboxPolicy) -> Verdict:
    """The limit was reached while the visit was there. How the visit itself ended stays as it was: the process that
    was killed may be one that an earlier visit left, or one that the job can do without."""
    if not report.box_oom_kills or "memory" in verdict.limits_hit:
        return verdict
    limit = format_size(policy.mem_bytes)
    told = f"the box reached {limit} meanwhile (memory cgroup, oom_kill {report.box_oom_kills})"
    return replace(verdict, reason=f"{verdict.reason}; {told}", limits_hit=(*verdict.limits_hit, "memory"))


def _own_rc(report: Report) -> int:
    return 128 + (report.signal or 0) if report.exit_code is None else report.exit_code


def _verdict(status: Status, report: Report, reason: str, hit: str = "") -> Verdict:
    # A job can exit with 0 in the moment in which it is killed for a limit: that is no success.
    rc = FIXED_RC.get(status, _own_rc(report) or _KILLED_RC)
    return Verdict(status=status, rc=rc, reason=reason, limits_hit=(hit,) if hit else ())


def _lost(report: Report, *_: object) -> Verdict | None:
    if not report.leader_lost:
        return None
    reason = "the supervising process of the job was killed, and the job with it"
    return _verdict(Status.KILLED_KILL, report, reason)


def _killed_by_us(report: Report, policy: SandboxPolicy, *_: object) -> Verdict | None:
    if not report.cause:
        return None
    status = _CAPABILITY_STATUS.get(report.cause, Status.KILLED_KILL)
    hit = report.cause if report.cause in _EVIDENCE else ""
    reason = _EVIDENCE.get(report.cause, _ended_on_request)(report, policy)
    return _verdict(status, report, reason, hit)


def _ended_on_request(report: Report, _: SandboxPolicy) -> str:
    said = {
        "asked": "the caller ended it",
        "owner_gone": "the caller is gone",
        "holder_gone": "somebody in the box killed the process that holds the visit, or there was no room for it",
    }
    return said.get(report.cause, f"killed for {report.cause}")


_EVIDENCE: dict[str, Callable[[Report, SandboxPolicy], str]] = {
    "wall_time": lambda _, p: f"still running after {p.wall_time_s:g} s (wall clock)",
    "cpu_time": lambda r, p: (
        f"the tree used {r.measured / 1000:.1f} s of {p.cpu_time_s:g} s processor time (watchdog)"
    ),
    "memory": lambda r, p: (
        f"the tree reached {format_size(r.measured)} of {format_size(p.mem_bytes)} resident memory (watchdog)"
    ),
    "pids": lambda r, p: f"the tree reached {r.measured} tasks, {p.pids_max} are allowed (watchdog)",
    "disk": lambda r, p: (
        f"the tree wrote {format_size(r.measured)}, {format_size(int(p.numbers()['disk']))} are allowed (watchdog)"
    ),
    "output": lambda _, p: f"printed more than {format_size(p.output_bytes)} on one stream",
}


def _forbidden_call(report: Report, *_: object) -> Verdict | None:
    """A process was ended for a system call, and the job did not succeed."""
    name = report.recorder.get("forbidden")
    if not name or report.exit_code == 0:
        return None
    reason = f"made the system call {name}, which is not allowed (seccomp); its process was killed"
    return _verdict(Status.FORBIDDEN_SYSCALL, report, reason, "syscalls")


def _held_by_cgroup(report: Report, policy: SandboxPolicy, *_: object) -> Verdict | None:
    """Its own cgroup says why it ended; an out-of-memory kill of any of its processes makes it no success."""
    if report.cgroup_oom_kills:
        limit = format_size(policy.mem_bytes)
        reason = f"the process tree reached {limit} (memory cgroup, oom_kill {report.cgroup_oom_kills})"
        return _verdict(Status.MEM_LIMIT, report, reason, "memory")
    if report.cgroup_pids_hits and report.exit_code != 0:
        reason = f"refused a task beyond {policy.pids_max} (pids cgroup, {report.cgroup_pids_hits} times)"
        return _verdict(Status.PIDS_LIMIT, report, reason, "pids")
    return None


def _out_of_memory(report: Report, *_: object) -> Verdict | None:
    """The box's own group killed while this visit ran. The host's count proves nothing: any process may raise it."""
    if report.signal != 9 or report.box_oom_kills <= 0:
        return None
    reason = f"killed by the kernel's out-of-memory killer (oom_kill +{report.box_oom_kills} while it ran)"
    return _verdict(Status.MEM_LIMIT, report, reason, "memory")


def _processor_time(
    report: Report, policy: SandboxPolicy, applied: frozenset[str], _: bytes
) -> Verdict | None:
    """SIGXCPU, or the SIGKILL that follows when it is ignored, of the job or of a child it waited for.

    A program that sent itself the signal has not used the time; half of it is far from both.
    """
    used_s = (report.cpu_user_us + report.cpu_system_us) / 1e6
    ended_so = report.signal in (9, 24) or report.exit_code in (128 + 24, 128 + 9)
    if "cpu_time" not in applied or not ended_so or used_s < policy.cpu_time_s / 2:
        return None
    obeyed = 24 in (report.signal, (report.exit_code or 0) - 128)
    how = "SIGXCPU" if obeyed else "SIGKILL after SIGXCPU was ignored"
    reason = f"used {used_s:.1f} s of {policy.cpu_time_s:g} s processor time (RLIMIT_CPU, {how})"
    return _verdict(Status.CPU_LIMIT, report, reason, "cpu_time")


def _signalled(report: Report, *_: object) -> Verdict | None:
    if report.signal is None:
        return None
    name = _signal_name(report.signal)
    status = _SIGNAL_STATUS.get(name, Status.CRASHED if name in _CRASH_SIGNALS else Status.KILLED_SIGNAL)
    reason = {
        Status.KILLED_KILL: _killed_from_outside(report),
        Status.KILLED_TERM: "SIGTERM, sent by somebody or by itself",
        Status.FILE_SIZE_LIMIT: "wrote past the allowed size of a file (RLIMIT_FSIZE, SIGXFSZ)",
        Status.FORBIDDEN_SYSCALL: "made a system call that is not allowed (SIGSYS)",
        Status.CRASHED: f"crashed with {name}",
    }.get(status, f"ended by {name}")
    return _verdict(status, report, reason, "file_size" if status is Status.FILE_SIZE_LIMIT else "")


def _killed_from_outside(report: Report) -> str:
    if not report.oom_kills:
        return "SIGKILL from outside: no limit was hit, and no out-of-memory kill happened"
    meanwhile = f"the host ran out of memory meanwhile (oom_kill +{report.oom_kills})"
    return f"SIGKILL from outside: no limit was hit; {meanwhile}"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _refused(report: Report, _: SandboxPolicy, applied: frozenset[str], stderr_tail: bytes) -> Verdict | None:
    """A program that failed and says on the last line of its stderr that the kernel refused it something."""
    if report.exit_code == 0:
        return None
    last = stderr_tail.rstrip().rpartition(b"\n")[2]
    for clue, capability in _CLUES:
        if clue in last and capability in applied:
            text = last.decode("utf-8", "replace").strip()[:200]
            how = f"exit code {_own_rc(report)}"
            reason = f"{how} after the {capability} limit refused it: {text!r} on stderr"
            return _verdict(_CAPABILITY_STATUS[capability], report, reason, capability)
    return None


def _exited(report: Report, *_: object) -> Verdict:
    status = Status.OK if report.exit_code == 0 else Status.FAILED
    return _verdict(status, report, f"exit code {report.exit_code}")


_RULES: tuple[Callable[[Report, SandboxPolicy, frozenset[str], bytes], Verdict | None], ...] = (
    _lost,
    _killed_by_us,
    _forbidden_call,
    _held_by_cgroup,
    _out_of_memory,
    _processor_time,
    _signalled,
    _refused,
    _exited,
)
