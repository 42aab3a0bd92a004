"""The caller's side of the gateway: one process for all sandboxes of a caller, started on first use and after it dies.

A sandbox is registered before it starts. What the gateway says is checked field by field: it parses what hostile
programs send, and an attacker may control it by now. Nothing that it says opens anything.
"""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from _thread import allocate_lock, get_native_id
from typing import TYPE_CHECKING

from ringfence.egress.answers import Garbled, checked
from ringfence.errors import SetupError, is_of_a_call
from ringfence.kernel.proc import procfs
from ringfence.transport import passing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ringfence.model.network_rule import NetworkRule
    from ringfence.transport.request import EgressCounts, EgressEvent, EgressOrder, EgressTotals

_BOOT = "import sys; sys.path += {folders!r}; from ringfence.egress.gateway import main; main({door}, {caller}, {tied})"
_LIBRARIES = {"h11": True, "cryptography": False, "cffi": False}
"""What a gateway may need, and whether every gateway loads it."""
_ANSWER_WAIT_S, _LOOK_S = 60.0, 1.0
_CLOSE_WAIT_S, _LAST_WORD_S = 5.0, 30.0  # the second for a closed sandbox: the gateway may be busy with others
_READ_BYTES, _MOST_LINE = 1 << 16, 1 << 20
_MOST_KEPT = 20_000  # events, for whoever fetches them; a gateway of ours sends half as many for a visit

_lock = allocate_lock()
_current: GatewayClient | None = None
_registered: weakref.WeakSet[Registration] = weakref.WeakSet()


