"""The listener on the real kernel: it names calls, survives dying guests, never waits, is not tricked."""

import ctypes
import errno
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest
import seccompy
from forked import MINUS_ONE, Child, Died, attempt, in_child, outcome, program, supervised

from ringfence.errors import SetupError, SupervisionError
from ringfence.kernel import syscalls
from ringfence.kernel.proc import memory
from ringfence.kernel.recorder import Recorder
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp.notify import Listener, Notification
from ringfence.kernel.seccomp.profiles import DEFAULT, TELLING, noting
from ringfence.kernel.seccomp.responder import NotifyResponder
from ringfence.kernel.seccomp.rules import Action, Kind, Rule, decide
from ringfence.kernel.syscall_numbers import NUMBERS, architecture
from ringfence.model.record import replace

pytestmark = [pytest.mark.system, pytest.mark.privileges]


def wait_for(listener: Listener, seconds: float = 10) -> Notification:
    """The next notification, in a loop as the engine's."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            selector.select(0.5)
            if (notification := listener.handle()) is not None:
                return notification
    raise AssertionError("no notification")


def wait_until_readable(listener: Listener) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        assert selector.select(30)


_SEEN = os.WEXITED | os.WNOWAIT
TOLD = sorted(
    call
    for rule in DEFAULT.closed
    for call in rule.calls
    if not rule.when and rule.action.kind in (Kind.FORBID, Kind.REPORT) and call in NUMBERS[architecture()]
)


@pytest.mark.parametrize("call", TOLD)
def test_the_supervisor_learns_the_name_and_decides_by_the_rule(call: str) -> None:
    child, listener = supervised(DEFAULT, attempt(call, *MINUS_ONE))
    notification = wait_for(listener)
    assert notification.name == call
    assert notification.thread == child.pid
    assert notification.args == (2**64 - 1,) * 6
    rule = decide(DEFAULT, notification.number, notification.args, notification.audit_arch)
    if rule.action.kind is Kind.FORBID:
        assert listener.kill(notification)
        with pytest.raises(Died) as caught:
            child.result()
        assert caught.value.signal == signal.SIGKILL
    else:
        assert listener.deny(notification, rule.action.errno)
        assert child.result() == rule.action.errno
    listener.close()


@pytest.mark.parametrize("forged", [b"\rTgid:\t%d", b"Tgid:\t%d", b"\vTgid:\t%d", b"\nTgid:\t%d"])
def test_no_name_of_a_thread_has_another_process_ended(forged: bytes) -> None:
    def work() -> object:
        syscalls.prctl(15, ctypes.addressof(ctypes.create_string_buffer(forged % os.getppid())))
        return attempt("reboot", *MINUS_ONE)()

    child, listener = supervised(DEFAULT, work)
    notification = wait_for(listener)
    assert listener.process(notification) == child.pid
    assert listener.kill(notification)
    with pytest.raises(Died):
        child.result()
    listener.close()


def test_a_thread_s_attack_ends_its_whole_process() -> None:
    def work() -> str:
        thread = threading.Thread(target=attempt("reboot", *MINUS_ONE))
        thread.start()
        thread.join()
        return "still here"

    child, listener = supervised(DEFAULT, work)
    notification = wait_for(listener)
    assert notification.thread != child.pid
    assert listener.process(notification) == child.pid
    assert listener.kill(notification)
    with pytest.raises(Died):
        child.result()
    listener.close()


def test_what_waits_at_the_end_is_recorded_and_not_answered() -> None:
    """Its process is killed next; a second call of it must not come."""
    child, listener = supervised(DEFAULT, lambda: [attempt("reboot", *MINUS_ONE)() for _ in range(2)])
    wait_until_readable(listener)
    recorder = Recorder()
    responder = NotifyResponder(os.dup(listener.fileno()), lambda: DEFAULT, recorder)
    assert responder.drain(time.monotonic_ns() + 10**10)
    assert [attempt.operation for attempt in recorder.attempts] == ["reboot"]
    assert responder.drain(0), "nothing waits any more"
    assert recorder.health.total == 1 and not responder.is_over()
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(Died):
        child.result()
    wait_until_readable(listener)
    assert responder.is_over()
    responder.close()
    listener.close()


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (errno.EDOM, errno.EDOM)], ids=["done", "refused"])
def test_a_call_that_is_watched_and_not_made_is_answered_as_its_rule_says(code: int, expected: int) -> None:
    denied = Rule(calls=("sync",), action=Action(kind=Kind.WATCH_DENIED, errno=code), reason="as in a restored visit")
    profile = replace(DEFAULT, closed=(denied, *DEFAULT.closed))
    child, listener = supervised(profile, attempt("sync"))
    wait_until_readable(listener)
    responder = NotifyResponder(os.dup(listener.fileno()), lambda: profile, Recorder())
    responder.handle()
    assert child.result() == expected
    responder.close()
    listener.close()


def test_who_asks_for_ever_at_the_end_is_not_listened_to_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    child, listener = supervised(DEFAULT, attempt("reboot", *MINUS_ONE))
    wait_until_readable(listener)
    responder = NotifyResponder(os.dup(listener.fileno()), lambda: DEFAULT, Recorder())
    with monkeypatch.context() as patched:
        patched.setattr("ringfence.kernel.seccomp.responder.MAX_CALLS_PER_TURN", 0)
        assert not responder.drain(0) and not responder.recorder.health.total
    assert responder.drain(0) and responder.recorder.health.total == 1, "some, however late it is"
    responder.close()
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(Died):
        child.result()
    listener.close()


def test_without_its_supervisor_a_guest_is_refused_and_does_not_hang() -> None:
    child, listener = supervised(DEFAULT, lambda: [attempt("reboot", *MINUS_ONE)() for _ in range(2)])
    wait_for(listener)
    listener.close()
    assert child.result() == [errno.ENOSYS] * 2


def test_a_noted_call_goes_on() -> None:
    def work() -> int:
        with socket.socket() as server, socket.socket() as client:
            server.bind(("127.0.0.1", 0))
            server.listen()
            return outcome(lambda: client.connect(server.getsockname()) or 0)

    child, listener = supervised(noting(DEFAULT), work)
    told = []
    for _ in range(2):
        notification = wait_for(listener)
        address = listener.read(notification, notification.args[1], 16)
        assert address is not None
        told.append((notification.name, address[:2], address[4:8]))
        listener.proceed(notification)
    assert told == [(name, b"\2\0", bytes((127, 0, 0, 1))) for name in ("bind", "connect")]
    assert child.result() == 0
    listener.close()


def _noted_by_a_responder(before_the_answer: Callable[[int], None]) -> tuple[Child, Recorder]:
    """A child that connects to nobody, and what is recorded of it; the function is called with its number between what
    is read of the child and the answer."""

    def work() -> int:
        with socket.socket() as client:
            return outcome(lambda: client.connect(("127.0.0.1", 9)) or 0)

    child, listener = supervised(noting(DEFAULT), work)
    wait_until_readable(listener)
    responder = NotifyResponder(os.dup(listener.fileno()), lambda: noting(DEFAULT), Recorder())
    listener.close()
    answer = responder._listener.proceed

    def proceed(told: Notification) -> bool:
        before_the_answer(told.thread)
        return answer(told)

    responder._listener.proceed = proceed  # type: ignore[method-assign]
    responder.handle()
    responder.close()
    return child, responder.recorder


def test_a_noted_call_goes_on_before_it_is_written_down_with_who_made_it() -> None:
    child, recorder = _noted_by_a_responder(lambda pid: None)
    (attempt,) = recorder.attempts
    assert (attempt.operation, attempt.path, attempt.pid) == ("connect", "127.0.0.1:9", child.pid)
    assert attempt.argv and attempt.start_ticks
    assert child.result() == errno.ECONNREFUSED


def test_of_a_caller_that_is_killed_while_it_is_read_nothing_is_believed() -> None:
    """Its number may be another's by then, and so is what was read."""
    child, recorder = _noted_by_a_responder(lambda pid: os.kill(pid, signal.SIGKILL) or os.waitid(os.P_PID, pid, _SEEN))
    (attempt,) = recorder.attempts
    assert (attempt.operation, attempt.path, attempt.pid, attempt.argv) == ("connect", "", 0, ())
    with pytest.raises(Died):
        child.result()


