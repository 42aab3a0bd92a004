"""Answers the calls that the filter tells of, and makes a record of each. One sandbox, one thread.

It decides nothing that the filter has not decided: forbidden ends the process, reported fails, noted goes on. A
watched call goes on too, and makes a record only if it names a hidden path. If this process were gone, the kernel would
refuse all of them by itself.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from _collections_abc import Callable, Sequence
from struct import unpack_from

from ringfence.kernel import syscall_numbers
from ringfence.kernel.proc import first_files, requester
from ringfence.kernel.recorder import PROCESS, Attempt, Key, Recorder, aim_of
from ringfence.kernel.seccomp.notify import Listener, Notification
from ringfence.kernel.seccomp.rules import Action, Kind, Profile, Rule, decider
from ringfence.kernel.seccomp.watched_calls import WATCHED
from ringfence.kernel.seccomp.watching import CAVEAT, Look, Sighting, Watcher
from ringfence.kernel.seccomp.witness import Witness

MAX_CALLS_PER_TURN = 64
# A process that opens one file mostly opens another at once: waiting here is cheaper than a turn of the leader's loop.
_WAIT_MS = 1
_MAX_TURN_NS = 20_000_000
NOT_KNOWN = -1
# call: (argument that points to an address, argument with its length)
_ADDRESSES = {"connect": (1, 2), "bind": (1, 2), "sendto": (4, 5)}
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_IPV4_MAPPED = bytes(10) + b"\xff\xff"

_GO_ON = (Kind.NOTE, Kind.WATCH)


class NotifyResponder:
    """The listener of one sandbox with its recorder."""

    def __init__(
        self,
        descriptor: int,
        profile: Callable[[], Profile],
        recorder: Recorder,
        hidden: Sequence[str] = (),
        *,
        private: Sequence[str] = (),
        wired: bool = False,
        witness: Witness | None = None,
    ) -> None:
        """``hidden`` are the paths to watch for; the profile must be one that tells of the calls that name them. It is
        asked for when the first call is told: most jobs make none. ``private``: those of them where the guest may make
        something of its own. ``wired``: tripwires see all calls that go on."""
        self._listener = Listener(descriptor)
        self._witness = witness
        self._profile = profile
        self._decider: Callable[[int, tuple[int, ...], int], Rule] | None = None
        self.recorder = recorder
        self._callers = requester.Callers()
        self._watcher = Watcher(hidden, private) if hidden else None
        if hidden and not wired:
            recorder.caveat = CAVEAT
        self._wait_ms = _WAIT_MS if hidden and not wired else 0
        self._turn_ns = _MAX_TURN_NS
        self.forbidden = ""
        """The first call for which a process was ended."""

    @property
    def _decide(self) -> Callable[[int, tuple[int, ...], int], Rule]:
        if self._decider is None:
            self._decider = decider(self._profile(), syscall_numbers.architecture())
        return self._decider

    def fileno(self) -> int:
        return self._listener.fileno()

    @property
    def finished(self) -> bool:
        return self._listener.finished

    def handle(self) -> None:
        """Answer what is waiting, but never so long that a flood starves the leader's loop."""
        wait_ms = 0
        until_ns = time.monotonic_ns() + self._turn_ns
        for _ in range(MAX_CALLS_PER_TURN):
            told = self._listener.handle(wait_ms)
            if told is None:
                return
            self._answer(told)
            if time.monotonic_ns() > until_ns:
                return
            wait_ms = self._wait_ms

    def is_over(self) -> bool:
        """Whether no process has the filter any more. Takes nothing, and answers nothing."""
        return self._listener.is_over()

    def drain(self, until_ns: int) -> bool:
        """Record the calls that wait, and leave them unanswered: their processes are ended next. Return whether that
        was all: a process that does not wait could end those that do, and have others ask, for ever. Some calls are
        taken however late it is: on a busy machine time passes without a turn of ours."""
        taken = 0
        while self._listener.is_waited_for():
            if taken >= MAX_CALLS_PER_TURN and time.monotonic_ns() > until_ns:
                return False
            taken += 1
            told = self._listener.handle()
            if told is not None:  # else it is gone, and others may still wait
                self._record_only(told)
        return True

    def _record_only(self, told: Notification) -> None:
        action = self._decide(told.number, told.args, told.audit_arch).action
        if action.kind is not Kind.WITNESS and (action.kind is not Kind.NOTE or self._watcher is not None):
            self._record(told, action, _code_of(action))

    def hurry(self, turn_ns: int) -> None:
        """From now on a turn is as short as this, and waits for nothing: others are answered by the same process."""
        self._turn_ns, self._wait_ms = turn_ns, 0

    def close(self) -> None:
        self._listener.close()
        if self._watcher:
            self._watcher.close()

    def _answer(self, told: Notification) -> None:
        action = self._decide(told.number, told.args, told.audit_arch).action
        if self._witness is not None and told.name in _ADDRESSES:
            self._witness.used_network = True  # with a pair: it can have a name
        if action.kind is Kind.WITNESS:
            if self._witness is None or self._witness.see(told.name, told.thread, told.args):
                self._listener.proceed(told)
            return
        if action.kind is Kind.NOTE and self._watcher is None:
            self._note(told)
            return
        code = _code_of(action)
        self._record(told, action, code)
        if action.kind in _GO_ON:
            self._listener.proceed(told)
        elif action.kind is Kind.FORBID:
            self.forbidden = self.forbidden or told.name
            self._listener.kill(told)
        else:
            # No error means that the call is done, or that nothing was decided: that is refused.
            self._listener.deny(told, code if action.kind is Kind.WATCH_DENIED else code or errno.EPERM)

    def _note(self, told: Notification) -> None:
        """Let the call go on once everything about its process is read: it need not wait until that is recorded."""
        address = self._listener.peek(told, *_place(told)) or b""
        path, outward = describe_address(address), told.name != "bind" and is_outward(address)
        who, read = self._who(told, aim_of(root="", errno=0, outward=outward), (told.name, path, False)), _now()
        if self._listener.proceed(told):
            self.recorder.record(_attempt(told, who, read, 0, operation=told.name, path=path, outward=outward))
        else:  # its process was killed before the call was made: what was read may be anybody's
            self.recorder.record(_attempt(told, requester.Requester(), read, 0, operation=told.name, path=""))

    def _record(self, told: Notification, action: Action, code: int) -> None:
        name = told.name
        look = self._watcher.look(told, name) if self._watcher and name in WATCHED else Look()
        if (look.sightings or look.problem) and not self._listener.valid(told):
            return  # its process was killed before the call was made: what was read may be anybody's
        for sighting in look.sightings:
            self.recorder.record(self._sighted(told, sighting, code))
        self.recorder.lose(bool(look.problem), look.problem)
        if not look.sightings and action.kind not in (Kind.WATCH, Kind.WATCH_DENIED):
            address = self._address(told)
            outward = name != "bind" and is_outward(address)
            path = describe_address(address)
            who = self._who(told, aim_of(root="", errno=code, outward=outward), (name, path, False))
            self.recorder.record(_attempt(told, who, _now(), code, operation=name, path=path, outward=outward))

    def _sighted(self, told: Notification, sighting: Sighting, code: int) -> Attempt:
        call = WATCHED[told.name]
        absent = sighting.absent and not call.may_create(told.args)
        path, writes = os.fsdecode(sighting.resolved), call.may_write(told.args)
        root, asked = os.fsdecode(sighting.root), os.fsdecode(sighting.asked)
        code = code or (errno.ENOENT if absent else NOT_KNOWN)
        aim = aim_of(root=root, errno=code, outward=False)
        operation = first_files.way_of(path, told.thread) if aim == PROCESS else call.operation
        who = self._who(told, aim, (operation, path, writes))
        return _attempt(told, who, _now(), code, operation=operation, path=path, root=root, asked=asked,
                        writes=writes)  # fmt: skip

    def _who(self, told: Notification, aim: str, key: Key) -> requester.Requester:
        """To find that out is worth it only where it is told."""
        return self._callers.identify(told.thread) if self.recorder.wants(aim, key) else requester.Requester()

    def _address(self, told: Notification) -> bytes:
        """Where a network call wants to go."""
        return self._listener.read(told, *_place(told)) or b""


