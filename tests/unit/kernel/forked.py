"""Runs a piece of a test in a forked child: what it returned, or how it died."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ringfence.kernel import syscalls
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp.notify import Listener
from ringfence.kernel.seccomp.rules import Profile
from ringfence.kernel.syscall_numbers import architecture

MINUS_ONE = (-1,) * 6


class Died(Exception):
    """The child was ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.signal = number


class Child:
    """A forked child that runs one function; its result comes back as JSON.

    Hundreds of children that each write a coverage file take minutes: only the measured ones do.
    """

    def __init__(self, work: Callable[[], Any], *, measured: bool = False) -> None:
        self._result, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._result)
            _work_and_leave(work, writer, os._exit if measured else _leave_at_once)
        os.close(writer)

    def result(self) -> Any:
        with os.fdopen(self._result, "rb") as stream:
            raw = stream.read()
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            raise Died(os.WTERMSIG(status))
        assert os.WEXITSTATUS(status) == 0, f"the child failed: {raw!r}"
        return json.loads(raw)


def _leave_at_once(code: int) -> None:
    syscalls.call("exit_group", code)


def _work_and_leave(work: Callable[[], Any], writer: int, leave: Callable[[int], None]) -> None:
    code = 1
    # A test that fails halfway leaves nobody behind.
    syscalls.prctl(1, signal.SIGKILL)
    try:
        os.write(writer, json.dumps(work()).encode())
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stderr.flush()
        leave(code)


def in_child(work: Callable[[], Any], *, measured: bool = False) -> Any:
    return Child(work, measured=measured).result()


@functools.cache
def program(profile: Profile, *, notify: bool = False) -> bytes:
    return seccomp.compile(profile, architecture(), notify=notify)


def filtered(profile: Profile, work: Callable[[], Any]) -> Any:
    """The result of the work in a child under the profile, without a listener."""
    code = program(profile)

    def under_the_filter() -> Any:
        seccomp.install(code)
        return work()

    return in_child(under_the_filter)


def outcome(work: Callable[[], int]) -> int:
    """0 if the call succeeded, else its errno."""
    try:
        work()
    except OSError as error:
        return error.errno
    return 0


def attempt(name: str, *args: object) -> Callable[[], int]:
    """A system call whose outcome is a number."""
    return lambda: outcome(lambda: syscalls.call(name, *args))


def supervised(profile: Profile, work: Callable[[], Any]) -> tuple[Child, Listener]:
    """A child under the profile and the listener it handed over before the work."""
    code = program(profile, notify=True)
    ours, theirs = socket.socketpair()

    def under_the_filter() -> Any:
        ours.close()
        listener = seccomp.install(code, notify=True)
        assert listener is not None
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        theirs.close()
        return work()

    child = Child(under_the_filter)
    theirs.close()
    with ours:
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    return child, Listener(descriptors[0])
