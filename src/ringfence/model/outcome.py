"""``Outcome``: how a job ended, what it used, and what was really enforced by which mechanism."""

from __future__ import annotations

from _collections_abc import Iterable, Mapping
from types import MappingProxyType

from ringfence.model.events import Event
from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum


class Status(StrEnum):
    """How the job ended. Decide by the status: two different ends may have the same return code."""

    OK = "OK"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    CPU_LIMIT = "CPU_LIMIT"
    MEM_LIMIT = "MEM_LIMIT"
    PIDS_LIMIT = "PIDS_LIMIT"
    NOFILE_LIMIT = "NOFILE_LIMIT"
    FILE_SIZE_LIMIT = "FILE_SIZE_LIMIT"
    DISK_LIMIT = "DISK_LIMIT"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    NETWORK_LIMIT = "NETWORK_LIMIT"
    """Only in results of a manager, whose monitor counts it."""
    OPERATIONS_LIMIT = "OPERATIONS_LIMIT"
    """Only for a visit with a limit on calls, such as an execution of the manager."""
    KILLED_TERM = "KILLED_TERM"
    KILLED_KILL = "KILLED_KILL"
    KILLED_SIGNAL = "KILLED_SIGNAL"
    CRASHED = "CRASHED"
    FORBIDDEN_SYSCALL = "FORBIDDEN_SYSCALL"
    INTERNAL_ERROR = "INTERNAL_ERROR"


FIXED_RC: Mapping[Status, int] = {
    Status.OK: 0,
    Status.TIMEOUT: 124,
    Status.CPU_LIMIT: 152,
    Status.MEM_LIMIT: 137,
    Status.KILLED_TERM: 143,
    Status.KILLED_KILL: 137,
    Status.FORBIDDEN_SYSCALL: 159,
    Status.INTERNAL_ERROR: 1,
}
"""Statuses with one return code; every other one passes on the program's own."""

STATUS_OF: Mapping[str, Status] = {
    "wall_time": Status.TIMEOUT,
    "cpu_time": Status.CPU_LIMIT,
    "memory": Status.MEM_LIMIT,
    "pids": Status.PIDS_LIMIT,
    "nofile": Status.NOFILE_LIMIT,
    "file_size": Status.FILE_SIZE_LIMIT,
    "disk": Status.DISK_LIMIT,
    "output": Status.OUTPUT_LIMIT,
    "operations": Status.OPERATIONS_LIMIT,
}
"""The status of a job that a limit ended, by capability."""

PARTIAL_ENFORCEMENT = "PARTIAL_ENFORCEMENT"


def dropped_text(count: int) -> bytes:
    """The text in place of output that was not kept."""
    return b"[TRUNCATED] %d bytes dropped\n" % count


class Mechanism(StrEnum):
    """What can enforce a capability. Decisions use these, never the text beside them."""

    DEADLINE = "deadline"
    WATCHDOG = "watchdog"
    RLIMIT = "rlimit"
    CGROUP = "cgroup"
    PIPE_READER = "pipe_reader"
    SECCOMP = "seccomp"
    LANDLOCK = "landlock"
    MOUNT_NAMESPACE = "mount_namespace"
    NETWORK_NAMESPACE = "network_namespace"
    GATEWAY = "gateway"
    WORKING_COPIES = "working_copies"
    IMPORT_HOOK = "import_hook"
    CAPABILITIES = "capabilities"
    USER = "user"
    JOB_OBJECT = "job_object"
    LOW_INTEGRITY = "low_integrity"
    SEATBELT = "seatbelt"


@record
class Enforcement:
    """What was asked of one capability, and what was done about it."""

    requested: object
    applied: bool
    mechanism: str
    """What enforces it, for people."""
    details: str = ""
    by: tuple[Mechanism, ...] = ()
    """What enforces it, for programs; empty: nothing does."""


@record
class Usage:
    """What the whole tree of the job used."""

    wall_s: float = 0.0
    """From its first instruction to its end."""
    cpu_user_s: float = 0.0
    cpu_system_s: float = 0.0
    peak_memory_bytes: int = 0
    """The most at one time, as the job's control group counted it; the limit counts the same. Without a group, or
    without its peak (Linux before 5.19): the sum over the processes, which counts a shared page once for each. Of a
    visit to a box whose group counts other visits too: its largest process under ``strict``, else that sum. It is never
    more than the group held or may hold."""
    processes: int = 0
    """The most that were seen alive at one time."""
    written_bytes: int = 0
    """Written to storage."""
    voluntary_switches: int = 0
    involuntary_switches: int = 0
    network_bytes: int = 0
    """Sent and received through the gateway, of a job with a network list."""