def _code_of(action: Action) -> int:
    return errno.EPERM if action.kind is Kind.FORBID else action.errno


def _place(told: Notification) -> tuple[int, int]:
    """Where in the memory of its process the address of a network call is, and its length; a length of 0: nowhere."""
    place = _ADDRESSES.get(told.name)
    return (told.args[place[0]], min(told.args[place[1]] & 0xFFFFFFFF, 128)) if place is not None else (0, 0)


def _now() -> tuple[int, int]:
    return time.monotonic_ns(), time.time_ns()


def _attempt(
    told: Notification, who: requester.Requester, read: tuple[int, int], code: int, *, operation: str, path: str,
    root: str = "", asked: str = "", writes: bool = False, outward: bool = False,
) -> Attempt:  # fmt: skip
    return Attempt(
        time_ns=read[0], wall_ns=read[1], operation=operation, path=path, root=root, asked=asked, writes=writes,
        outward=outward, errno=code, pid=who.pid, start_ticks=who.start_ticks, comm=who.comm, argv=who.argv,
        syscall=told.name,
    )  # fmt: skip


def is_outward(raw: bytes) -> bool:
    """Whether a socket address is neither loopback nor «any», both of which mean the sandbox itself."""
    family = int.from_bytes(raw[:2], sys.byteorder)
    if family == _AF_INET6 and len(raw) >= 24:
        head, tail = raw[8:20], raw[20:24]
        if head not in (bytes(12), _IPV4_MAPPED):
            return True
        return tail not in (bytes(4), b"\0\0\0\1") if head == bytes(12) else _is_outward_ipv4(tail)
    return family == _AF_INET and len(raw) >= 8 and _is_outward_ipv4(raw[4:8])


def _is_outward_ipv4(address: bytes) -> bool:
    return address[0] != 127 and address != bytes(4)


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
