"""Answers the calls that the filter tells of, and makes a record of each. One sandbox, one thread.

It decides nothing that the filter has not decided: forbidden ends the process, reported fails, noted goes on.
If it were gone the kernel would refuse all of them by itself.
"""

from __future__ import annotations

import errno
import time
from struct import unpack_from

from ringfence.linux import requester, seccomp_profiles
from ringfence.linux.notify import Listener, Notification
from ringfence.linux.recorder import Attempt, Recorder
from ringfence.linux.seccomp_rules import Kind, Profile, decide

MAX_CALLS_PER_TURN = 64
KEEP_FULL = 200
# call: (argument that points to an address, argument with its length)
_ADDRESSES = {"connect": (1, 2), "bind": (1, 2), "sendto": (4, 5)}
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10


class Telling:
    """The listener of one sandbox with its recorder."""

    def __init__(self, descriptor: int, profile: str, recorder: Recorder) -> None:
        self._listener = Listener(descriptor)
        self._profile: Profile = seccomp_profiles.noting(seccomp_profiles.PROFILES[profile])
        self.recorder = recorder
        self.forbidden = ""
        """The first call for which a process was ended."""

    def fileno(self) -> int:
        return self._listener.fileno()

    @property
    def finished(self) -> bool:
        return self._listener.finished

    def handle(self) -> None:
        """Answer what is waiting, but never so long that a flood starves the leader's loop."""
        for _ in range(MAX_CALLS_PER_TURN):
            told = self._listener.handle()
            if told is None:
                return
            self._answer(told)

    def close(self) -> None:
        self._listener.close()

    def _answer(self, told: Notification) -> None:
        action = decide(self._profile, told.number, told.args, told.audit_arch).action
        code = {Kind.NOTE: 0, Kind.REPORT: action.errno, Kind.FORBID: errno.EPERM}.get(action.kind, errno.EPERM)
        self.recorder.record(self._attempt(told, code))
        if action.kind is Kind.NOTE:
            self._listener.proceed(told)
        elif action.kind is Kind.FORBID:
            self.forbidden = self.forbidden or told.name
            self._listener.kill(told)
        else:
            self._listener.deny(told, code)

    def _attempt(self, told: Notification, code: int) -> Attempt:
        who = requester.identify(told.thread) if self.recorder.wants_detail else requester.Requester(pid=told.thread)
        return Attempt(
            time_ns=time.monotonic_ns(), wall_ns=time.time_ns(), operation=told.name, path=self._address(told),
            errno=code, pid=who.pid, start_ticks=who.start_ticks, comm=who.comm, argv=who.argv, syscall=told.name,
        )  # fmt: skip

    def _address(self, told: Notification) -> str:
        """Where a network call wants to go, as people write it."""
        place = _ADDRESSES.get(told.name)
        if place is None:
            return ""
        size = min(told.args[place[1]] & 0xFFFFFFFF, 128)
        return describe_address(self._listener.read(told, told.args[place[0]], size) or b"")


def describe_address(raw: bytes) -> str:
    """A socket address as people write it; what it says is the guest's claim."""
    if len(raw) < 2:
        return ""
    (family,) = unpack_from("=H", raw)
    if family == _AF_INET and len(raw) >= 8:
        return f"{'.'.join(map(str, raw[4:8]))}:{int.from_bytes(raw[2:4], 'big')}"
    if family == _AF_INET6 and len(raw) >= 24:
        groups = [raw[place : place + 2].hex() for place in range(8, 24, 2)]
        return f"[{':'.join(groups)}]:{int.from_bytes(raw[2:4], 'big')}"
    if family == _AF_UNIX:
        name = raw[2:]
        text = b"@" + name[1:] if name[:1] == b"\0" else name.split(b"\0", 1)[0]
        return f"unix {text.decode('utf-8', 'surrogateescape')}"
    return f"family {family}"
