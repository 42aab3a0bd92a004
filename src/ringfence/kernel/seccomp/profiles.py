"""The filters as data: which call is closed, how, on what condition, and why.

``DEFAULT`` is for programs of every kind, ``TIGHT`` for a computation that needs neither network nor other
processes. Every call of the tables is named once as open or closed; what is not named is unknown and does not
exist. It deliberately says nothing about files and addresses: those lie behind pointers, which a filter can't
follow, and are the business of the mounts, of Landlock and of the network namespace.
"""

from __future__ import annotations

import errno

from ringfence.kernel.seccomp.open_half import OPEN
from ringfence.kernel.seccomp.rules import ALL_64, Action, Kind, Profile, Rule, When, any_bit, none_of, one_of
from ringfence.kernel.seccomp.watched_calls import WATCHED
from ringfence.model.record import replace

FORBID = Action(kind=Kind.FORBID)
NOTE = Action(kind=Kind.NOTE)
WATCH = Action(kind=Kind.WATCH)


def _report(code: int) -> Action:
    return Action(kind=Kind.REPORT, errno=code)


def _deny(code: int) -> Action:
    return Action(kind=Kind.DENY, errno=code)


def _closed(calls: str, action: Action, reason: str, *when: When) -> Rule:
    return Rule(calls=tuple(calls.split()), action=action, reason=reason, when=when)


_EPERM, _ENOSYS = errno.EPERM, errno.ENOSYS

CLONE_THREAD = 0x10000
CLONE_PARENT = 0x8000
# NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET. NEWTIME (0x80) is part of clone's exit signal, so only
# unshare and clone3 can ask for it.
CLONE_NAMESPACES = 0x7E020000
_UNSHARE_HARMLESS = 0x00000200 | 0x00000400 | 0x00040000  # FS, FILES, SYSVSEM
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET = 1, 2, 5
_SOCK_TYPE = 0xF  # the rest of the argument is SOCK_CLOEXEC and SOCK_NONBLOCK
NETLINK_ROUTE = 0
_MSG_FASTOPEN = 0x20000000
_TERMINAL_COMMANDS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCCONS": 0x541D, "TIOCSETD": 0x5423}
# PER_LINUX PER_LINUX32, each with UNAME26, ADDR_NO_RANDOMIZE (debuggers, sanitizers), the query.
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
_PTRACE_ATTACH, _PTRACE_SEIZE = 16, 0x4206
_PR_SET_DUMPABLE, _PR_SET_MM = 4, 35
_SECCOMP_NEW_LISTENER = 8
_PRIO_USER, _IOPRIO_WHO_USER = 2, 3
_S_IFMT, _S_IFCHR, _S_IFBLK = 0xF000, 0x2000, 0x6000
_RENAME_WHITEOUT = 4
_SETID_BITS, _SET_USER_ID = 0o6000, 0o4000
# What of fallocate gives blocks back: PUNCH_HOLE with KEEP_SIZE, COLLAPSE_RANGE. The rest takes blocks, or makes a file
# longer than RLIMIT_FSIZE allows, without a byte written.
_FALLOCATE_HARMLESS = (0x03, 0x08)
# fallocate under older names, and FSSETXATTR, whose hint has one byte take gigabytes.
_RESERVING_COMMANDS = {
    "XFS_IOC_ALLOCSP": 0x4030580A, "XFS_IOC_FREESP": 0x4030580B, "XFS_IOC_ALLOCSP64": 0x40305824,
    "XFS_IOC_FREESP64": 0x40305825, "FS_IOC_RESVSP": 0x40305828, "FS_IOC_UNRESVSP": 0x40305829,
    "FS_IOC_RESVSP64": 0x4030582A, "FS_IOC_UNRESVSP64": 0x4030582B, "FS_IOC_ZERO_RANGE": 0x40305839,
    "FS_IOC_FSSETXATTR": 0x401C5820}  # fmt: skip
