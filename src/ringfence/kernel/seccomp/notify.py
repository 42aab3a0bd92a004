"""The supervisor's end of the filter: told of a call while its process waits, it answers or ends the process.

An object for somebody else's ``selectors`` loop: it has ``fileno()``, and ``handle()`` never waits. It
deliberately decides nothing; ask seccomp_rules.decide. One reader per descriptor. Nothing a guest does, dying
included, is an exception here.
"""

from __future__ import annotations

import errno
import os
import select
from struct import pack, unpack_from

from ringfence.errors import SupervisionError
from ringfence.kernel import syscalls
from ringfence.kernel.proc import memory
from ringfence.kernel.syscall_numbers import name_of_audited
from ringfence.model.memo import lru_cache

_GET_NOTIF_SIZES = 3
_FLAG_CONTINUE = 1
_PAGE_BYTES = 4096
# struct seccomp_notif: id, pid, flags, seccomp_data (number, architecture, instruction pointer, arguments)
_NOTIF = "<QII iIQ6Q"
# struct seccomp_notif_resp: id, value, error, flags
_RESPONSE = "<QqiI"
_READ_WRITE, _WRITE = 3, 1
# What the kernel says when the process is gone or was interrupted.
_GONE = (errno.ENOENT, errno.ESRCH, errno.EINTR)


class Notification:
    """One waiting call. ``thread`` is the caller's thread id as the supervisor sees it, 0 if it can't."""

    __slots__ = ("args", "audit_arch", "id", "number", "thread")

    def __init__(self, raw: bytes | bytearray) -> None:
        fields = unpack_from(_NOTIF, raw)
        self.id: int = fields[0]
        self.thread: int = fields[1]
        self.number: int = fields[3] & 0xFFFFFFFF
        self.audit_arch: int = fields[4]
        self.args: tuple[int, ...] = tuple(fields[6:12])

    @property
    def name(self) -> str:
        """The call's name, for people."""
        return name_of_audited(self.number, self.audit_arch)


class Listener:
    """Owns a listener descriptor. Once closed, the kernel answers each further reported call with ENOSYS."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._notif_bytes, self._response_bytes = _sizes()
        # The kernel waits if asked too early: it is asked only when it has something.
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self.finished = False

    def fileno(self) -> int:
        """The descriptor, for a selector; readable when a call waits or when no filtered process is left."""
        return self._descriptor

    def close(self) -> None:
        """Give the descriptor up."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self.finished = True

    def is_waited_for(self) -> bool:
        """Whether a call waits now."""
        return not self.is_over() and bool(self._poll.poll(0))

    def is_over(self) -> bool:
        """Whether no filtered process is left."""
        if not self.finished:
            self.finished = any(not events & select.POLLIN for _, events in self._poll.poll(0))
        return self.finished

    def handle(self, wait_ms: int = 0) -> Notification | None:
        """The next waiting call, None if there is none; ``finished`` when there can't be another."""
        if self.finished:
            return None
        ready = self._poll.poll(wait_ms)
        if not ready or not ready[0][1] & select.POLLIN:
            self.finished = bool(ready)
            return None
        # The kernel refuses a buffer that is not zero.
        raw = bytearray(self._notif_bytes)
        return Notification(raw) if self._ask(0, _READ_WRITE, raw) else None

    def valid(self, notification: Notification) -> bool:
        """Whether the call still waits. While it does, its thread id can't be anybody else's."""
        return self._ask(2, _WRITE, bytearray(pack("<Q", notification.id)))

    def deny(self, notification: Notification, code: int) -> bool:
        """The call fails with this errno. False: its process is gone."""
        return self._respond(notification, -code, 0)

    def proceed(self, notification: Notification) -> bool:
        """The call goes on in the kernel. Never for a call that only this answer would stop.

        The guest can change what its pointers point to in the meantime (seccomp_unotify(2), NOTES).
        """
        return self._respond(notification, 0, _FLAG_CONTINUE)

    def kill(self, notification: Notification) -> bool:
        """End the whole process that made the call, which is never carried out.

        False: it is gone already, or out of this process's reach; then at least the call fails.
        """
        import signal

        try:
            number = self.process(notification)
            process = os.pidfd_open(number)
        except OSError:
            self.deny(notification, errno.EPERM)
            return False
        try:
            # Only now is it certain that the descriptor is of the process that waits.
            if not self.valid(notification):
                return False
            if not os.path.exists(f"/proc/{number}/task/{notification.thread}"):
                self.deny(notification, errno.EPERM)
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
            return True
        finally:
            os.close(process)

    def process(self, notification: Notification) -> int:
        """The process that the calling thread belongs to; raises OSError when it is gone.

        The first line is the thread's name, which it chooses itself; the kernel escapes a line end in it."""
        found = _read_file(f"/proc/{notification.thread}/status").partition(b"\nTgid:")[2].partition(b"\n")[0]
        if not found.strip().isdigit():
            raise ProcessLookupError(errno.ESRCH, "no such thread")
        return int(found)

    def read(self, notification: Notification, address: int, size: int) -> bytes | None:
        """At most a page of the waiting process's memory; fewer bytes where it ends, None if it can't be had."""
        raw = self.peek(notification, address, size)
        # Asked last: a call that waits now has waited all along, so this was its memory.
        return raw if raw is not None and self.valid(notification) else None

    def peek(self, notification: Notification, address: int, size: int) -> bytes | None:
        """The same, for whoever learns by answering the call whether it still waits."""
        try:
            return memory.read(notification.thread, address, size) if size else b""
        except OSError:
            return None

    def _respond(self, notification: Notification, error: int, flags: int) -> bool:
        response = bytearray(self._response_bytes)
        body = pack(_RESPONSE, notification.id, 0, error, flags)
        response[: len(body)] = body
        return self._ask(1, _READ_WRITE, response)

    def _ask(self, number: int, direction: int, buffer: bytearray) -> bool:
        import fcntl

        if self._descriptor < 0:
            raise SupervisionError("seccomp listener: closed")
        request = direction << 30 | len(buffer) << 16 | ord("!") << 8 | number
        try:
            fcntl.ioctl(self._descriptor, request, buffer, True)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise SupervisionError(f"seccomp listener: {error}") from error
        return True


@lru_cache(maxsize=1)
def _sizes() -> tuple[int, int]:
    """Ask this kernel for the sizes of a notification and of its answer."""
    import ctypes

    sizes = ctypes.create_string_buffer(6)
    try:
        syscalls.call("seccomp", _GET_NOTIF_SIZES, 0, sizes)
    except OSError as error:
        raise SupervisionError(f"seccomp listener: {error}") from error
    notif, response, _ = unpack_from("<HHH", sizes.raw)
    return notif, response


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _PAGE_BYTES)
    finally:
        os.close(descriptor)
