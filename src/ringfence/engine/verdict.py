"""From the bare facts of an end to a status, a return code and a reason with the evidence in it.

Only this module decides what an end means, by what the kernel says: groups, signals, refused calls that were seen,
peaks. What a program prints counts only where these numbers make a limit plausible but do not prove it (ADR 0047). A
program can make its failure look like another failure, never like a success.
"""

from __future__ import annotations

from _collections_abc import Callable, Iterator, Mapping

from ringfence.backends.facts import Report
from ringfence.kernel import rlimits
from ringfence.model.limits import disk_in_container, format_size
from ringfence.model.outcome import FIXED_RC, STATUS_OF, Mechanism, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record, replace

_KILLED_RC = 128 + 9
_SIGXFSZ = 25
_CRASH_SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGQUIT"})
_SIGNAL_STATUS = {
    "SIGTERM": Status.KILLED_TERM,
    "SIGKILL": Status.KILLED_KILL,
    "SIGXFSZ": Status.FILE_SIZE_LIMIT,
    "SIGSYS": Status.FORBIDDEN_SYSCALL,
}
_CAPABILITY_STATUS = {**STATUS_OF, "asked": Status.KILLED_KILL, "owner_gone": Status.KILLED_KILL}
Applied = Mapping[str, tuple[Mechanism, ...]]
"""Capabilities that are in force, each with what holds it."""

# What programs say when the kernel refused them something, and whose limit that is. Never believed by itself: only
# where the kernel's numbers make that limit plausible (``_PLAUSIBLE``).
_CLUES: tuple[tuple[bytes, str], ...] = (
    (b"MemoryError", "memory"),
    (b"Cannot allocate memory", "memory"),
    (b"std::bad_alloc", "memory"),
    (b"out of memory", "memory"),
    (b"SetPermissions", "memory"),  # the check of V8 that fails when mprotect is refused room for writable pages
    (b"Too many open files", "nofile"),
    (b"File too large", "file_size"),
    (b"File size limit exceeded", "file_size"),
    (b"No space left on device", "disk"),
)


@record
class Verdict:
    """What an end means."""

    status: Status
    rc: int
    reason: str
    limits_hit: tuple[str, ...] = ()


def judge(report: Report, policy: SandboxPolicy, applied: Applied, stderr_tail: bytes) -> Verdict:
    """The first rule that fits decides; every other limit that was reached is named beside it."""
    for rule in _RULES:
        verdict = rule(report, policy, applied, stderr_tail)
        if verdict is not None:
            reached = (*_reached(report, policy, applied), *_says(report, policy, stderr_tail))
            return _with_other_limits(_in_native_words(verdict, report), reached)
    raise AssertionError("the last rule fits everything")


def _in_native_words(verdict: Verdict, report: Report) -> Verdict:
    return replace(verdict, reason=f"{verdict.reason} ({report.native})") if report.native else verdict


def _with_other_limits(verdict: Verdict, reached: tuple[tuple[str, str], ...]) -> Verdict:
    """Such a limit was reached by a child that the job can do without, or before something else ended the job. In a box
    it may be a process that an earlier visit left. The status stays that of the job's own end."""
    for capability, told in reached:
        if capability not in verdict.limits_hit:
            hit = (*verdict.limits_hit, capability)
            verdict = replace(verdict, reason=f"{verdict.reason}; {told}", limits_hit=hit)
    return verdict