IOCTLS = _TERMINAL_COMMANDS | _RESERVING_COMMANDS  # the closed requests, by the kernel's names
_MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x40000, 4, 0o4000
_F_SETLEASE, _F_NOTIFY, _F_SETDELEG = 1024, 1026, 1040
_RLIMIT_CORE = 4
_MAKES_A_FILE = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: without them open has no mode, and the register is noise

def _mode_changes(bits: int) -> tuple[Rule, ...]:
    reason = "a setuid file in a writable directory outlives the sandbox, and makes whoever runs it the caller"
    return (_closed("chmod fchmod", _report(_EPERM), reason, any_bit(1, bits)),
            _closed("fchmodat fchmodat2", _report(_EPERM), "as chmod", any_bit(2, bits)))  # fmt: skip


# Only somebody who is breaking out calls these: the process ends, and the result names the call.
ATTACKS = (
    _closed("kexec_load kexec_file_load", FORBID, "replaces the running kernel"),
    _closed("init_module finit_module delete_module create_module", FORBID, "puts code into the kernel"),
    _closed("open_by_handle_at", FORBID, "opens any file of the file system by number, past every mount"),
    _closed("pivot_root", FORBID, "swaps the root that confines the sandbox"),
    _closed("reboot swapon swapoff", FORBID, "belongs to the machine's administrator"),
    _closed("iopl ioperm", FORBID, "gives direct access to hardware ports"),
)

# Tried in good faith now and then, and always worth knowing.
ATTEMPTS = (
    _closed("mount umount2", _report(_EPERM), "changes what the sandbox sees"),
    _closed("fsopen fsconfig fsmount fspick move_mount open_tree open_tree_attr mount_setattr", _report(_EPERM),
            "the newer mount calls: the same power as mount"),
    _closed("chroot", _report(_EPERM), "with a descriptor kept outside, a classic way out of a root"),
    _closed("setns", _report(_EPERM), "enters somebody else's namespaces"),
    _closed(
        "unshare",
        _report(_EPERM),
        "a new user namespace hands out capabilities, and with them most of the kernel's attack surface",
        none_of(0, 0, bits=ALL_64 & ~_UNSHARE_HARMLESS),
    ),
    _closed("clone", _report(_EPERM), "as unshare, at birth", any_bit(0, CLONE_NAMESPACES)),
    _closed("clone", _report(_EPERM), "a child that becomes its maker's sibling", any_bit(0, CLONE_PARENT)),
    _closed("io_uring_setup io_uring_enter io_uring_register", _report(_ENOSYS), "calls that no filter sees"),
    _closed("keyctl add_key request_key", _report(_ENOSYS), "keyrings are shared across sandboxes"),
    _closed("bpf", _report(_EPERM), "loads programs into the kernel"),
    _closed("perf_event_open", _report(_EPERM), "measures the kernel and other processes"),
    _closed("userfaultfd", _report(_EPERM), "stops the kernel in mid-copy: the tool of race exploits"),
    _closed("process_vm_readv process_vm_writev", _report(_EPERM), "reads and writes other processes"),
    _closed("pidfd_getfd", _report(_EPERM), "takes descriptors out of other processes"),
    _closed(
        "ptrace",
        _report(_EPERM),
        "seizes a process that did not ask for it; a debugger may start its program (PTRACE_TRACEME)",
        one_of(0, _PTRACE_ATTACH, _PTRACE_SEIZE),
    ),
    _closed(
        "ioctl",
        _report(_EPERM),
        "types into the caller's terminal, takes its console or loads a line discipline",
        one_of(1, *_TERMINAL_COMMANDS.values()),
    ),
    _closed("clock_settime settimeofday", _report(_EPERM), "sets the machine's clock"),
    _closed("sethostname setdomainname", _report(_EPERM), "the name is part of the sandbox"),
    _closed(
        "mknod",
        _report(_EPERM),
        "devices, and the 0:0 device that overlays take for a deletion",
        one_of(1, _S_IFCHR, _S_IFBLK, bits=_S_IFMT),
    ),
    *_mode_changes(_SETID_BITS),
    _closed("mknod", _report(_EPERM), "as chmod, at birth", any_bit(1, _SETID_BITS)),
    _closed("mknodat", _report(_EPERM), "as mknod", any_bit(2, _SETID_BITS)),
    _closed("creat", _report(_EPERM), "as chmod, at birth", any_bit(1, _SETID_BITS)),
    _closed("open", _report(_EPERM), "as creat", any_bit(1, _MAKES_A_FILE), any_bit(2, _SETID_BITS)),
    _closed("openat", _report(_EPERM), "as creat", any_bit(2, _MAKES_A_FILE), any_bit(3, _SETID_BITS)),
    _closed("mknodat", _report(_EPERM), "as mknod", one_of(2, _S_IFCHR, _S_IFBLK, bits=_S_IFMT)),
    _closed(
        "socket",
        _report(errno.EAFNOSUPPORT),
        "vsock, packet, alg and some forty other families reach the host or seldom-tested kernel code",
        none_of(0, AF_UNIX, AF_INET, AF_INET6, AF_NETLINK),
    ),
    _closed(
        "socket",
        _report(_EPERM),
        "raw and other exotic sockets",
        one_of(0, AF_INET, AF_INET6),
        none_of(1, SOCK_STREAM, SOCK_DGRAM, bits=_SOCK_TYPE),
    ),
    _closed(
        "socket",
        _report(errno.EPROTONOSUPPORT),
        "audit, netfilter, crypto, uevent: only route questions stay open, which getifaddrs needs",
        one_of(0, AF_NETLINK),
        none_of(2, NETLINK_ROUTE),
    ),
    _closed(
        "sendto sendmmsg",
        _report(errno.EOPNOTSUPP),
        "TCP Fast Open connects without the connect that Landlock and the recorder watch",
        any_bit(3, _MSG_FASTOPEN),
    ),
    _closed("sendmsg", _report(errno.EOPNOTSUPP), "as sendto", any_bit(2, _MSG_FASTOPEN)),
    _closed(
        "socketpair",
        _report(errno.EAFNOSUPPORT),
        "TIPC has socket pairs too; Unix sockets are the ones in use",
        none_of(0, AF_UNIX),
    ),
)

