"""How grave an event is, as tables: which call, on what, counts as a probe, an attempt or nothing at all.

Owns the three severities and the kinds of docs/reference/formats.md. Reads no event: that is ``findings``.
Why a row stands where it stands: docs/reference/proctor/findings.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

from ringfence.kernel.proc import first_files
from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum

MASKED_READ, MASKED_WRITE, BLOCKED_CONNECT = "masked_read", "masked_write", "blocked_connect"


class Severity(StrEnum):
    """From harmless to grave."""

    PROBE = "probe"
    """What an honest tool does too: checking whether something exists. It stays in events.jsonl."""
    ATTEMPT = "attempt"
    """Somebody asked for the thing itself, and did not get it."""
    BREACH = "breach"
    """Something forbidden was done."""


PROBE, ATTEMPT, BREACH = Severity.PROBE, Severity.ATTEMPT, Severity.BREACH


@record
class Grade:
    """What one call on one kind of thing counts as."""

    severity: Severity
    kind: str


_Rows = tuple[tuple[Severity, str, str], ...]

# A forbidden path that the call named. The kernel has looked for it, and it is not there.
_ON_FORBIDDEN: _Rows = (
    (PROBE, MASKED_READ, "stat lstat newfstatat statx file_getattr statfs access faccessat faccessat2"),
    (PROBE, MASKED_READ, "getxattr lgetxattr getxattrat listxattr llistxattr listxattrat inotify_add_watch"),
    (ATTEMPT, MASKED_READ, "open openat openat2 execve execveat uselib readlink readlinkat chdir chroot"),
    (ATTEMPT, MASKED_READ, "name_to_handle_at open_tree fanotify_mark quotactl connect sendto"),
    (ATTEMPT, MASKED_WRITE, "creat truncate acct mkdir mkdirat rmdir mknod mknodat symlink symlinkat unlink unlinkat"),
    (ATTEMPT, MASKED_WRITE, "rename renameat renameat2 link linkat bind mount umount2"),
    (ATTEMPT, MASKED_WRITE, "chmod fchmodat fchmodat2 chown lchown fchownat utime utimes futimesat utimensat"),
    (ATTEMPT, MASKED_WRITE, "setxattr lsetxattr setxattrat removexattr lremovexattr removexattrat file_setattr"),
)
# A call that the filter refuses, whatever it names. Honest tools try the calls that are not listed here: a probe.
_REFUSED: _Rows = (
    (ATTEMPT, MASKED_READ, "mount umount2 fsopen fsconfig fsmount fspick move_mount open_tree open_tree_attr"),
    (ATTEMPT, MASKED_READ, "mount_setattr pivot_root setns open_by_handle_at"),
    (ATTEMPT, MASKED_READ, "process_vm_readv pidfd_getfd"),
    (ATTEMPT, MASKED_WRITE, "process_vm_writev"),
    (ATTEMPT, MASKED_WRITE, "kexec_load kexec_file_load init_module finit_module delete_module create_module"),
    (ATTEMPT, MASKED_WRITE, "reboot swapon swapoff iopl ioperm"),
    (PROBE, BLOCKED_CONNECT, "socket socketpair sendmsg sendmmsg listen accept accept4"),
)


# Files of pid 1, the one process in a sandbox that is ours.
_OF_PID_1: Mapping[str, Severity] = {
    **dict.fromkeys((*first_files.MEMORY, *first_files.VARIABLES), ATTEMPT), first_files.AREAS: PROBE,
}  # fmt: skip


def _table(rows: _Rows) -> Mapping[str, Grade]:
    return {call: Grade(severity=severity, kind=kind) for severity, kind, calls in rows for call in calls.split()}


ON_FORBIDDEN, REFUSED = _table(_ON_FORBIDDEN), _table(_REFUSED)
_UNKNOWN_CALL = Grade(severity=ATTEMPT, kind=MASKED_READ)
_OTHER_REFUSAL = PROBED = Grade(severity=PROBE, kind=MASKED_READ)
# git opens these in every directory that its index names, whether or not the directory is there.
_ASKED_BY_GIT = frozenset((".gitattributes", ".gitignore"))

# Ports that say what a datagram or a connection is about. 0: nothing is sent, somebody only asks for the route.
_ASKING = frozenset((0, 53, 5353))


def on_forbidden(call: str, *, writes: bool) -> Grade:
    """Grade a call that named a forbidden path; an unknown call counts as the worst that it can have been."""
    grade = ON_FORBIDDEN.get(call, _UNKNOWN_CALL)
    if writes and grade.severity is ATTEMPT:
        return Grade(severity=ATTEMPT, kind=MASKED_WRITE)
    return grade


def is_question_of_git(call: str, name: str, *, writes: bool) -> bool:
    """Whether a call on a directory of the workspace is one that ``git diff`` makes by itself. The caller chose the
    name, so this holds for no path outside of the workspace."""
    return call in ("open", "openat") and not writes and name in _ASKED_BY_GIT


def of_pid_1(path: str, *, writes: bool, walks: bool) -> Grade:
    """Grade the opening of a file of pid 1. A process that walks reads the same file of every process, or whatever it
    finds; none opens what it finds for writing."""
    if writes:
        return Grade(severity=ATTEMPT, kind=MASKED_WRITE)
    return PROBED if walks else Grade(severity=_OF_PID_1.get(path, ATTEMPT), kind=MASKED_READ)


def refused(call: str) -> Grade:
    """Grade a call that the filter refused and that named no forbidden path."""
    return REFUSED.get(call, _OTHER_REFUSAL)


def endpoint(text: str) -> tuple[str, int] | None:
    """Return address and port of a text such as ``192.0.2.7:443`` or ``[2001:db8::1]:443``; None: it has neither."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        return None
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return str(_plain(address)), int(port)


def outward(host: str, port: int) -> Severity | None:
    """Grade a connection or datagram to an address or a name that is not listed; None: it stays in the sandbox."""
    try:
        address = _plain(ip_address(host))
    except ValueError:
        return PROBE if port in _ASKING else ATTEMPT  # a name
    if address.is_loopback or address.is_unspecified:
        return None
    is_for_many = address.is_multicast or str(address) == "255.255.255.255"
    return PROBE if port in _ASKING or is_for_many else ATTEMPT


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An address of IPv4 in the form of IPv6 is that of IPv4."""
    return getattr(address, "ipv4_mapped", None) or address