def _reached(report: Report, policy: SandboxPolicy, applied: Applied) -> Iterator[tuple[str, str]]:
    """(capability, in words) of every limit that the kernel's own numbers prove to have been reached."""
    limit = format_size(policy.mem_bytes)
    if report.box_oom_kills:
        yield "memory", f"the box reached {limit} meanwhile (memory cgroup, oom_kill {report.box_oom_kills})"
    if report.cgroup_oom_kills:
        yield "memory", f"the tree reached {limit} meanwhile (memory cgroup, oom_kill {report.cgroup_oom_kills})"
    refused = _memory_refused(report, policy, applied)
    if refused:
        yield "memory", refused
    if report.cgroup_pids_hits:
        yield "pids", f"a task beyond {policy.pids_max} was refused (pids cgroup, max {report.cgroup_pids_hits})"
    for name in report.told_limits:
        yield name, f"the limit of {name} was reached (job object)"
    if "cpu_time" in applied and _used_s(report) >= policy.cpu_time_s:
        yield "cpu_time", f"it used {_used_s(report):.1f} s of {policy.cpu_time_s:g} s processor time"
    if "disk" in applied and policy.disk_bytes is not None and report.written_bytes > policy.disk_bytes:
        yield "disk", f"it wrote {format_size(report.written_bytes)} of {format_size(policy.disk_bytes)}"
    if "nofile" in applied and report.exit_descriptors >= policy.nofile:
        yield "nofile", f"a process that failed had {report.exit_descriptors} descriptors open"


def _says(report: Report, policy: SandboxPolicy, stderr_tail: bytes) -> Iterator[tuple[str, str]]:
    """A shell prints this for a child that SIGXCPU ended. The kernel counts ticks for that signal, and in a virtual
    machine they come to more than the measured time: half of the limit makes the shell's word plausible."""
    if b"CPU time limit exceeded" in stderr_tail and _used_s(report) >= policy.cpu_time_s / 2:
        yield "cpu_time", f"a child used {_used_s(report):.1f} s of {policy.cpu_time_s:g} s processor time (SIGXCPU)"


# Below this a loader finds no room for the libraries of a program. It exits with this code, or crashes.
_LEAST_BYTES, _NOT_LOADED = 8 << 20, 127


def _used_s(report: Report) -> float:
    return (report.cpu_user_us + report.cpu_system_us) / 1e6


def _memory_refused(report: Report, policy: SandboxPolicy, applied: Applied) -> str:
    """Proof that a per-process limit refused memory, in words; nothing if a group holds memory, which kills instead."""
    if Mechanism.RLIMIT not in applied.get("memory", ()):
        return ""
    limit, how = policy.mem_bytes, rlimits.MEMORY
    if report.refused_bytes:
        return f"{format_size(report.refused_bytes)} were refused under {format_size(limit)} of memory ({how}, seen)"
    if report.exit_memory_bytes > limit - min(_ONE_MAPPING_BYTES, limit // 8):
        return f"a process failed with {format_size(report.exit_memory_bytes)} of {format_size(limit)} ({how})"
    return ""


# What a C library or an interpreter asks for at once when it needs a little: a process that holds all of its limit but
# this was refused it.
_ONE_MAPPING_BYTES = 2 << 20


def _own_rc(report: Report) -> int:
    return 128 + (report.signal or 0) if report.exit_code is None else report.exit_code


def _verdict(status: Status, report: Report, reason: str, hit: str = "") -> Verdict:
    # A job can exit with 0 at the moment it is killed for a limit: that is no success.
    rc = FIXED_RC.get(status, _own_rc(report) or _KILLED_RC)
    return Verdict(status=status, rc=rc, reason=reason, limits_hit=(hit,) if hit else ())


def _lost(report: Report, *_: object) -> Verdict | None:
    if not report.leader_lost or report.cause:
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
        "asked": "killed at the caller's request",
        "owner_gone": "the caller is gone",
        "reaper_gone": "visit lost: its reaper was killed or could not be created",
    }
    return said.get(report.cause, f"killed for {report.cause}")