# Honest programs try these at start and have another way: they see what an older kernel or an ordinary
# account would answer, and nobody is told.
PROBES = (
    _closed("clone3", _deny(_ENOSYS), "its flags are behind a pointer; the C library falls back to clone"),
    _closed("openat2", _deny(_ENOSYS), "its mode, with the setuid bit, is behind a pointer; openat is the way back"),
    _closed(
        "socket",
        _deny(errno.EPROTONOSUPPORT),
        "MPTCP and SMC pass Landlock's TCP rules; Go falls back to TCP",
        one_of(0, AF_INET, AF_INET6),
        none_of(2, 0, 1, 6, 17, 58, 136),  # by type, ICMP, TCP, UDP, ICMPv6, UDP-Lite
    ),
    _closed(
        "seccomp",
        _deny(errno.EBUSY),
        "a listener of the guest's own could allow, once ringfence's is gone, what that one refused",
        any_bit(1, _SECCOMP_NEW_LISTENER),
    ),
    _closed("personality", _deny(_EPERM), "old ABIs weaken memory protection", none_of(0, *_PERSONALITIES)),
    _closed("prctl", _deny(_EPERM), "forges the process's /proc/self/exe and argv", one_of(0, _PR_SET_MM)),
    _closed("renameat2", _deny(errno.EINVAL), "whiteouts are for overlays to make", any_bit(4, _RENAME_WHITEOUT)),
    _closed("memfd_secret", _deny(_ENOSYS), "memory that the recorder can't read"),
    _closed("name_to_handle_at", _deny(errno.EOPNOTSUPP), "makes what open_by_handle_at takes"),
    _closed("statmount listmount listns", _deny(_ENOSYS), "tell how the sandbox is built"),
    _closed("adjtimex clock_adjtime", _deny(_EPERM), "steers the machine's clock"),
    _closed("syslog", _deny(_EPERM), "the kernel's log has addresses and other people's business"),
    _closed("acct quotactl quotactl_fd vhangup", _deny(_EPERM), "belongs to the machine's administrator"),
    _closed("fanotify_init fanotify_mark", _deny(_EPERM), "watches whole file systems"),
    _closed(
        "move_pages migrate_pages mbind set_mempolicy set_mempolicy_home_node process_madvise "
        "process_mrelease",
        _deny(_EPERM),
        "moves or drops memory, also of other processes",
    ),
    _closed("kcmp", _deny(_EPERM), "compares kernel objects of other processes"),
    _closed("lsm_set_self_attr", _deny(_EPERM), "changes the security module's label"),
    _closed("modify_ldt", _deny(_ENOSYS), "16-bit segments: a long row of kernel bugs"),
    _closed(
        "uselib ustat sysfs _sysctl nfsservctl lookup_dcookie get_kernel_syms query_module getpmsg putpmsg "
        "afs_syscall tuxcall security vserver epoll_ctl_old epoll_wait_old set_thread_area get_thread_area",
        _deny(_ENOSYS),
        "retired, or never there",
    ),
)

