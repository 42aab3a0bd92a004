"""The filters on the real kernel: each closed call fails because of the filter, and does not without it."""

import ctypes
import errno
import fcntl
import mmap
import os
import pty
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Callable

import pytest
from forked import MINUS_ONE, Died, attempt, filtered, in_child, outcome

from ringfence.errors import SetupError
from ringfence.kernel import syscalls
from ringfence.kernel.seccomp import bpf
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp.profiles import DEFAULT, TIGHT
from ringfence.kernel.seccomp.rules import Kind, Profile, Rule
from ringfence.kernel.syscall_numbers import NUMBERS, architecture
from ringfence.model.record import replace

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

# An errno that no kernel uses: whoever sees it was stopped by the filter.
MARK = 3999


def marked(profile: Profile) -> Profile:
    def mark(rule: Rule) -> Rule:
        return replace(rule, action=replace(rule.action, kind=Kind.DENY, errno=MARK))

    closed = tuple(mark(rule) for rule in profile.closed)
    return replace(profile, closed=closed, unknown=mark(profile.unknown))


ALWAYS_CLOSED = sorted(
    call
    for rule in DEFAULT.closed
    for call in rule.calls
    if not rule.when and call in NUMBERS[architecture()]
)


@pytest.mark.parametrize("call", ALWAYS_CLOSED)
def test_the_kernel_never_sees_a_closed_call(call: str) -> None:
    # With every argument -1 none of them can do harm, with or without the filter.
    def work() -> int:
        os.setsid()
        return attempt(call, *MINUS_ONE)()

    assert in_child(work) != MARK
    assert filtered(marked(DEFAULT), work) == MARK


@pytest.mark.parametrize("number", [450 + 100, 1000, 0x3FFFFFFF])
def test_the_kernel_never_sees_a_call_without_a_name(number: int) -> None:
    def work() -> int:
        return outcome(lambda: _raw(number))

    assert in_child(work) == errno.ENOSYS
    assert filtered(marked(DEFAULT), work) == MARK
    assert filtered(DEFAULT, work) == errno.ENOSYS


def _raw(number: int) -> None:
    if syscalls.libc().syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) == -1:
        raise OSError(ctypes.get_errno(), str(number))


FORBIDDEN = sorted(
    call
    for rule in DEFAULT.closed
    for call in rule.calls
    if rule.action.kind is Kind.FORBID and call in NUMBERS[architecture()]
)


@pytest.mark.parametrize("call", FORBIDDEN)
def test_an_attack_without_a_supervisor_ends_the_process(call: str) -> None:
    assert in_child(attempt(call, *MINUS_ONE)) != 0
    with pytest.raises(Died) as caught:
        filtered(DEFAULT, attempt(call, *MINUS_ONE))
    assert caught.value.signal == signal.SIGSYS


def test_an_attack_by_a_thread_ends_the_whole_process() -> None:
    def work() -> str:
        thread = threading.Thread(target=attempt("reboot", *MINUS_ONE))
        thread.start()
        thread.join()
        return "still here"

    assert in_child(work) == "still here"
    with pytest.raises(Died):
        filtered(DEFAULT, work)


# Attacks with arguments that work: each returns 0 where nothing stops it.


def type_into_the_terminal(high: int = 0) -> int:
    _, terminal = pty.openpty()
    os.setsid()
    fcntl.ioctl(terminal, 0x540E, 0)  # TIOCSCTTY
    character = ctypes.create_string_buffer(b"x")
    return outcome(lambda: syscalls.call("ioctl", terminal, 0x5412 | high << 32, character))


def type_into_the_terminal_with_garbage_above() -> int:
    return type_into_the_terminal(high=0xDEADBEEF)


def set_the_line_discipline() -> int:
    _, terminal = pty.openpty()
    return outcome(lambda: syscalls.call("ioctl", terminal, 0x5423, struct.pack("i", 0)))


def make_a_ring() -> int:
    return attempt("io_uring_setup", 1, bytes(120))()


def read_a_sibling() -> int:
    reader, writer = os.pipe()
    sibling = os.fork()
    if sibling == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    buffer = ctypes.create_string_buffer(b"secret")
    local = struct.pack("QQ", ctypes.addressof(ctypes.create_string_buffer(8)), 6)
    remote = struct.pack("QQ", ctypes.addressof(buffer), 6)
    result = attempt("process_vm_readv", sibling, local, 1, remote, 1, 0)()
    os.close(writer)
    os.waitpid(sibling, 0)
    return result


def seize_a_sibling(request: int = 0x4206) -> int:
    reader, writer = os.pipe()
    sibling = os.fork()
    if sibling == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    result = attempt("ptrace", request, sibling, 0, 0)()
    os.kill(sibling, signal.SIGKILL)
    os.waitpid(sibling, 0)
    return result