def test_nothing_is_told_of_what_is_allowed() -> None:
    child, listener = supervised(DEFAULT, lambda: len(os.listdir("/")) > 0)
    assert child.result() is True
    assert listener.handle() is None
    assert listener.finished
    listener.close()


def test_asking_early_does_not_wait() -> None:
    reader, writer = os.pipe()

    def work() -> int:
        os.close(writer)
        os.read(reader, 1)
        return 0

    child, listener = supervised(DEFAULT, work)
    started = time.monotonic()
    assert listener.handle() is None
    assert time.monotonic() - started < 1
    assert not listener.finished
    os.close(writer)
    os.close(reader)
    assert child.result() == 0
    listener.close()


def test_strings_of_the_guest_can_be_read_up_to_a_limit() -> None:
    child, listener = supervised(DEFAULT, attempt("mount", b"the source", b"t" * 9000, 0, 0, 8))
    notification = wait_for(listener)
    source, target, nothing, _, unmapped, _ = notification.args
    assert memory.read_string(notification.thread, source) == b"the source"
    assert memory.read_string(notification.thread, target) == b"t" * 4096
    assert listener.read(notification, target, 7) == b"t" * 7
    for address in (nothing, unmapped, 2**64 - 1):
        assert listener.read(notification, address, 7) is None
        with pytest.raises(OSError):
            memory.read_string(notification.thread, address)
    listener.deny(notification, errno.EPERM)
    assert child.result() == errno.EPERM
    listener.close()


