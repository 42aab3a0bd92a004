"""The caller's side of zygotes: one per template, made on first use, made anew when it is gone, a few at a time.

Part of: caller, as its side of a zygote
"""

from __future__ import annotations

import errno
import os
from _thread import LockType, allocate_lock

from ringfence.errors import SetupError, is_of_a_call
from ringfence.roles import spawner
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import ZygoteRequest

MOST, _MOST_OF_ONE = 4, 16
"""How many stand at a time, and how many of one template where there are many processors; the one that was used longest
ago goes first."""
_BUILD, _AWAIT = "build the zygote", "await the zygote"
_LOOK_MS = 1000


class ZygoteClient:
    """A running zygote, and our end of the channel to it."""

    def __init__(self, request: ZygoteRequest) -> None:
        self.owner_pid = os.getpid()
        self.gate = allocate_lock()
        """Held while sending: another thread could close the door, and its number could be reused by then."""
        self._drafts: list[int] = []
        """The numbers of the drafts that it has."""
        self.pid, self.pidfd = 0, -1
        template = wire.file_with("template", wire.encode_request(request))
        self.door, theirs = passing.channel(is_narrow=True)
        self._reports, to_reports = os.pipe()
        try:
            spawner.send(passing.ZYGOTE, [theirs, template, to_reports])
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in (theirs, template, to_reports):
                os.close(descriptor)

    def await_ready(self) -> ZygoteClient:
        """Wait until it is built; SetupError with the step that failed."""
        try:
            self.pid, self.pidfd = _await_start(self._reports)
        except BaseException:
            self.close()
            raise
        os.close(self._reports)
        self._reports = -1
        return self

    def fork_leader(self, descriptors: list[int], number: int = 0, draft: bytes = b"", message: bytes = b"") -> None:
        """OSError when it has ended, or its door is closed. ``draft``: what the request refers to by its number."""
        with self.gate:
            if self.door < 0:
                raise BrokenPipeError(errno.EPIPE, "its door is closed")
            if draft and number not in self._drafts:
                self._send_draft(draft)
                self._drafts = [*self._drafts, number][-wire.MOST_DRAFTS :]
            passing.send(self.door, passing.LEADER, descriptors, message)

    def _send_draft(self, draft: bytes) -> None:
        file = wire.file_with("draft", draft)
        try:
            passing.send(self.door, passing.DRAFT, [file])
        finally:
            os.close(file)

    def kill(self) -> None:
        """End a zygote that does not answer because somebody has stopped it."""
        from signal import SIGKILL, pidfd_send_signal

        try:
            pidfd_send_signal(self.pidfd, SIGKILL)
        except OSError:
            pass  # it has ended

    def close(self) -> None:
        """It ends when its last leader has."""
        with self.gate:
            for descriptor in (self.door, self.pidfd, self._reports):
                if descriptor >= 0:
                    os.close(descriptor)
            self.door = self.pidfd = self._reports = -1


def _await_start(reports: int) -> tuple[int, int]:
    """The zygote's process once it is built, by its pid and a descriptor; SetupError with the step that failed."""
    frames, pid = wire.Frames(), 0
    try:
        while True:
            _await_word(reports, pid)
            data = os.read(reports, 65536)
            if not data:
                raise SetupError(_BUILD, "its process ended")
            for kind, body in frames.feed(data):
                if kind == wire.READY:
                    return pid, os.pidfd_open(pid)
                if kind == wire.FAILED:
                    from ringfence.sandbox import container_around

                    step, number, problem = wire.decode_failed(body)
                    raise SetupError(step, problem, errno=number, hint=container_around.hint(step, number))
                pid = wire.decode_started(body)
    except (OSError, wire.Garbled) as error:
        if isinstance(error, OSError) and not is_of_a_call(error):
            raise
        raise SetupError(_BUILD, str(error)) from error


def _await_word(reports: int, pid: int) -> None:
    """Wait unless the process that must speak, first the spawner, then the zygote, is stopped: loading takes time."""
    import select

    poller = select.poll()
    poller.register(reports, select.POLLIN)
    while not poller.poll(_LOOK_MS):
        speaker = pid or spawner.pid()
        if spawner.is_stopped(speaker):
            os.kill(pid, 9) if pid else spawner.give_up_on_spawner(speaker)
            raise SetupError(_AWAIT, "somebody has stopped the process that builds it")