class ChangeKind(StrEnum):
    """What happened to one path."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    TYPE_CHANGED = "type_changed"
    """A file where a directory was, a link where a file was, and so on."""


@record
class Change:
    """One path that a job changed. Its name is the job's choice."""

    path: str
    """Relative to the workspace; absolute if a transaction, also one of a manager, holds the changes."""
    kind: ChangeKind


class Changes(tuple[Change, ...]):
    """What changed: a tuple, and whether it is complete. What is not listed is not committed either."""

    complete: bool = True
    """False: more has changed than can be listed; a commit refuses that."""

    def __new__(cls, rows: Iterable[Change] = (), *, complete: bool = True) -> Changes:
        made = super().__new__(cls, rows)
        made.complete = complete
        return made


@record
class Outcome:
    """How a job ended."""

    status: Status
    """How it ended; decide by this."""
    rc: int
    """The exit code: the program's own, or that of the status."""
    reason: str
    """The evidence for the status, for people: which limit, what was measured, which signal."""
    stdout: bytes = b""
    """At most ``output_bytes`` and, if it was cut, a marker that says so."""
    stderr: bytes = b""
    stdout_dropped: int = 0
    """Bytes that were printed and not kept."""
    stderr_dropped: int = 0
    duration_ms: int = 0
    argv: tuple[str, ...] = ()
    run_id: str = ""
    """Names this one run; its events have it too."""
    enforced: Mapping[str, Enforcement] = MappingProxyType({})
    """Each capability of the policy: what was asked for, whether it was applied, and by which mechanism."""
    usage: Usage = Usage()
    """What it used."""
    limits_hit: tuple[str, ...] = ()
    """Capabilities whose limit was reached, whether or not that ended the job."""
    near_limits: tuple[str, ...] = ()
    """Per-process limits that a failed job may have reached: the kernel's numbers suggest it, but do not prove it."""
    partial: bool = False
    """Something that was asked for was not applied (only with ``allow_partial``)."""
    message: bytes | None = None
    """What the job wrote into its channel; untrusted. Absent: it has no channel, or wrote too much."""
    changes: tuple[Change, ...] = ()
    """What the job changed in its workspace, if it works on a layer. With a transaction: all that is in it."""
    changes_complete: bool = True
    """False: it changed more than can be listed, too deep or too much; a commit refuses that."""
    committed: bool = False
    """The changes were carried over into the workspace."""
    transaction: str = ""
    """The directory of the transaction that the changes are kept in; empty: in none."""
    commit_problem: str = ""
    """Why the changes could not be carried over; empty: they were, or nobody asked for it. This and the next two are in
    ``reason`` too, for people."""
    keep_problem: str = ""
    """Why the changes could not be kept; empty: they were, or nobody asked for it."""
    bundle: str = ""
    """The file with signed evidence of the run; empty: nobody asked for it, or it could not be made."""
    bundle_problem: str = ""
    """Why that could not be made; empty: it was, or nobody asked for it."""
    left_behind: str = ""
    """What could not be removed of the sandbox; empty: nothing is left."""
    recorder: Mapping[str, object] = MappingProxyType({})
    """The recorder's own health: how many attempts, and whether it is sure of having seen them all."""
    events: tuple[Event, ...] = ()
    """What happened, in order: the start, attempts on forbidden things, decisions of the gateway, the end."""

    @property
    def unrecorded(self) -> int:
        """How many attempts on forbidden things there were, or may have been, that no event names; 0: the recorder is
        sure that there were none, or there was no recorder."""
        counts = [self.recorder.get(name, 0) for name in ("unnamed", "lost", "late", "unwritten")]
        known = sum(count for count in counts if isinstance(count, int) and count > 0)
        return known or int(self.recorder.get("complete", True) is not True)

    @property
    def returncode(self) -> int:
        """``rc``, by the name that ``subprocess`` has for it."""
        return self.rc

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    def to_dict(self) -> dict[str, object]:
        """Plain data for ``--json``; bytes that are not UTF-8 become replacement characters."""
        return {name: _plain(value) for name, value in self.__dict__.items()}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Change | Enforcement | Usage | Event):
        return _plain(value.__dict__)
    return str(value) if isinstance(value, StrEnum) else value