def test_a_string_that_ends_right_before_missing_memory_is_read() -> None:
    def work() -> int:
        libc = syscalls.libc()
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, *[ctypes.c_size_t] * 5)
        pages = libc.mmap(None, 8192, 3, 0x22, 2**64 - 1, 0)
        libc.munmap(ctypes.c_void_p(pages + 4096), ctypes.c_size_t(4096))
        ctypes.memmove(pages + 4090, b"edge\0", 5)
        return attempt("chroot", pages + 4090)()

    child, listener = supervised(DEFAULT, work)
    notification = wait_for(listener)
    assert memory.read_string(notification.thread, notification.args[0]) == b"edge"
    listener.deny(notification, errno.EPERM)
    assert child.result() == errno.EPERM
    listener.close()


def _memory(protection: int, text: bytes, readable: int) -> int:
    """The address of text in two pages: so many bytes of it in a plain one, the rest in one of this protection."""
    libc = syscalls.libc()
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, *[ctypes.c_size_t] * 5)
    pages = int(libc.mmap(None, 8192, 3, 0x22, 2**64 - 1, 0))
    ctypes.memmove(pages + 4096 - readable, text + b"\0", len(text) + 1)
    libc.mprotect(ctypes.c_void_p(pages + 4096), ctypes.c_size_t(4096), protection)
    return pages + 4096 - readable


WRITE_ONLY = 2


@pytest.mark.parametrize("readable", [0, 5])
@pytest.mark.parametrize("protection", [3, WRITE_ONLY], ids=["control", "write-only"])
def test_memory_that_may_only_be_written_is_read_as_the_kernel_reads_it(protection: int, readable: int) -> None:
    child, listener = supervised(DEFAULT, lambda: attempt("chroot", _memory(protection, b"some path", readable))())
    notification = wait_for(listener)
    (address, *_) = notification.args
    assert memory.read_string(notification.thread, address) == b"some path"
    assert listener.read(notification, address, 4) == b"some" and listener.read(notification, address, 8) == b"some pat"
    listener.deny(notification, errno.EPERM)
    assert child.result() == errno.EPERM
    listener.close()


def test_a_kernel_that_forces_no_read_makes_it_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """``proc_mem.force_override=never`` is set when a kernel starts; so its answer is made here, not the question."""

    def refused(file: int, size: int, place: int) -> bytes:
        raise OSError(errno.EIO, "as that kernel says")

    child, listener = supervised(DEFAULT, lambda: attempt("chroot", _memory(WRITE_ONLY, b"some path", 5))())
    notification = wait_for(listener)
    (address, *_) = notification.args
    assert memory.read_string(notification.thread, address) == b"some path"
    monkeypatch.setattr(memory.os, "pread", refused)
    knows_mappings = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 11)
    for place, expected in ((address, errno.EACCES), (address + 5, errno.EACCES), (1 << 40, errno.EFAULT)):
        if knows_mappings or expected == errno.EFAULT:
            with pytest.raises(OSError) as caught:
                memory.read_string(notification.thread, place)
            assert caught.value.errno == expected, place
    listener.deny(notification, errno.EPERM)
    assert child.result() == errno.EPERM
    listener.close()


USES: dict[str, Callable[[Listener, Notification], object]] = {
    "valid": lambda listener, notification: listener.valid(notification),
    "deny": lambda listener, notification: listener.deny(notification, errno.EPERM),
    "proceed": lambda listener, notification: listener.proceed(notification),
    "kill": lambda listener, notification: listener.kill(notification),
    "read": lambda listener, notification: listener.read(notification, notification.args[0], 16) is not None,
}


