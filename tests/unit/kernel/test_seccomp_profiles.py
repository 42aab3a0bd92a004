"""The compiled programs of both architectures, run in a BPF machine over every call and argument edges."""

import errno
from collections import Counter
from collections.abc import Callable

import pytest
from bpf_machine import decode, run, seccomp_data

from ringfence.errors import PolicyError
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp.profiles import (
    CONFINED,
    CONFINED_TIGHT,
    DEFAULT,
    LAYERED,
    PROFILES,
    TELLING,
    TIGHT,
    TIGHT_EXEC,
    UNIX_PAIRS,
    alone,
    noting,
    watching,
)
from ringfence.kernel.seccomp.rules import Action, Kind, Profile, Rule, When, any_bit, decide, decider, none_of, one_of
from ringfence.kernel.seccomp.watched_calls import WATCHED
from ringfence.kernel.syscall_numbers import AUDIT_ARCH, NUMBERS

pytestmark = pytest.mark.unmeasured

ARCHES = tuple(NUMBERS)
KILL, NOTIFY, ALLOW = seccomp.RET_KILL_PROCESS, seccomp.RET_USER_NOTIF, seccomp.RET_ALLOW
ZEROS = (0,) * 6
ONES = (2**64 - 1,) * 6

WATCHING_ALL = watching(alone(noting(DEFAULT), 1000, 1000))


def refused(code: int) -> int:
    return seccomp.RET_ERRNO | code


_compiled: dict[tuple[int, str, bool], tuple[Profile, list[tuple[int, int, int, int]]]] = {}


def compiled(profile: Profile, arch: str, notify: bool) -> list[tuple[int, int, int, int]]:
    """By identity, not by value: to hash a profile takes longer than to run its program."""
    key = (id(profile), arch, notify)
    if key not in _compiled:
        _compiled[key] = profile, decode(seccomp.compile(profile, arch, notify=notify))
    return _compiled[key][1]


def answer(profile: Profile, arch: str, call: str | int, *args: int, notify: bool = False) -> int:
    number = call if isinstance(call, int) else NUMBERS[arch][call]
    registers = tuple(value & (2**64 - 1) for value in (*args, *ZEROS[len(args) :]))
    return run(compiled(profile, arch, notify), seccomp_data(number, AUDIT_ARCH[arch], registers))


def expected(rule: Rule, notify: bool) -> int:
    if rule.action.kind is Kind.ALLOW:
        return ALLOW
    if rule.action.kind is Kind.DENY:
        return refused(rule.action.errno)
    if notify:
        return NOTIFY
    return {Kind.NOTE: ALLOW, Kind.WATCH: ALLOW, Kind.FORBID: KILL}.get(rule.action.kind, refused(rule.action.errno))


def edges(condition: When) -> set[int]:
    """Values just inside and outside a condition, with and without garbage in the upper half."""
    near = {0, condition.bits, 2**64 - 1, 2**32, ~condition.bits & (2**64 - 1)}
    near |= {value + delta for value in condition.values for delta in (-1, 0, 1)}
    flipped = {(value ^ flip) & (2**64 - 1) for value in near for flip in (0, 2**32, 0xFFFFFFFF << 32)}
    return flipped | {1 << bit for bit in range(0, 64, 5)}


def argument_sets(profile: Profile, call: str) -> set[tuple[int, ...]]:
    conditions = [condition for rule in profile.rules if call in rule.calls for condition in rule.when]
    sets = {ZEROS, ONES}
    for condition in conditions:
        bases = {ZEROS} | {_with(ZEROS, other.arg, value) for other in conditions for value in other.values}
        sets |= {_with(base, condition.arg, value) for base in bases for value in edges(condition)}
    return sets