class GatewayClient:
    """A running gateway process, and our end of its door."""

    def __init__(self, door: int, pid: int) -> None:
        self.owner_pid = os.getpid()
        self.door, self.pid = door, pid

    @classmethod
    def started(cls) -> GatewayClient:
        """With an interpreter of its own, without environment, input or output."""
        from ringfence.transport import interpreter

        tied = get_native_id() == os.getpid()
        folders = interpreter.folders(_LIBRARIES, "a network list")

        def code_for(door: int) -> str:
            return _BOOT.format(folders=folders, door=door, caller=os.getpid(), tied=tied)

        return cls(*interpreter.started("start the gateway", code_for))

    def usable(self) -> bool:
        return self.owner_pid == os.getpid() and not self._ended()

    def _ended(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def close(self) -> None:
        """Close the door and wait for the gateway to end, which it does after its last sandbox. A sandbox that was left
        open does not delay that for long."""
        os.close(self.door)
        give_up = time.monotonic() + _CLOSE_WAIT_S
        while not self._ended():
            if procfs.is_stopped(self.pid) or time.monotonic() > give_up:
                os.kill(self.pid, 9)
            time.sleep(0.002)


class Registration:
    """One sandbox at the gateway. Any thread may use it; ``receive`` and ``close`` give each event once."""

    def __init__(self, gateway: GatewayClient) -> None:
        """OSError when the gateway has ended."""
        self.pid = gateway.pid
        self.dialogue, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listeners, their_listeners = passing.channel()
        """What the leader of the sandbox gets a copy of; ``handed_over`` closes ours."""
        self.lock = allocate_lock()
        self.lost = ""
        """Why the gateway is not there any more; empty: it is."""
        self.ca = ""
        self.counts: EgressCounts | None = None
        """The counts of the gateway's last answer; None: it was not asked, or has not answered yet."""
        self.totals: EgressTotals | None = None
        self._events: list[EgressEvent] = []
        self._data = bytearray()
        self._ready = self._wanted = 0
        self._failed = ""
        self._closed = False
        try:
            passing.send(gateway.door, passing.REGISTER, [their_listeners, theirs.fileno()])
        except BaseException:
            self._shut()
            raise
        finally:
            theirs.close()
            os.close(their_listeners)
        self.dialogue.setblocking(False)
        _registered.add(self)

    def filenos(self) -> list[int]:
        """Return what becomes readable when there is something to ``receive``."""
        return [self.dialogue.fileno()] if self.dialogue.fileno() >= 0 else []

    def handed_over(self) -> None:
        """The leader has its copy of ``listeners``."""
        if self.listeners >= 0:
            os.close(self.listeners)
            self.listeners = -1

    def ask(
        self,
        rules: Iterable[NetworkRule],
        limits: Mapping[str, float] | None = None,
        secrets: Mapping[str, str] | None = None,
        authorities: str = "",
    ) -> None:
        """Send other rules; ``agree`` waits until they hold."""
        order: EgressOrder = {"op": "rules", "rules": [rule.plain() for rule in rules], "limits": dict(limits or {}),
                              "secrets": dict(secrets or {}), "authorities": authorities}  # fmt: skip
        with self.lock:
            self._wanted, self._failed = self._ready + 1, ""
            self._send(order)

    def agree(self) -> None:
        """Wait until the rules of the last ``ask`` hold; SetupError where they can't."""
        with self.lock:
            self._await(lambda: self._ready >= self._wanted or bool(self._failed), _ANSWER_WAIT_S)
            if self._failed:
                raise SetupError("give the gateway its rules", self._failed)
            if self._ready < self._wanted:
                raise SetupError("give the gateway its rules", self.lost or "the gateway does not answer")

    def change(
        self,
        rules: Iterable[NetworkRule],
        limits: Mapping[str, float] | None = None,
        secrets: Mapping[str, str] | None = None,
        authorities: str = "",
    ) -> None:
        """Replace the rules, and wait until the new ones hold; SetupError where they can't."""
        self.ask(rules, limits, secrets, authorities)
        self.agree()

    def count(self, within_s: float = 0.0, *, visit_ends: bool = False) -> None:
        """Ask for the counts of this moment, and wait up to this long for ``counts``. ``visit_ends``: what was refused
        so far is told before that."""
        with self.lock:
            if not self._closed:
                self.counts = None if within_s else self.counts
                self._send({"op": "visit ends" if visit_ends else "count"})
                self._await(lambda: self.counts is not None, within_s)

    def receive(self) -> list[EgressEvent]:
        """Return the events that have come; it never waits."""
        with self.lock:
            self._read()
            events, self._events = self._events, []
            return events

    def close(self) -> list[EgressEvent]:
        """End the sandbox's connections and return the events that are left; ``totals`` is there if all went well."""
        with self.lock:
            if not self._closed:
                self._closed = True
                self._send({"op": "close"})
                self._await(lambda: self.totals is not None, _LAST_WORD_S)
                self._shut()
            events, self._events = self._events, []
            return events

    def _send(self, order: EgressOrder) -> None:
        message = memoryview(json.dumps(order).encode() + b"\n")
        give_up = time.monotonic() + _ANSWER_WAIT_S
        while message and not self.lost and self.totals is None:
            try:
                message = message[self.dialogue.send(message, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                if time.monotonic() > give_up:
                    self._lose("the gateway does not read what it is told")
                if not self._wait(to_send=True) and procfs.is_stopped(self.pid):
                    self._lose("somebody has stopped the gateway")
            except OSError as error:
                self._read()  # what it has said before is still there
                if self.totals is None:
                    self._lose(f"the gateway has ended ({error.strerror})")

    def _await(self, comes: object, within_s: float) -> None:
        """Wait for a word of the gateway, as long as nobody has stopped it; the machine may be busy."""
        assert callable(comes)
        give_up = time.monotonic() + within_s
        self._read()
        while not comes() and not self.lost and time.monotonic() < give_up:
            if not self._wait() and procfs.is_stopped(self.pid):
                self._lose("somebody has stopped the gateway")
            self._read()

    def _wait(self, *, to_send: bool = False) -> bool:
        import select

        poller = select.poll()
        poller.register(self.dialogue, select.POLLOUT if to_send else select.POLLIN)
        return bool(poller.poll(_LOOK_S * 1000))

    def _read(self) -> None:
        """Take what has come; a line that no gateway would send ends the trust in it."""
        while not self.lost and self.dialogue.fileno() >= 0:
            try:
                data = self.dialogue.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(f"the gateway has ended ({error.strerror})")
                return
            if not data:
                if self.totals is None:
                    self._lose("the gateway has ended")
                return
            self._data += data
            try:
                self._take_lines()
            except Garbled as error:
                self._lose(f"the gateway sent an invalid line: {error}")

    def _take_lines(self) -> None:
        *lines, rest = self._data.split(b"\n")
        self._data = bytearray(rest)
        if len(rest) > _MOST_LINE:
            raise Garbled("a line without an end")
        for line in lines:
            answer = checked(bytes(line))
            if "event" in answer:
                if len(self._events) >= _MOST_KEPT:
                    raise Garbled("too many events")
                self._events.append(answer["event"])
            self.ca = answer.get("ca", self.ca)
            self._failed = answer.get("failed", self._failed)
            self._ready += answer.get("ready", False)
            self.counts = answer.get("counts", self.counts)
            self.totals = answer.get("totals", self.totals)

    def _lose(self, reason: str) -> None:
        """The gateway is gone, or as good as gone: its end of the dialogue is useless now."""
        self.lost = reason
        try:
            self.dialogue.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _shut(self) -> None:
        self.dialogue.close()
        self.handed_over()

    def forget(self) -> None:
        """In a forked copy of the caller: the sandbox is not its own."""
        self.lock = allocate_lock()
        self._closed, self.lost = True, "it is of another process"
        self._shut()


class Registering:
    """A sandbox that is being registered: the gateway takes its rules while the caller goes on."""

    def __init__(
        self,
        rules: Iterable[NetworkRule],
        limits: Mapping[str, float] | None = None,
        secrets: Mapping[str, str] | None = None,
        authorities: str = "",
    ) -> None:
        self._order = (tuple(rules), limits, secrets, authorities)
        self._begun = self._begin()

    def _begin(self) -> Registration | None:
        registration = _registered_at_running()
        if registration is not None:
            registration.ask(*self._order)
        return registration

    def finish(self) -> Registration:
        """Return the registration; its rules hold then. A gateway that died or was stopped is replaced, once."""
        for last in (False, True):
            registration = self._begun if not last else self._begin()
            if registration is not None:
                try:
                    registration.agree()
                    return registration
                except BaseException as error:
                    registration._shut()
                    if last or not isinstance(error, SetupError) or not registration.lost:
                        raise
                _end(registration.pid)
        raise SetupError("reach the gateway", "it ends as soon as it is started")

    def abandon(self) -> None:
        """Let go of it before it was finished."""
        if self._begun is not None:
            self._begun._shut()


def register(
    rules: Iterable[NetworkRule],
    limits: Mapping[str, float] | None = None,
    secrets: Mapping[str, str] | None = None,
    authorities: str = "",
) -> Registration:
    """Register a sandbox; its rules hold when this returns."""
    return Registering(rules, limits, secrets, authorities).finish()


def _registered_at_running() -> Registration | None:
    with _lock:
        gateway = _running()
        try:
            return Registration(gateway)
        except OSError as error:
            if not is_of_a_call(error):
                raise
            _forget()
            return None


def _end(pid: int) -> None:
    """End a gateway that does not answer, so that the next registration starts another."""
    with _lock:
        if _current is not None and _current.pid == pid:
            if _current.usable():
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            _forget()


def pid() -> int:
    """Return the gateway's process; 0: there is none."""
    return 0 if _current is None else _current.pid


def start_early() -> None:
    """Start the gateway now, for a caller that will need one: it gets ready while other work goes on."""
    with _lock:
        _running()


def _running() -> GatewayClient:
    global _current
    if _current is None or not _current.usable():
        _forget()
        _current = GatewayClient.started()
    return _current


def shutdown() -> None:
    """End the gateway of this process once its last sandbox is closed; the next registration starts a new one."""
    global _current
    with _lock:
        ending, _current = _current, None
    if ending is not None:
        ending.close()


def _forget() -> None:
    global _current
    if _current is not None:
        os.close(_current.door)
    _current = None


def _after_fork_in_child() -> None:
    """A forked copy of the caller has no gateway: locks may be held by a thread that is not here."""
    global _lock
    _lock = allocate_lock()
    for registration in list(_registered):
        registration.forget()
    _forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