_DONE = _deny(0)
"""The call does nothing and says that it did."""

# What is used up for the whole host, or what no limit of ours counts.
QUOTAS = (
    _closed(
        "io_setup io_destroy io_getevents io_pgetevents io_submit io_cancel",
        _deny(_ENOSYS),
        "fs.aio-max-nr is one number for the whole host, root included; programs fall back to plain reads",
    ),
    _closed(
        "fallocate",
        _deny(errno.EOPNOTSUPP),
        "takes blocks that nobody wrote and no limit counts; the C library writes zeros instead",
        none_of(1, *_FALLOCATE_HARMLESS),
    ),
    _closed("ioctl", _deny(errno.ENOTTY), "as fallocate", one_of(1, *_RESERVING_COMMANDS.values())),
    _closed("mmap", _deny(_EPERM), "huge pages come from a pool of the host, and no limit of memory counts them",
            any_bit(3, _MAP_HUGETLB)),
    _closed("memfd_create", _deny(_EPERM), "as mmap", any_bit(1, _MFD_HUGETLB)),
    _closed("shmget", _deny(_EPERM), "as mmap", any_bit(2, _SHM_HUGETLB)),
    _closed("file_setattr", _deny(_ENOSYS), "as the FSSETXATTR of ioctl"),
    _closed(
        "fcntl",
        _deny(errno.EINVAL),
        "a lease on a file in a writable path holds up whoever opens it on the host",
        one_of(1, _F_SETLEASE, _F_NOTIFY, _F_SETDELEG),
    ),
    _closed(
        "prctl",
        _DONE,
        "an ordinary user's leader can't count what a process writes that is not dumpable",
        one_of(0, _PR_SET_DUMPABLE),
        one_of(1, 0),
    ),
    _closed("sync", _DONE, "writes back all of the host's disks; fsync and syncfs are for one's own"),
    _closed(
        "prlimit64",
        _deny(_EPERM),
        "as setrlimit; whoever asks for the old limit in the same call would get none",
        one_of(1, _RLIMIT_CORE),
        any_bit(2, ALL_64),
        any_bit(3, ALL_64),
    ),
    _closed("prlimit64", _DONE, "as setrlimit", one_of(1, _RLIMIT_CORE), any_bit(2, ALL_64)),
    _closed("setrlimit", _DONE, "the limit of 1 keeps the host's core helper from running, 0 does not; either way "
            "there is no core", one_of(0, _RLIMIT_CORE)),
)