@pytest.mark.parametrize("use", USES)
def test_a_guest_that_dies_in_mid_call_is_just_gone(use: str) -> None:
    child, listener = supervised(DEFAULT, attempt("chroot", b"/somewhere"))
    notification = wait_for(listener)
    assert listener.valid(notification)
    assert listener.read(notification, notification.args[0], 10) == b"/somewhere"
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(Died):
        child.result()
    assert USES[use](listener, notification) is False
    listener.close()


def test_a_guest_that_dies_before_it_is_asked_about_leaves_nothing() -> None:
    child, listener = supervised(DEFAULT, attempt("chroot", b"/"))
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        assert selector.select(10)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(Died):
        child.result()
    assert listener.handle() is None
    listener.close()


def test_a_kill_storm_neither_stops_nor_confuses_the_listener() -> None:
    def storm() -> int:
        for _ in range(60):
            victim = os.fork()
            if victim == 0:
                attempt("chroot", b"/")()
                os._exit(0)
            time.sleep(0.001)
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
        return attempt("chroot", b"/the end")()

    child, listener = supervised(DEFAULT, storm)
    answered = 0
    while True:
        notification = wait_for(listener)
        name = listener.read(notification, notification.args[0], 8)
        listener.deny(notification, errno.EPERM)
        answered += 1
        if name == b"/the end":
            break
    assert child.result() == errno.EPERM
    assert answered >= 1
    while not listener.finished:
        assert listener.handle() is None
    listener.close()


def test_two_waiting_guests_are_answered_each_by_itself() -> None:
    def work() -> list[int]:
        results: list[int] = [0, 0]

        def one(index: int) -> None:
            results[index] = attempt("setns", index, 0)()

        threads = [threading.Thread(target=one, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    child, listener = supervised(DEFAULT, work)
    for notification in (wait_for(listener), wait_for(listener)):
        listener.deny(notification, 1000 + notification.args[0])
    assert child.result() == [1000, 1001]
    listener.close()


def test_another_implementation_reads_the_same_notification() -> None:
    child, ours = supervised(DEFAULT, attempt("mount", 1, 2, 3, 4, 5))
    theirs = seccompy.notify.Listener(os.dup(ours.fileno()))
    notification = theirs.recv()
    assert notification.nr == NUMBERS[architecture()]["mount"]
    assert notification.args[:5] == (1, 2, 3, 4, 5)
    assert notification.pid == child.pid
    theirs.respond(notification.id, error=errno.EXDEV)
    assert child.result() == errno.EXDEV
    theirs.close()
    ours.close()


def test_a_second_listener_in_the_same_process_is_a_setup_error() -> None:
    code = program(noting(DEFAULT, TELLING), notify=True)

    def work() -> str:
        seccomp.install(code, notify=True)
        try:
            seccomp.install(code, notify=True)
        except SetupError as error:
            return error.hint
        return "installed"

    assert "already has a seccomp listener" in in_child(work, measured=True)


def test_a_closed_listener_says_that_it_is_lost() -> None:
    child, listener = supervised(DEFAULT, attempt("chroot", b"/"))
    notification = wait_for(listener)
    listener.close()
    listener.close()
    assert listener.handle() is None
    with pytest.raises(SupervisionError):
        listener.deny(notification, errno.EPERM)
    assert child.result() == errno.ENOSYS


def test_a_guest_out_of_reach_is_refused_rather_than_killed() -> None:
    child, listener = supervised(DEFAULT, attempt("reboot", *MINUS_ONE))
    notification = wait_for(listener)
    notification.thread = 0  # as in a pid namespace that is not below the supervisor's
    assert not listener.kill(notification)
    assert child.result() == errno.EPERM
    listener.close()


def test_a_reused_thread_id_is_neither_read_nor_killed() -> None:
    child, listener = supervised(DEFAULT, attempt("reboot", *MINUS_ONE))
    notification = wait_for(listener)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(Died):
        child.result()
    reader, writer = os.pipe()
    secret = ctypes.create_string_buffer(b"secret")
    bystander = Child(lambda: len(os.read(reader, 1)))
    notification.thread = bystander.pid  # as if the number had been given out again
    with open(f"/proc/{bystander.pid}/mem", "rb") as memory:
        memory.seek(ctypes.addressof(secret))
        assert memory.read(6) == b"secret"
    assert listener.read(notification, ctypes.addressof(secret), 6) is None
    assert not listener.kill(notification)
    os.write(writer, b"x")
    assert bystander.result() == 1
    listener.close()
