"""The caller's side of moulds: one per template, made on first use, made anew when it is gone, a few at a time."""

from __future__ import annotations

import errno
import os
from _thread import allocate_lock

from ringfence.errors import SetupError, is_of_a_call
from ringfence.posix import passing, spawner, wire

MOST = 4
"""How many stand at a time; the one that was used longest ago goes first."""
_BUILD, _AWAIT = "build the mould", "await the mould"
_LOOK_MS = 1000


class Mould:
    """A running mould, and our end of the channel to it."""

    def __init__(self, request: dict[str, object]) -> None:
        self.owner_pid = os.getpid()
        self.gate = allocate_lock()
        """Who sends holds it: another thread could close the door, and its number be somebody else's by then."""
        self.door, theirs = passing.channel()
        template, to_template = os.pipe()
        reports, to_reports = os.pipe()
        try:
            try:
                spawner.send(passing.MOULD, [theirs, template, to_reports])
            finally:
                for descriptor in (theirs, template, to_reports):
                    os.close(descriptor)
            self.pid, self.pidfd = _await_start(request, to_template, reports)
        except BaseException:
            os.close(self.door)
            raise
        finally:
            os.close(to_template)
            os.close(reports)

    def fork_leader(self, descriptors: list[int]) -> None:
        """OSError when it has ended, or its door is closed."""
        with self.gate:
            if self.door < 0:
                raise BrokenPipeError(errno.EPIPE, "its door is closed")
            passing.send(self.door, passing.LEADER, descriptors)

    def kill(self) -> None:
        """End a mould that does not answer: somebody has stopped it."""
        from signal import SIGKILL, pidfd_send_signal

        try:
            pidfd_send_signal(self.pidfd, SIGKILL)
        except OSError:
            pass  # it has ended

    def close(self) -> None:
        """It ends when its last leader has."""
        with self.gate:
            os.close(self.door)
            os.close(self.pidfd)
            self.door = self.pidfd = -1


def _await_start(request: dict[str, object], template: int, reports: int) -> tuple[int, int]:
    """The mould's process once it is built, by its pid and a descriptor; SetupError with the step that failed."""
    frames, pid = wire.Frames(), 0
    message = wire.encode_request(request)
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
                    step, _, problem = wire.decode_failed(body)
                    raise SetupError(step, problem)
                pid = wire.decode_started(body)
                # Only now: a pipe takes no more than somebody reads.
                wire.write_all(template, message)
    except (OSError, wire.Garbled) as error:
        if isinstance(error, OSError) and not is_of_a_call(error):
            raise
        raise SetupError(_BUILD, str(error)) from error


def _await_word(reports: int, pid: int) -> None:
    """As long as whoever is to speak, the mould or before it the spawner, is not stopped: loading may take long."""
    import select

    poller = select.poll()
    poller.register(reports, select.POLLIN)
    while not poller.poll(_LOOK_MS):
        speaker = pid or spawner.pid()
        if spawner.is_stopped(speaker):
            os.kill(pid, 9) if pid else spawner.give_up_on_spawner(speaker)
            raise SetupError(_AWAIT, "somebody has stopped the process that builds it")


_lock = allocate_lock()
_standing: dict[bytes, Mould] = {}


def for_template(key: bytes, request: dict[str, object]) -> Mould:
    """The mould of this template; ``key`` is the same for no other."""
    with _lock:
        found = _standing.pop(key, None) or _made(request)
        _standing[key] = found
        while len(_standing) > MOST:
            _standing.pop(next(iter(_standing))).close()
        return found


def _made(request: dict[str, object]) -> Mould:
    try:
        return Mould(request)
    except SetupError as error:
        if error.step != _AWAIT:
            raise
    return Mould(request)  # what was stopped has been ended


def forget(mould: Mould) -> None:
    """One that is gone."""
    with _lock:
        for key in [key for key, found in _standing.items() if found is mould]:
            _standing.pop(key).close()


def give_up(mould: Mould, reports: int) -> None:
    """End the one leader that reports through this pipe; the mould, and all that it has forked, only when it does not
    answer."""
    with _lock:
        if mould not in _standing.values():
            return  # its door is closed; a leader that waits for its turn there ends when it finds its caller gone
        door = os.dup(mould.door)
    try:
        answered = spawner.end_leader(door, mould.pid, reports)
    finally:
        os.close(door)
    with _lock:
        if not answered and mould in _standing.values():
            mould.kill()


def close_all() -> None:
    with _lock:
        while _standing:
            _standing.popitem()[1].close()


def _after_fork_in_child() -> None:
    """A forked copy of the caller has no mould: locks may be held by a thread that is not here."""
    global _lock
    _lock = allocate_lock()
    for mould in _standing.values():
        mould.gate = allocate_lock()
    close_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


spawner.before_shutdown(close_all)