_lock = allocate_lock()
_standing: dict[bytes, ZygoteClient] = {}
_making: dict[bytes, LockType] = {}
_begun: dict[bytes, ZygoteClient] = {}
"""Zygotes that are being built before anybody has asked for them."""


def begin(key: bytes, request: ZygoteRequest) -> None:
    """Start building the zygote of this template, if there is none, so that a caller that needs it soon waits less."""
    with _lock:
        if key in _standing or key in _making or key in _begun or len(_begun) >= MOST:
            return
    begun = ZygoteClient(request)
    with _lock:
        earlier = _begun.get(key)
        _begun[key] = begun
    if earlier is not None:
        earlier.close()


def withdraw(key: bytes) -> None:
    """Close one that was begun and that nobody came for."""
    with _lock:
        begun = _begun.pop(key, None)
    if begun is not None:
        begun.close()


def for_template(key: bytes, request: ZygoteRequest) -> ZygoteClient:
    """The zygote of this template; ``key`` is the same for no other."""
    with _lock:
        found = _used(key)
        making = _making.setdefault(key, allocate_lock()) if found is None else _lock
    if found is not None:
        return found
    with making:  # one thread makes it, and others that want the same wait; threads that want another do not
        try:
            with _lock:
                found, begun = _used(key), _begun.pop(key, None)
            if found is not None and begun is not None:
                begun.close()
            return found or _kept(key, _made(request, begun))
        finally:
            with _lock:
                _making.pop(key, None)


def _used(key: bytes) -> ZygoteClient | None:
    """The one that stands, now the latest that was used."""
    found = _standing.pop(key, None)
    if found is not None:
        _standing[key] = found
    return found


def _kept(key: bytes, made: ZygoteClient) -> ZygoteClient:
    with _lock:
        going = [_standing.pop(key)] if key in _standing else []
        _standing[key] = made
        while len(_standing) > MOST + of_one_template() - 1:
            going.append(_standing.pop(next(iter(_standing))))
    for zygote in going:
        zygote.close()
    return made


def of_one_template() -> int:
    """How many there may be of one template: what each forks keeps more than two processors busy."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable // 2, _MOST_OF_ONE))


def _made(request: ZygoteRequest, begun: ZygoteClient | None) -> ZygoteClient:
    try:
        return (begun or ZygoteClient(request)).await_ready()
    except SetupError as error:
        if error.step != _AWAIT and begun is None:
            raise
    return ZygoteClient(request).await_ready()  # what was stopped has been ended


def forget(zygote: ZygoteClient) -> None:
    """Drop one that is gone."""
    with _lock:
        for key in [key for key, found in _standing.items() if found is zygote]:
            _standing.pop(key).close()


def give_up(zygote: ZygoteClient, reports: int) -> None:
    """End the one leader that reports through this pipe; the zygote, and all that it has forked, only when it does not
    answer."""
    with _lock:
        if zygote not in _standing.values():
            return  # its door is closed; a leader that waits for its turn there ends when it finds its caller gone
        door = os.dup(zygote.door)
    try:
        answered = spawner.end_leader(door, zygote.pid, reports)
    finally:
        os.close(door)
    with _lock:
        if not answered and zygote in _standing.values():
            zygote.kill()


def kill(zygote: ZygoteClient) -> None:
    """End one that stands; the descriptor of one that does not may belong to another by now."""
    with _lock:
        if zygote in _standing.values():
            zygote.kill()


def close_all() -> None:
    with _lock:
        for kept in (_standing, _begun):
            while kept:
                kept.popitem()[1].close()


def _after_fork_in_child() -> None:
    """A forked copy of the caller has no zygote: locks may be held by a thread that is not here."""
    global _lock
    _lock = allocate_lock()
    _making.clear()
    for zygote in (*_standing.values(), *_begun.values()):
        zygote.gate = allocate_lock()
    close_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


spawner.before_shutdown(close_all)