UNKNOWN = Rule(
    calls=(), action=_deny(_ENOSYS), reason="not known to this version: as on a kernel without the call"
)
FOREIGN = Rule(
    calls=(), action=FORBID, reason="came in through another architecture, where a number is another call"
)

_SCHEDULING = "sched_setscheduler sched_setparam sched_setattr sched_setaffinity"
# Pid 1 of a sandbox has the job's user. All in the sandbox ends with it, once it gets to run.
_OF_PID_1 = (
    _closed(_SCHEDULING, _report(_EPERM), "holds up pid 1, and with it the end of the job", one_of(0, 1)),
    _closed("setpriority ioprio_set", _report(_EPERM), "as sched_setscheduler", one_of(1, 1)),
    _closed("setpriority", _report(_EPERM), "slows all of a user's processes", one_of(0, _PRIO_USER)),
    _closed("ioprio_set", _report(_EPERM), "as setpriority", one_of(0, _IOPRIO_WHO_USER)),
    _closed("prlimit64", _report(_EPERM), "limits pid 1, which ends by it", one_of(0, 1), any_bit(2, ALL_64)),
)

DEFAULT = Profile(
    name="default", closed=ATTACKS + ATTEMPTS + _OF_PID_1 + PROBES + QUOTAS, open=OPEN, unknown=UNKNOWN, foreign=FOREIGN
)

# All that the job writes lies in layers and in memory, where no program gets privileges: set-group-id may be set, as
# shared repositories of git do on their directories. A filter can't tell what is a directory; a commit does.
_OTHERS = tuple(rule for rule in DEFAULT.closed if rule not in _mode_changes(_SETID_BITS))
LAYERED = replace(DEFAULT, name="layered", closed=_mode_changes(_SET_USER_ID) + _OTHERS)

_CONNECTED_PAIRS = _closed(
    "socketpair",
    _report(errno.EACCES),
    "a datagram pair can still send to named sockets; streams and packets, as asyncio makes, can't",
    none_of(1, SOCK_STREAM, SOCK_SEQPACKET, bits=_SOCK_TYPE),
)
_NO_NETWORK = (
    _closed("socket connect bind listen accept accept4", _report(errno.EACCES), "no network, not even local"),
    _CONNECTED_PAIRS,
    _closed("sendto", _report(errno.EACCES), "no message to an address", any_bit(4, ALL_64)),
)
_NO_PROCESSES = (
    _closed("fork vfork", _report(_EPERM), "no process creation"),
    _closed("clone", _report(_EPERM), "threads only", one_of(0, 0, bits=CLONE_THREAD)),
)
_NO_EXEC = (_closed("execve execveat", _report(_EPERM), "no other program"),)

_NO_UNIX_NAMES = (
    _closed("socket", _report(errno.EACCES), "reaches a service of the host by its path", one_of(0, AF_UNIX)),
    _CONNECTED_PAIRS,
)
# Where a directory of the host itself is writable, and only the filter keeps the sockets in it out of reach.
UNIX_PAIRS = replace(DEFAULT, name="unix_pairs", closed=_NO_UNIX_NAMES + DEFAULT.closed)

# For a program that is already running: a forked interpreter with the job's source.
TIGHT = replace(DEFAULT, name="tight", closed=_NO_NETWORK + _NO_PROCESSES + _NO_EXEC + DEFAULT.closed)
# For a job that starts with an exec, which has to come after the filter: it may exec, in its one process.
TIGHT_EXEC = replace(DEFAULT, name="tight_exec", closed=_NO_NETWORK + _NO_PROCESSES + DEFAULT.closed)