def attach_to_a_sibling() -> int:
    return seize_a_sibling(16)


def take_a_descriptor() -> int:
    reader, writer = os.pipe()
    sibling = os.fork()
    if sibling == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    result = attempt("pidfd_getfd", os.pidfd_open(sibling), reader, 0)()
    os.close(writer)
    os.waitpid(sibling, 0)
    return result


def make_a_key() -> int:
    return attempt("add_key", b"user", b"ringfence-test", b"x", 1, -2)()  # the process keyring


def clone_a_sibling() -> int:
    def cloned() -> None:
        if syscalls.call("clone", 0x8000 | 17, 0, 0, 0, 0) == 0:
            os._exit(0)

    return outcome(cloned)


def clone_a_user_namespace(high: int = 0) -> int:
    def cloned() -> None:
        child = syscalls.call("clone", 0x10000000 | 17 | high << 32, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    return outcome(cloned)


def clone_a_user_namespace_with_garbage_above() -> int:
    return clone_a_user_namespace(high=1)


def clone3_a_user_namespace() -> int:
    def cloned() -> None:
        child = syscalls.call("clone3", struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    return outcome(cloned)


def make_a_whiteout(bits_above: int = 0) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = os.fsencode(folder) + b"/whiteout"
        return attempt("mknodat", -100, path, 0o020600 | bits_above, 0)()


def make_a_whiteout_with_garbage_above() -> int:
    return make_a_whiteout(bits_above=0x7FFF0000)


def rename_to_a_whiteout() -> int:
    with tempfile.TemporaryDirectory() as folder:
        old, new = os.fsencode(folder) + b"/old", os.fsencode(folder) + b"/new"
        with open(old, "w"):
            pass
        return attempt("renameat2", -100, old, -100, new, 4)()


def open_socket(family: int, kind: int, protocol: int) -> Callable[[], int]:
    return attempt("socket", family, kind, protocol)


ATTACKS: dict[str, tuple[Callable[[], int], int]] = {
    "type into the terminal": (type_into_the_terminal, errno.EPERM),
    "the same with garbage in the upper half": (type_into_the_terminal_with_garbage_above, errno.EPERM),
    "set the line discipline": (set_the_line_discipline, errno.EPERM),
    "io_uring": (make_a_ring, errno.ENOSYS),
    "read a sibling's memory": (read_a_sibling, errno.EPERM),
    "seize a sibling": (seize_a_sibling, errno.EPERM),
    "attach to a sibling": (attach_to_a_sibling, errno.EPERM),
    "take a sibling's descriptor": (take_a_descriptor, errno.EPERM),
    "make a key": (make_a_key, errno.ENOSYS),
    "user namespace by unshare": (attempt("unshare", 0x10000000), errno.EPERM),
    "user namespace by clone": (clone_a_user_namespace, errno.EPERM),
    "the same, bits in the upper half": (clone_a_user_namespace_with_garbage_above, errno.EPERM),
    "user namespace by clone3": (clone3_a_user_namespace, errno.ENOSYS),
    "a child that is a sibling": (clone_a_sibling, errno.EPERM),
    "userfaultfd": (attempt("userfaultfd", 1), errno.EPERM),
    "read implies execute": (attempt("personality", 0x400000), errno.EPERM),
    "the same, garbage above": (attempt("personality", 0x400000 | 1 << 32), errno.EPERM),
    "a file handle": (
        attempt("name_to_handle_at", -100, b"/tmp", struct.pack("II", 128, 0) + bytes(128), bytes(8), 0),
        errno.EOPNOTSUPP,
    ),
    "a whiteout": (make_a_whiteout, errno.EPERM),
    "the same, garbage above the 16 bits of the mode": (make_a_whiteout_with_garbage_above, errno.EPERM),
    "a whiteout by rename": (rename_to_a_whiteout, errno.EINVAL),
    "netlink uevents": (open_socket(16, 3, 15), errno.EPROTONOSUPPORT),
    "the same, garbage above each": (open_socket(16 | 1 << 32, 3, 15 | 1 << 32), errno.EPROTONOSUPPORT),
    "kernel log size": (attempt("syslog", 10, 0, 0), errno.EPERM),
    "how far is the clock off": (attempt("adjtimex", ctypes.create_string_buffer(512)), errno.EPERM),
}
# Where an ordinary user of a cautious host (legacy_tiocsti, dmesg_restrict) is refused by the kernel as well.
ROOT_ONLY = {"type into the terminal", "the same with garbage in the upper half", "kernel log size"}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_that_works_without_the_filter_fails_under_it(name: str) -> None:
    attack, code = ATTACKS[name]
    if name not in ROOT_ONLY or os.geteuid() == 0:
        assert in_child(attack) == 0
    assert filtered(marked(DEFAULT), attack) == MARK
    assert filtered(DEFAULT, attack) == code


def test_entering_a_namespace_is_refused_before_the_kernel_looks() -> None:
    def attack() -> int:
        return attempt("setns", os.pidfd_open(os.getpid()), 0x10000000)()

    # The kernel's own answer: nobody can enter the user namespace that he is in.
    assert in_child(attack) == errno.EINVAL
    assert filtered(DEFAULT, attack) == errno.EPERM


SOCKETS_FOR_ROOT = {"packet": (17, 3, 0x0300), "raw": (2, 3, 255), "raw with flags": (2, 3 | 0x80800, 255)}


@pytest.mark.parametrize("name", SOCKETS_FOR_ROOT)
def test_raw_sockets_are_closed_even_with_all_capabilities(name: str) -> None:
    attack = open_socket(*SOCKETS_FOR_ROOT[name])

    def with_capabilities(program: bytes | None) -> int:
        if os.geteuid() != 0:
            syscalls.call("unshare", 0x50000000)  # new user and network namespace
        if program:
            seccomp.install(program)
        return attack()

    assert in_child(lambda: with_capabilities(None)) == 0
    program = seccomp.compile(DEFAULT, architecture())
    assert in_child(lambda: with_capabilities(program)) in (errno.EPERM, errno.EAFNOSUPPORT)


NATIVE_TIGHT = {
    "fork": (lambda: outcome(_fork_and_reap), errno.EPERM),
    "tcp": (open_socket(2, 1, 0), errno.EACCES),
    "unix": (open_socket(1, 1, 0), errno.EACCES),
    "datagram pair": (lambda: outcome(lambda: len(socket.socketpair(1, 2))), errno.EACCES),
    "exec": (attempt("execve", b"/nowhere", 0, 0), errno.EPERM),
}


def _fork_and_reap() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[0]


@pytest.mark.parametrize("name", NATIVE_TIGHT)
def test_tight_stops_network_and_processes(name: str) -> None:
    attack, code = NATIVE_TIGHT[name]
    assert in_child(attack) == (errno.ENOENT if name == "exec" else 0)
    assert filtered(TIGHT, attack) == code


def test_tight_lets_threads_and_event_loops_work() -> None:
    def work() -> list[int]:
        import asyncio

        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(1))
        thread.start()
        thread.join()
        results.append(asyncio.run(asyncio.sleep(0, result=2)))
        with mmap.mmap(-1, 4096), tempfile.TemporaryFile() as file:
            results.append(file.write(b"abc"))
        return results

    assert filtered(TIGHT, work) == [1, 2, 3]


def test_a_listener_of_the_guest_can_not_overrule_ours_once_ours_is_gone() -> None:
    """The newest listener decides; with ours closed, nothing in the kernel refuses a second one."""

    def attack(profile: Profile) -> int:
        ours = seccomp.install(seccomp.compile(profile, architecture(), notify=True), notify=True)
        assert ours is not None
        os.close(ours)
        try:
            theirs = seccomp.install(_tell_all_of("userfaultfd"), notify=True)
        except SetupError:
            return errno.EBUSY
        assert theirs is not None
        return _let_pass(theirs)

    without_the_rule = replace(
        DEFAULT, closed=tuple(rule for rule in DEFAULT.closed if rule.calls != ("seccomp",))
    )
    assert in_child(lambda: attack(without_the_rule)) == 0
    assert in_child(lambda: attack(DEFAULT)) == errno.EBUSY


def _tell_all_of(call: str) -> bytes:
    number = NUMBERS[architecture()][call]
    return bpf.assemble(
        [
            bpf.load(0),
            bpf.if_equal(number, otherwise="pass"),
            bpf.give(seccomp.RET_USER_NOTIF),
            bpf.label("pass"),
            bpf.give(seccomp.RET_ALLOW),
        ]
    )


def _let_pass(descriptor: int) -> int:
    from ringfence.kernel.seccomp.notify import Listener

    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(attempt("userfaultfd", 1)()))
    thread.start()
    listener = Listener(descriptor)
    while (notification := listener.handle()) is None:
        thread.join(0.01)
    listener.proceed(notification)
    thread.join()
    return results[0]


def test_the_filter_holds_after_exec_and_fork() -> None:
    script = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.unshare(0x10000000); print(ctypes.get_errno())"
    )

    def work() -> str:
        import subprocess
        import sys

        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip()

    assert in_child(work) == "0"
    assert filtered(DEFAULT, work) == str(errno.EPERM)


def test_a_broken_program_is_a_setup_error() -> None:
    def work() -> str:
        try:
            seccomp.install(b"\0" * 8)
        except SetupError as error:
            return error.step
        return "installed"

    assert in_child(work, measured=True) == "seccomp"