_EVIDENCE: dict[str, Callable[[Report, SandboxPolicy], str]] = {
    "wall_time": lambda r, p: (
        f"still running after {p.wall_time_s:g} s (wall clock"
        + ("; its supervising process did not answer and was killed with it)" if r.leader_lost else ")")
    ),
    "cpu_time": lambda r, p: (
        f"the tree used {r.measured / 1000:.1f} s of {p.cpu_time_s:g} s processor time (watchdog)"
    ),
    "memory": lambda r, p: (
        f"the tree reached {format_size(r.measured)} of {format_size(p.mem_bytes)} resident memory (watchdog)"
    ),
    "pids": lambda r, p: f"the tree reached {r.measured} tasks, {p.pids_max} are allowed (watchdog)",
    "nofile": lambda r, p: f"a process had {r.measured} handles open, {p.nofile} are allowed (watchdog)",
    "disk": lambda r, p: (
        f"the tree wrote {format_size(r.measured)}, {format_size(_disk_bytes(p))} are allowed (watchdog)"
    ),
    "operations": lambda r, _: f"made {r.measured} calls of the read and write family, more than it may (watchdog)",
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
    """Its own cgroup says why it ended; after an out-of-memory kill of any of its processes it is no success."""
    if report.cgroup_oom_kills:
        limit = format_size(policy.mem_bytes)
        reason = f"the process tree reached {limit} (memory cgroup, oom_kill {report.cgroup_oom_kills})"
        return _verdict(Status.MEM_LIMIT, report, reason, "memory")
    if report.cgroup_pids_hits and report.exit_code != 0:
        reason = f"refused a task beyond {policy.pids_max} (pids cgroup, max {report.cgroup_pids_hits})"
        return _verdict(Status.PIDS_LIMIT, report, reason, "pids")
    return None


def _told_by_job_object(report: Report, policy: SandboxPolicy, *_: object) -> Verdict | None:
    """Its job object says which limit was reached. A limit of time ends a job; memory and processes are only refused,
    and a job may do without."""
    for name in report.told_limits:
        if name == "cpu_time" or report.exit_code != 0:
            reason = f"reached its limit of {policy.numbers().get(name, 0):g} for {name} (job object)"
            return _verdict(_CAPABILITY_STATUS[name], report, reason, name)
    return None


def _out_of_memory(report: Report, *_: object) -> Verdict | None:
    """The box's own group killed while this visit ran. The host's count proves nothing: any process may raise it."""
    if report.signal != 9 or report.box_oom_kills <= 0:
        return None
    reason = f"killed by the kernel's out-of-memory killer (oom_kill +{report.box_oom_kills} while it ran)"
    return _verdict(Status.MEM_LIMIT, report, reason, "memory")


def _processor_time(
    report: Report, policy: SandboxPolicy, applied: Applied, _: bytes
) -> Verdict | None:
    """SIGXCPU, or the SIGKILL that follows when it is ignored, of the job or of a child it waited for.

    A program that sent itself the signal has not used the time; half of it is far from both.
    """
    used_s = _used_s(report)
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
        Status.KILLED_KILL: _killed_by_nobody_of_ours(report),
        Status.KILLED_TERM: "SIGTERM from outside or from the job itself",
        Status.FILE_SIZE_LIMIT: "wrote past the allowed size of a file (RLIMIT_FSIZE, SIGXFSZ)",
        Status.FORBIDDEN_SYSCALL: "made a system call that is not allowed (SIGSYS)",
        Status.CRASHED: f"crashed with {name}",
    }.get(status, f"ended by {name}")
    return _verdict(status, report, reason, "file_size" if status is Status.FILE_SIZE_LIMIT else "")


def _killed_by_nobody_of_ours(report: Report) -> str:
    if not report.oom_kills:
        return "SIGKILL from outside or from the job itself; no limit was hit, and no out-of-memory kill happened"
    meanwhile = f"the host ran out of memory meanwhile (oom_kill +{report.oom_kills})"
    return f"SIGKILL from outside or from the job itself; no limit was hit; {meanwhile}"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _out_of_room(report: Report, policy: SandboxPolicy, applied: Applied, stderr_tail: bytes) -> Verdict | None:
    """It failed, or crashed like a runtime that gets no memory, and the numbers prove which limit it was."""
    crashed = report.signal is not None and _signal_name(report.signal) in _CRASH_SIGNALS
    if report.exit_code == 0 or (report.signal is not None and not crashed):
        return None
    how = f"exit code {report.exit_code}" if report.signal is None else f"crashed with {_signal_name(report.signal)}"
    for capability, proof in _PROOFS:
        told = proof(report, policy, applied)
        if told:
            return _verdict(_CAPABILITY_STATUS[capability], report, f"{how}: {told}", capability)
    return _plausible(report, policy, applied, stderr_tail, how)