# Without namespaces what is closed here is the only border to the user's other processes and their services.
_WITHOUT_NAMESPACES = (
    _closed(
        "shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink",
        _report(_EPERM),
        "segments, semaphores and queues are shared with everybody, and their memory is nobody's",
    ),
    _closed("prlimit64", _report(_EPERM), "limits another process; its own are 0", none_of(0, 0)),
    _closed("setpriority", _report(_EPERM), "slows another process; its own are 0", none_of(1, 0)),
    _closed("ioprio_set", _report(_EPERM), "as setpriority", none_of(1, 0)),
    _closed(_SCHEDULING, _report(_EPERM), "holds another process up, for good; its own are 0", none_of(0, 0)),
)
WALLED = replace(DEFAULT, name="walled", closed=_WITHOUT_NAMESPACES + DEFAULT.closed)
CONFINED = replace(WALLED, name="confined", closed=_NO_NETWORK + WALLED.closed)
CONFINED_TIGHT = replace(
    TIGHT_EXEC, name="confined_tight", closed=_WITHOUT_NAMESPACES + TIGHT_EXEC.closed
)

PROFILES = {
    profile.name: profile
    for profile in (DEFAULT, LAYERED, UNIX_PAIRS, TIGHT, TIGHT_EXEC, WALLED, CONFINED, CONFINED_TIGHT)
}

# For the recorder: rare calls that tell something. Put into Profile.noted.
TELLING = (
    Rule(calls=("connect", "bind"), action=NOTE, reason="names an address"),
    Rule(calls=("sendto",), action=NOTE, reason="names an address", when=(any_bit(4, ALL_64),)),
)
# Where hidden paths are watched by notification: each call that names a file, see watched_calls.
WATCHING = (Rule(calls=tuple(WATCHED), action=WATCH, reason="names a file, which may be a hidden one"),)


# (calls, arguments that are a user's id, arguments that are a group's)
_CALLS_WITH_IDS = (
    ("setuid", (0,), ()),
    ("setreuid", (0, 1), ()),
    ("setresuid", (0, 1, 2), ()),
    ("setgid", (), (0,)),
    ("setregid", (), (0, 1)),
    ("setresgid", (), (0, 1, 2)),
    ("chown lchown fchown", (1,), (2,)),
    ("fchownat", (2,), (3,)),
)
_UNCHANGED = 0xFFFFFFFF


def alone(profile: Profile, uid: int, gid: int) -> Profile:
    """The same profile for a user namespace that has these two ids only.

    Any other is no id at all there, and the kernel says EINVAL; programs know the EPERM of an ordinary account.
    """
    reason = "not this account's to take or to give away"
    rows = [(calls, arg, own) for calls, users, groups in _CALLS_WITH_IDS
            for own, args in ((uid, users), (gid, groups)) for arg in args]  # fmt: skip
    rules = tuple(_closed(calls, _deny(_EPERM), reason, none_of(arg, own, _UNCHANGED)) for calls, arg, own in rows)
    return replace(profile, closed=profile.closed + rules)


def noting(profile: Profile, rules: tuple[Rule, ...] = TELLING) -> Profile:
    """The same profile, with a supervisor that is also told of these allowed calls."""
    return replace(profile, noted=profile.noted + rules)


def watching(profile: Profile) -> Profile:
    """The same profile, with a supervisor that is told of every call that names a file, the denied ones too."""
    return noting(watching_denied(profile), WATCHING)


def watching_denied(profile: Profile) -> Profile:
    """The same profile, with a supervisor that is told of the denied calls that name a file."""
    return replace(profile, closed=tuple(part for rule in profile.closed for part in _told(rule)))


def _told(rule: Rule) -> tuple[Rule, ...]:
    """The rule, and before it the same for those of its calls that name a file."""
    named = tuple(call for call in rule.calls if call in WATCHED)
    if rule.action.kind is not Kind.DENY or not named:
        return (rule,)
    return replace(rule, calls=named, action=Action(kind=Kind.WATCH_DENIED, errno=rule.action.errno)), rule