def _with(args: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*args[:index], value, *args[index + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("profile", [*PROFILES.values(), noting(DEFAULT), WATCHING_ALL], ids=lambda which: which.name)
def test_the_program_means_what_the_rules_say(profile: Profile, arch: str) -> None:
    told, untold, audit_arch = compiled(profile, arch, True), compiled(profile, arch, False), AUDIT_ARCH[arch]
    for call, number in NUMBERS[arch].items():
        for args in argument_sets(profile, call):
            rule, data = decide(profile, number, args, audit_arch), seccomp_data(number, audit_arch, args)
            assert run(told, data) == expected(rule, True), (call, args)
            assert run(untold, data) == expected(rule, False), (call, args)


def _closing(*when: When) -> Profile:
    """``prctl`` fails when all of these hold; everything else is allowed."""
    rest = Rule(calls=("prctl",), action=Action(kind=Kind.ALLOW), reason="it is open")
    closed = Rule(calls=("prctl",), action=Action(kind=Kind.DENY, errno=errno.EPERM), reason="it is closed", when=when)
    return Profile(name="one", closed=(closed,), open=(rest,), unknown=rest, foreign=rest)


_HALVES = (0, 1, 2, 2**32 - 1)


@pytest.mark.parametrize("make", [one_of, none_of])
@pytest.mark.parametrize(
    "values",
    [(0,), (2**64 - 1,), (1, 2), (1 << 32, 2 << 32), (1, 1 << 32), (1 | 2 << 32, 2 | 1 << 32, 1 | 1 << 32),
     (3 << 32, 1 | 3 << 32, 2 | 3 << 32), (1, 1, 2)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("bits", [2**64 - 1, 2**32 - 1, (2**32 - 1) << 32, 3 | 3 << 32])
def test_a_condition_of_any_width_and_number_of_values_means_what_it_says(
    make: Callable[..., When], values: tuple[int, ...], bits: int
) -> None:
    profile = _closing(make(1, *(value & bits for value in values), bits=bits))
    for low in _HALVES:
        for high in _HALVES:
            args = (0, low | high << 32, 0, 0, 0, 0)
            wanted = profile.closed[0].when[0].holds(args)
            assert (answer(profile, "x86_64", "prctl", *args) == refused(errno.EPERM)) == wanted, args


def test_a_word_is_loaded_once_however_many_values_there_are() -> None:
    few, many = (len(compiled(_closing(one_of(1, *range(count))), "x86_64", False)) for count in (1, 11))
    assert many - few == 10


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_number_without_a_name_does_not_exist(profile: Profile, arch: str) -> None:
    named = set(NUMBERS[arch].values())
    strangers = [number for number in range(2048) if number not in named]
    for number in (*strangers, 2**30 - 1, 2**31 - 1 if arch == "aarch64" else 5000, 2**32 - 1):
        assert answer(profile, arch, number) == refused(errno.ENOSYS), number


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_x32_number_kills(profile: Profile) -> None:
    for number in (*range(1024), 2**30 - 1, 2**31, 0xBFFFFFFE):
        assert answer(profile, "x86_64", 0x40000000 + number) == KILL
        assert decide(profile, 0x40000000 + number, ZEROS, AUDIT_ARCH["x86_64"]) is profile.foreign


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_other_architecture_kills(profile: Profile, arch: str) -> None:
    foreign = {0x40000003, 0x40000028, 0, 0xFFFFFFFF, *AUDIT_ARCH.values()} - {AUDIT_ARCH[arch]}
    for audit_arch in foreign:
        for number in (*range(512), 0x40000000, 0xFFFFFFFF):
            data = seccomp_data(number, audit_arch, ZEROS)
            assert run(compiled(profile, arch, False), data) == KILL
            assert run(compiled(profile, arch, True), data) == NOTIFY


def test_every_call_is_named_once_as_open_or_closed() -> None:
    named = Counter(call for rule in DEFAULT.rules if not rule.when for call in rule.calls)
    assert set(named) == NUMBERS["x86_64"].keys() | NUMBERS["aarch64"].keys()
    assert [call for call, times in named.items() if times > 1] == []


def test_every_rule_has_a_reason() -> None:
    for profile in PROFILES.values():
        for rule in (*profile.rules, profile.unknown, profile.foreign):
            assert len(rule.reason) > 3, rule


# (call, arguments, what the kernel does with it under `default`): written out, not taken from the rules.
CLOSED = [
    *((call, (), KILL) for call in ("kexec_load", "kexec_file_load", "init_module", "finit_module")),
    *((call, (), KILL) for call in ("delete_module", "open_by_handle_at", "pivot_root", "reboot")),
    *((call, (), KILL) for call in ("swapon", "swapoff")),
    *((call, (), refused(errno.EPERM)) for call in ("mount", "umount2", "fsopen", "fsconfig", "fsmount")),
    *((call, (), refused(errno.EPERM)) for call in ("fspick", "move_mount", "open_tree", "mount_setattr")),
    *((call, (), refused(errno.EPERM)) for call in ("open_tree_attr", "setns", "bpf", "perf_event_open")),
    *((call, (), refused(errno.EPERM)) for call in ("userfaultfd", "process_vm_readv", "process_vm_writev")),
    *((call, (), refused(errno.EPERM)) for call in ("pidfd_getfd", "clock_settime", "settimeofday")),
    *((call, (), refused(errno.EPERM)) for call in ("adjtimex", "clock_adjtime", "sethostname", "chroot")),
    *((call, (), refused(errno.EPERM)) for call in ("setdomainname", "quotactl", "quotactl_fd", "acct")),
    *((call, (), refused(errno.EPERM)) for call in ("syslog", "fanotify_init", "fanotify_mark", "kcmp")),
    *((call, (), refused(errno.EPERM)) for call in ("move_pages", "migrate_pages", "mbind", "vhangup")),
    *((call, (), refused(errno.ENOSYS)) for call in ("io_uring_setup", "io_uring_enter", "keyctl")),
    *((call, (), refused(errno.ENOSYS)) for call in ("io_uring_register", "add_key", "request_key")),
    *((call, (), refused(errno.ENOSYS)) for call in ("clone3", "memfd_secret", "statmount", "listmount")),
    ("name_to_handle_at", (), refused(errno.EOPNOTSUPP)),
    *(("unshare", (flag,), refused(errno.EPERM)) for flag in (0x10000000, 0x20000, 0x80, 0x40000000)),
    *(("clone", (flag | 17,), refused(errno.EPERM)) for flag in (0x10000000, 0x20000, 0x2000000, 0x4000000)),
    *(("clone", (flag | 17,), refused(errno.EPERM)) for flag in (0x8000000, 0x20000000, 0x40000000, 0x8000)),
    ("unshare", (1 << 37,), refused(errno.EPERM)),
    ("clone", (0x10000000 | 1 << 32,), refused(errno.EPERM)),
    *(("ptrace", (request, 1), refused(errno.EPERM)) for request in (16, 0x4206, 16 | 1 << 40)),
    *(("ioctl", (0, command), refused(errno.EPERM)) for command in (0x5412, 0x541C, 0x541D, 0x5423)),
    *(("ioctl", (0, 0x5412 | high << 32), refused(errno.EPERM)) for high in (1, 0x80000000, 0xFFFFFFFF)),
    *(("socket", (family, 2, 0), refused(errno.EAFNOSUPPORT)) for family in (17, 31, 38, 40, 43, 44, 0, -1)),
    ("socket", (40 | 1 << 32, 1, 0), refused(errno.EAFNOSUPPORT)),
    ("socket", (17 | 1 << 32, 3, 0), refused(errno.EAFNOSUPPORT)),
    *(("socket", (family, 3, 1), refused(errno.EPERM)) for family in (2, 10)),
    ("socket", (2 | 5 << 32, 3 | 0x80000 | 0x800 | 1 << 33, 255), refused(errno.EPERM)),
    *(("socket", (2, kind, 0), refused(errno.EPERM)) for kind in (4, 5, 6, 10)),
    *(("socket", (2, 1, protocol), refused(errno.EPROTONOSUPPORT)) for protocol in (262, 256, 132)),
    *(("socket", (16, 3, protocol), refused(errno.EPROTONOSUPPORT)) for protocol in (4, 9, 12, 15, 16, 21)),
    ("socketpair", (30, 1, 0), refused(errno.EAFNOSUPPORT)),
    ("sendto", (3, 8, 1, 0x20000000 | 0x4000), refused(errno.EOPNOTSUPP)),
    ("sendmsg", (3, 8, 0x20000000 | 1 << 32), refused(errno.EOPNOTSUPP)),
    ("sendmmsg", (3, 8, 1, 0x20000000), refused(errno.EOPNOTSUPP)),
    *(("personality", (value,), refused(errno.EPERM)) for value in (0x400000, 0x100000, 6, 0x8 | 0x400000)),
    ("prctl", (35 | 1 << 32, 13), refused(errno.EPERM)),
    ("seccomp", (1, 8), refused(errno.EBUSY)),
    ("seccomp", (1, 8 | 32 | 1 << 32), refused(errno.EBUSY)),
    *(("mknodat", (-100, 8, kind | 0o600), refused(errno.EPERM)) for kind in (0o020000, 0o060000)),
    ("mknodat", (-100, 8, 0x7FFF2000), refused(errno.EPERM)),
    ("renameat2", (-100, 8, -100, 8, 4), refused(errno.EINVAL)),
    *((call, (1, 8), refused(errno.ENOSYS)) for call in ("io_setup", "io_submit", "io_getevents", "io_destroy")),
    *(("fallocate", (3, mode, 0, 1), refused(errno.EOPNOTSUPP)) for mode in (0, 1, 2, 9, 0x10, 0x11, 0x20, 0x41, 0x80)),
    *(("fallocate", (3, mode, 0, 1), refused(errno.EOPNOTSUPP)) for mode in (1 << 32, 1 | 1 << 32, 0xFFFFFFFF)),
    *(("ioctl", (3, command), refused(errno.ENOTTY)) for command in (0x40305828, 0x4030582A, 0x40305839, 0x401C5820)),
    ("ioctl", (3, 0x4030582A | 1 << 32), refused(errno.ENOTTY)),
    ("file_setattr", (-100, 8, 8, 24), refused(errno.ENOSYS)),
    *(("fcntl", (3, command, 0), refused(errno.EINVAL)) for command in (1024, 1026, 1040, 1024 | 1 << 32)),
    ("prctl", (4, 0), refused(0)),
    ("prctl", (4 | 1 << 32, 0), refused(0)),
    ("sync", (), refused(0)),
    ("setrlimit", (4, 8), refused(0)),
    ("setrlimit", (4 | 1 << 32, 8), refused(0)),
    ("prlimit64", (0, 4, 8), refused(0)),
    ("prlimit64", (0, 4, 8 << 32), refused(0)),
    ("prlimit64", (77, 4 | 1 << 40, 8), refused(0)),
    ("prlimit64", (0, 4, 8, 8), refused(errno.EPERM)),
    *((call, (1 | high, 8, 8), refused(errno.EPERM)) for high in (0, 1 << 32)
      for call in ("sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity", "prlimit64")),
    *((call, (which, 1, 8), refused(errno.EPERM)) for call in ("setpriority", "ioprio_set") for which in (0, 1)),
    ("setpriority", (2, 0, 19), refused(errno.EPERM)),
    ("ioprio_set", (3, 0, 8), refused(errno.EPERM)),
]
OPEN = [
    *((call, ()) for call in ("read", "openat", "execve", "mmap", "futex", "seccomp", "landlock_add_rule")),
    ("clone", (17 | 0x1200000,)),
    ("clone", (0x3D0F00,)),
    ("clone", (0x4111,)),
    ("clone", (0x80,)),
    ("unshare", (0x200,)),
    ("unshare", (0x400,)),
    *(("ptrace", (request,)) for request in (0, 7, 0x4200)),
    *(("ioctl", (0, command)) for command in (0x5401, 0x5413, 0x5421, 0x541B)),
    *(("socket", (family, 1 | 0x80000, 0)) for family in (1, 2, 10)),
    *(("socket", (family, 2 | 0x800, 17)) for family in (2, 10)),
    ("socket", (16, 3 | 0x80000, 0)),
    ("socketpair", (1, 1, 0)),
    ("sendto", (3, 8, 1, 0x4000)),
    ("sendmsg", (3, 8, 0x40)),
    *(("personality", (value,)) for value in (0, 8, 0x40000, 0xFFFFFFFF)),
    ("prctl", (15,)),
    ("prctl", (4, 1)),
    ("prctl", (3, 0)),
    ("seccomp", (1, 0)),
    ("mknodat", (-100, 8, 0o010600)),
    ("renameat2", (-100, 8, -100, 8, 1)),
    *(("fallocate", (3, mode, 0, 1)) for mode in (3, 8, 3 | 1 << 32)),
    *(("fcntl", (3, command, 0)) for command in (0, 1, 2, 3, 4, 6, 1025, 1030, 1031, 1033)),
    *(("ioctl", (3, command)) for command in (0x40086602, 0x801C581F, 0x40049409)),
    *((call, (3,)) for call in ("fsync", "fdatasync", "syncfs")),
    ("setrlimit", (7, 8)),
    ("prlimit64", (0, 4, 0, 8)),
    ("prlimit64", (0, 7, 8, 8)),
    *((call, (pid, 8)) for pid in (0, 2, 1234) for call in ("sched_setscheduler", "sched_setaffinity")),
    *((call, (which, pid, 8)) for call in ("setpriority", "ioprio_set") for which in (0, 1) for pid in (0, 2, 1234)),
    ("prlimit64", (1, 7, 0, 8)),
]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("call", "args", "result"), CLOSED)
def test_default_closes(arch: str, call: str, args: tuple[int, ...], result: int) -> None:
    assert answer(DEFAULT, arch, call, *args) == result
    assert answer(TIGHT, arch, call, *args) != ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("call", "place"), [("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)])
def test_layers_differ_from_writable_folders_in_set_group_id_alone(arch: str, call: str, place: int) -> None:
    results = {}
    for bits in (0o755, 0o2755, 0o4755, 0o6755):
        arguments = [0, 0, 0]
        arguments[place] = bits
        results[bits] = [answer(profile, arch, call, *arguments) for profile in (DEFAULT, LAYERED)]
    no = refused(errno.EPERM)
    assert results == {0o755: [ALLOW, ALLOW], 0o2755: [no, ALLOW], 0o4755: [no, no], 0o6755: [no, no]}
    for call, *arguments in (("openat", 0, 0, 0o101, 0o2755), ("mknodat", 0, 0, 0o102755)):
        assert answer(LAYERED, arch, call, *arguments) == no


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("call", "args"), OPEN)
def test_default_leaves_open(arch: str, call: str, args: tuple[int, ...]) -> None:
    assert answer(DEFAULT, arch, call, *args) == ALLOW


@pytest.mark.parametrize(
    ("call", "result"), [("iopl", KILL), ("ioperm", KILL), ("modify_ldt", refused(errno.ENOSYS))]
)
def test_default_closes_what_only_x86_has(call: str, result: int) -> None:
    assert answer(DEFAULT, "x86_64", call) == result


TIGHT_CLOSED = [
    *(("socket", (family, 1, 0)) for family in (1, 2, 10, 16)),
    *((call, ()) for call in ("connect", "bind", "listen", "accept", "accept4")),
    ("socketpair", (1, 2, 0)),
    ("sendto", (3, 8, 1, 0, 0x7F0000000000, 16)),
    ("sendto", (3, 8, 1, 0, 1 << 40, 16)),
    ("clone", (17,)),
    ("clone", (0x4111,)),
    ("clone", (0x10000 << 32,)),
]
TIGHT_OPEN = [
    ("clone", (0x3D0F00,)),
    ("socketpair", (1, 1 | 0x80000, 0)),
    ("sendto", (3, 8, 1, 0, 0, 0)),
    *((call, ()) for call in ("read", "openat", "mmap", "futex", "sendmsg")),
]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("profile", [TIGHT, TIGHT_EXEC], ids=lambda profile: profile.name)
@pytest.mark.parametrize(("call", "args"), TIGHT_CLOSED)
def test_tight_closes(profile: Profile, arch: str, call: str, args: tuple[int, ...]) -> None:
    assert answer(profile, arch, call, *args) & 0xFFFF0000 == seccomp.RET_ERRNO
    assert answer(DEFAULT, arch, call, *args) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("call", "args"), TIGHT_OPEN)
def test_tight_leaves_threads_and_files_open(arch: str, call: str, args: tuple[int, ...]) -> None:
    assert answer(TIGHT, arch, call, *args) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
def test_only_tight_closes_exec(arch: str) -> None:
    assert [answer(profile, arch, "execve") for profile in (DEFAULT, TIGHT, TIGHT_EXEC)] == [
        ALLOW,
        refused(errno.EPERM),
        ALLOW,
    ]


@pytest.mark.parametrize("arch", ARCHES)
def test_noting_tells_and_never_opens(arch: str) -> None:
    assert answer(noting(DEFAULT), arch, "connect", notify=True) == NOTIFY
    assert answer(noting(DEFAULT), arch, "connect") == ALLOW
    assert answer(noting(TIGHT), arch, "connect") == refused(errno.EACCES)
    assert decide(noting(TIGHT), NUMBERS[arch]["connect"], ZEROS, AUDIT_ARCH[arch]).action.kind is Kind.REPORT
    assert answer(noting(DEFAULT, TELLING), arch, "sendto", notify=True) == ALLOW
    assert answer(noting(DEFAULT, TELLING), arch, "sendto", 0, 0, 0, 0, 8, notify=True) == NOTIFY


@pytest.mark.parametrize("arch", ARCHES)
def test_watching_tells_of_every_call_that_names_a_file_and_opens_none(arch: str) -> None:
    for call in WATCHED.keys() & NUMBERS[arch].keys() - {"sendto"}:
        assert answer(WATCHING_ALL, arch, call, notify=True) == NOTIFY, call
        assert answer(WATCHING_ALL, arch, call) == answer(alone(DEFAULT, 1000, 1000), arch, call), call
    for call in ("read", "fstat", "getdents64", "mmap"):
        assert answer(WATCHING_ALL, arch, call, notify=True) == ALLOW
    assert answer(WATCHING_ALL, arch, "fchown", 0, 5, 5, notify=True) == refused(errno.EPERM)
    assert answer(WATCHING_ALL, arch, "fchownat", 0, 0, 5, 5, notify=True) == NOTIFY
    assert answer(WATCHING_ALL, arch, "fchownat", 0, 0, 5, 5) == refused(errno.EPERM)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_quick_decision_is_the_same_decision(arch: str) -> None:
    quick = decider(WATCHING_ALL, arch)
    for call, number in NUMBERS[arch].items():
        for args in argument_sets(WATCHING_ALL, call):
            for audit_arch in (AUDIT_ARCH[arch], 0x40000003):
                assert quick(number, args, audit_arch) is decide(WATCHING_ALL, number, args, audit_arch)
    assert quick(0x40000001, ZEROS, AUDIT_ARCH[arch]) is decide(WATCHING_ALL, 0x40000001, ZEROS, AUDIT_ARCH[arch])


def test_a_rule_on_a_call_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(PolicyError, match="opennat"):
        Rule(calls=("opennat",), action=Action(kind=Kind.ALLOW), reason="a slip")


@pytest.mark.parametrize(
    "make",
    [
        lambda: one_of(6, 1),
        lambda: one_of(0),
        lambda: one_of(0, 0x10, bits=0xF),
        lambda: any_bit(0, 0),
        lambda: none_of(-1, 0),
    ],
)
def test_a_condition_that_can_not_mean_anything_is_refused(make: object) -> None:
    with pytest.raises(PolicyError, match="when"):
        make()  # type: ignore[operator]


# (call, arguments, errno under `confined`): what namespaces would hold, and the default profile leaves open.
_HELD_BY_NAMESPACES = [
    *(("socket", (family, 1, 0), errno.EACCES) for family in (1, 2, 10)),
    *((call, (3,), errno.EACCES) for call in ("connect", "bind", "listen", "accept4")),
    *((call, (1,), errno.EPERM) for call in ("shmget", "semget", "msgget", "shmat", "mq_open")),
    ("prlimit64", (1234, 7), errno.EPERM),
    ("prlimit64", (1 << 32 | 1, 7), errno.EPERM),
    ("setpriority", (0, 1234, 19), errno.EPERM),
    ("ioprio_set", (1, 1234, 0), errno.EPERM),
    *((call, (1234, 5), errno.EPERM)
      for call in ("sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity")),
    ("sched_setaffinity", (1 << 32 | 2, 8), errno.EPERM),
]  # fmt: skip
_STILL_OPEN = [
    ("prlimit64", (0, 7)), ("setpriority", (0, 0, 19)), ("ioprio_set", (1, 0, 0)), ("socketpair", (1, 1, 0)),
    ("fork", ()), ("execve", ()), ("sched_setaffinity", (0, 8)), ("sched_setscheduler", (0, 5)),
    ("sched_setattr", (0,)),
]  # fmt: skip


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("call", "args", "code"), _HELD_BY_NAMESPACES, ids=str)
def test_without_namespaces_the_filter_closes_what_they_would_hold(
    call: str, args: tuple[int, ...], code: int, arch: str
) -> None:
    assert answer(CONFINED, arch, call, *args) == refused(code)
    assert answer(CONFINED_TIGHT, arch, call, *args) == refused(code)
    assert answer(DEFAULT, arch, call, *args) == seccomp.RET_ALLOW


@pytest.mark.parametrize("arch", ARCHES)
def test_without_namespaces_a_job_may_still_limit_itself_and_start_programs(arch: str) -> None:
    for call, args in _STILL_OPEN:
        if call in NUMBERS[arch]:
            assert answer(CONFINED, arch, call, *args) == seccomp.RET_ALLOW, call


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("flags", [0, 0o2000000, 0o4000, 0xFFFFFFFF_00000000])
def test_where_only_pairs_are_open_no_unix_socket_can_name_another(arch: str, flags: int) -> None:
    closed = refused(errno.EACCES)
    for kind in (1, 2, 3, 5):
        assert answer(UNIX_PAIRS, arch, "socket", 1, kind | flags) == closed
        assert answer(UNIX_PAIRS, arch, "socket", 1 | 1 << 32, kind | flags) == closed
    for kind, expected_answer in ((1, ALLOW), (5, ALLOW), (2, closed), (3, closed), (4, closed), (0, closed)):
        assert answer(UNIX_PAIRS, arch, "socketpair", 1, kind | flags) == expected_answer
    assert answer(UNIX_PAIRS, arch, "socket", 2, 1 | flags) == ALLOW