def _memory_used_up(report: Report, policy: SandboxPolicy, applied: Applied) -> str:
    """One process used all of the limit, or crashed with nearly all of it."""
    refused = _memory_refused(report, policy, applied)
    spared = 32 if report.signal is None else 8
    if refused or Mechanism.RLIMIT not in applied.get("memory", ()):
        return refused
    if policy.mem_bytes < _LEAST_BYTES and (report.signal is not None or report.exit_code == _NOT_LOADED):
        return f"{format_size(policy.mem_bytes)} of memory are less than a program needs to start"
    if report.largest_bytes < policy.mem_bytes - policy.mem_bytes // spared:
        return ""
    return f"a process had used {format_size(report.largest_bytes)} of {format_size(policy.mem_bytes)} memory"


def _disk_bytes(policy: SandboxPolicy) -> int:
    """Where the policy does not say, only a working copy in a container is bounded, beside what strict bounds."""
    return int(policy.numbers().get("disk", disk_in_container(None, policy.mem_bytes)))


def _descriptors_used_up(report: Report, policy: SandboxPolicy, applied: Applied) -> str:
    if "nofile" not in applied or report.exit_descriptors < policy.nofile:
        return ""
    return f"a process failed with {report.exit_descriptors} of {policy.nofile} descriptors open (RLIMIT_NOFILE)"


_PROOFS: tuple[tuple[str, Callable[[Report, SandboxPolicy, Applied], str]], ...] = (
    ("memory", _memory_used_up),
    ("nofile", _descriptors_used_up),
)
"""If two apply, the first one is the status."""

_PLAUSIBLE: dict[str, Callable[[Report, SandboxPolicy], bool]] = {
    "memory": lambda r, p: max(r.exit_address_bytes, r.largest_bytes) >= p.mem_bytes // 2,
    "nofile": lambda r, p: r.exit_slots * 2 > p.nofile,
    "file_size": lambda r, p: r.written_chars >= (p.file_bytes or 0),
    "disk": lambda r, p: r.written_chars >= min(_disk_bytes(p), p.mem_bytes) // 2,
}
"""For limits that the kernel's numbers do not prove: a table of descriptors never shrinks and tells the number only
within a factor of two; files in memory are bounded by the smaller of two limits."""


def near(report: Report, policy: SandboxPolicy, applied: Applied) -> tuple[str, ...]:
    """The per-process limits that a failing job may have reached, by the kernel's numbers: a runner of ours in the job
    may say which of these it was (``claims``)."""
    if report.exit_code == 0:
        return ()
    return tuple(name for name, holds in _PLAUSIBLE.items() if name in applied and holds(report, policy))


def _plausible(
    report: Report, policy: SandboxPolicy, applied: Applied, stderr_tail: bytes, how: str
) -> Verdict | None:
    """A runtime that crashes, e.g. because it sizes its heap by our limit, prints a trace after its last words."""
    lines = [b"", *stderr_tail.rstrip().split(b"\n")]
    possible = near(report, policy, applied)
    for clue, capability in _CLUES if possible else ():
        said = [line for line in (lines if report.signal else lines[-1:]) if clue in line]
        if said and capability in possible:
            text = said[-1].decode("utf-8", "replace").strip()[:200]
            reason = f"{how} near the {capability} limit, and it says {text!r} on stderr"
            return _verdict(_CAPABILITY_STATUS[capability], report, reason, capability)
    if report.exit_code == 128 + _SIGXFSZ and "file_size" in possible:
        reason = f"{how}, as a shell says it of SIGXFSZ, near the file_size limit"
        return _verdict(Status.FILE_SIZE_LIMIT, report, reason, "file_size")
    return None


def _exited(report: Report, *_: object) -> Verdict:
    status = Status.OK if report.exit_code == 0 else Status.FAILED
    return _verdict(status, report, f"exit code {report.exit_code}")


_RULES: tuple[Callable[[Report, SandboxPolicy, Applied, bytes], Verdict | None], ...] = (
    _lost,
    _killed_by_us,
    _forbidden_call,
    _held_by_cgroup,
    _told_by_job_object,
    _out_of_memory,
    _processor_time,
    _out_of_room,
    _signalled,
    _exited,
)
