"""Answers the calls that the filter tells of, and makes a record of each. One sandbox, one thread.

It decides nothing that the filter has not decided: forbidden ends the process, reported fails, noted goes on. A
watched call goes on too, and makes a record only if it names a hidden path. If this were gone the kernel would
refuse all of them by itself.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from struct import unpack_from

from ringfence.linux import requester, seccomp_profiles, syscall_numbers
from ringfence.linux.guest_paths import inside_numbers
from ringfence.linux.notify import Listener, Notification
from ringfence.linux.recorder import HIDDEN, NOTED, REFUSED, Attempt, Recorder
from ringfence.linux.seccomp_rules import Action, Kind, Profile, Rule, decider
from ringfence.linux.watched_calls import WATCHED
from ringfence.linux.watching import CAVEAT, Look, Sighting, Watcher

MAX_CALLS_PER_TURN = 64
# Who opens one file mostly opens another at once: waiting for that here is cheaper than a turn of the leader's loop.
_WAIT_MS = 1
_MAX_TURN_NS = 20_000_000
NOT_KNOWN = -1
# call: (argument that points to an address, argument with its length)
_ADDRESSES = {"connect": (1, 2), "bind": (1, 2), "sendto": (4, 5)}
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10

_GO_ON = (Kind.NOTE, Kind.WATCH)


class Telling:
    """The listener of one sandbox with its recorder."""

    def __init__(
        self,
        descriptor: int,
        profile: Callable[[], Profile],
        recorder: Recorder,
        hidden: Sequence[str] = (),
        *,
        wired: bool = False,
    ) -> None:
        """``hidden`` are the paths to watch for; the profile must be one that tells of the calls that name them. It is
        asked for when the first call is told: most jobs make none. ``wired``: tripwires see all calls that go on."""
        self._listener = Listener(descriptor)
        self._profile = profile
        self.recorder = recorder
        self._watcher = Watcher(hidden) if hidden else None
        if hidden and not wired:
            recorder.caveat = CAVEAT
        self._wait_ms = _WAIT_MS if hidden and not wired else 0
        self.forbidden = ""
        """The first call for which a process was ended."""

    @cached_property
    def _decide(self) -> Callable[[int, tuple[int, ...], int], Rule]:
        return decider(self._profile(), syscall_numbers.architecture())

    def fileno(self) -> int:
        return self._listener.fileno()

    @property
    def finished(self) -> bool:
        return self._listener.finished

    def handle(self) -> None:
        """Answer what is waiting, but never so long that a flood starves the leader's loop."""
        wait_ms = 0
        until_ns = time.monotonic_ns() + _MAX_TURN_NS
        for _ in range(MAX_CALLS_PER_TURN):
            told = self._listener.handle(wait_ms)
            if told is None:
                return
            self._answer(told)
            if time.monotonic_ns() > until_ns:
                return
            wait_ms = self._wait_ms

    def close(self) -> None:
        self._listener.close()
        if self._watcher:
            self._watcher.close()

    def _answer(self, told: Notification) -> None:
        action = self._decide(told.number, told.args, told.audit_arch).action
        code = {Kind.FORBID: errno.EPERM}.get(action.kind, action.errno)
        self._record(told, action, code)
        if action.kind in _GO_ON:
            self._listener.proceed(told)
        elif action.kind is Kind.FORBID:
            self.forbidden = self.forbidden or told.name
            self._listener.kill(told)
        else:
            self._listener.deny(told, code or errno.EPERM)

    def _record(self, told: Notification, action: Action, code: int) -> None:
        name = told.name
        look = self._watcher.look(told, name) if self._watcher and name in WATCHED else Look()
        if (look.sightings or look.problem) and not self._listener.valid(told):
            return  # its process was killed before the call was made: what was read may be anybody's
        for sighting in look.sightings:
            self.recorder.record(self._sighted(told, sighting, code))
        self.recorder.lose(bool(look.problem), look.problem)
        if not look.sightings and action.kind not in (Kind.WATCH, Kind.WATCH_DENIED):
            self.recorder.record(self._attempt(told, code, operation=name, path=self._address(told)))

    def _sighted(self, told: Notification, sighting: Sighting, code: int) -> Attempt:
        call = WATCHED[told.name]
        absent = sighting.absent and not call.may_create(told.args)
        return self._attempt(
            told, code or (errno.ENOENT if absent else NOT_KNOWN), operation=call.operation,
            path=os.fsdecode(sighting.resolved), root=os.fsdecode(sighting.root), asked=os.fsdecode(sighting.asked),
            writes=call.may_write(told.args),
        )  # fmt: skip

    def _attempt(
        self, told: Notification, code: int, *, operation: str, path: str, root: str = "", asked: str = "",
        writes: bool = False,
    ) -> Attempt:  # fmt: skip
        who, pid = requester.Requester(), 0
        aim = HIDDEN if root else REFUSED if code else NOTED
        if self.recorder.wants(aim, (operation, path, writes)):
            who, pid = requester.identify(told.thread), inside_numbers(told.thread)[0]
        return Attempt(
            time_ns=time.monotonic_ns(), wall_ns=time.time_ns(), operation=operation, path=path, root=root, asked=asked,
            writes=writes, errno=code, pid=pid, start_ticks=who.start_ticks, comm=who.comm, argv=who.argv,
            syscall=told.name,
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


def profile_of(name: str, ids: tuple[int, int], *, watched: bool, wired: bool = False) -> Profile:
    """What the filter of a sandbox is compiled from and its supervisor answers by. ``ids``: its user and group.

    ``watched``: it has hidden paths, and the calls that name a file are told; ``wired``: only those of them that fail
    before any tripwire could see them.
    """
    profile = seccomp_profiles.alone(seccomp_profiles.noting(seccomp_profiles.PROFILES[name]), *ids)
    if not watched:
        return profile
    return seccomp_profiles.watching_denied(profile) if wired else seccomp_profiles.watching(profile)
