"""What ties a strict box to the gateway: its registration, what the gateway tells of it, and a visit that passes it on.

Loaded only for a policy with a network list. ``egress/`` decides what is let through; this module owns lifetimes.
"""

from __future__ import annotations

import math
import os
import time
from _collections_abc import Mapping
from _thread import RLock

from ringfence.backends.egress_processes import CallsSeen
from ringfence.backends.facts import Report
from ringfence.backends.groups import GroupVisit
from ringfence.egress import client
from ringfence.errors import UnavailableError
from ringfence.kernel.proc import procfs
from ringfence.model.network_rule import NetworkRule
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.leader_sources import LeaderSource
    from ringfence.kernel.cgroup.group import Cgroup
    from ringfence.monitor.source import Source
    from ringfence.transport.report import Note
    from ringfence.transport.request import EgressEvent, StandbyRequest, VisitRequest

_SETTLE_S, _LOOK_S = 0.2, 0.002
"""How long a visit waits for its connections to end; other visits to the box may have some open too."""
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)  # fmt: skip


class EgressLink:
    """One sandbox as its caller and the gateway know it. Several visits to one box may ask it at once."""

    def __init__(self, rules: tuple[NetworkRule, ...], limits: Mapping[str, float]) -> None:
        self.rules = rules
        self._limits = dict(limits)
        self._lock = RLock()
        self._events: list[Note] = []
        self._calls = CallsSeen(rules)
        self.heard_s = math.inf
        """Up to when the recorder has reported everything; inf: there is none, or nothing more to come."""
        self._bytes = 0
        self._missed = 0
        """Decisions that have no event, as far as an event of ours has said so."""
        self._inspects = any(rule.needs_inspection for rule in rules)
        self.problem = ""
        """Why it is over although nobody has closed it; empty: it is not."""
        self._is_told = False
        """Whether the visit that runs has an event that says so."""
        self._registering = client.Registering(rules, self._limits, secrets_of(rules), self._authorities())
        self._registered: client.Registration | None = None

    @property
    def _gateway(self) -> client.Registration:
        """The gateway's side; whoever needs it first waits until it has the rules."""
        if self._registered is None:
            self._registered = self._registering.finish()
        return self._registered

    def _authorities(self) -> str:
        """The authorities that the gateway trusts where it terminates TLS for programs."""
        return _bundle().decode("utf-8", "replace") if self._inspects else ""

    @property
    def listeners(self) -> int:
        """The descriptor through which the leader passes on the sandbox's sockets."""
        return self._gateway.listeners

    def certificates(self) -> bytes:
        """The authorities of the host, and that of this sandbox; empty: nothing is inspected."""
        return _bundle() + self._gateway.ca.encode() if self._inspects else b""

    def handed_over(self) -> None:
        """The leader has its copy: from now on only the leader can send sockets."""
        self._gateway.handed_over()

    # ---- what the gateway tells

    def filenos(self) -> tuple[int, ...]:
        """Readable when ``read`` has something to take; empty when it is over."""
        return () if self.problem else tuple(self._gateway.filenos())

    def read(self) -> None:
        """Take what was told; never waits."""
        with self._lock:
            self._keep(self._gateway.receive())
            if self._gateway.lost and not self.problem:
                self._lose(self._gateway.lost)

    def _keep(self, events: list[EgressEvent]) -> None:
        self._events += ({**event} for event in events)

    def _lose(self, reason: str) -> None:
        self.problem = f"{reason}: every connection of the job ended with it"
        self._tell(self.problem, missed=1)
        self._is_told = True

    def _tell_missed(self, uncounted: int) -> None:
        """``uncounted``: in all so far."""
        more, self._missed = uncounted - self._missed, max(uncounted, self._missed)
        if more > 0:
            self._tell(f"{more} more decisions of the gateway are not told one by one", missed=more)

    def _tell(self, reason: str, missed: int) -> None:
        """An event of our own, about no connection. ``missed``: at least this many decisions have no event."""
        self._events.append({"decision": "ended", "protocol": "", "name": "", "address": "", "port": 0, "rule": "",
                             "reason": reason, "missed": missed, "time_s": time.time()})  # fmt: skip

    def note(self, attempts: list[Note]) -> None:
        """Hear what the recorder saw: it knows which process asked."""
        with self._lock:
            self._calls.note(attempts)

    def take(self) -> list[Note]:
        """Return the events since the last time, each with the process that it is about."""
        with self._lock:
            taken, self._events = self._events, []
            return self._calls.named(taken, self.heard_s)

    def network_bytes(self) -> int:
        """Bytes sent and received, as last reported. Asks for newer figures, and never waits."""
        if self._lock.acquire(blocking=False):
            try:
                self.read()
                self._count(0.0)
            finally:
                self._lock.release()
        return self._bytes

    def settle(self) -> int:
        """After a visit has left the box: hear of the connections that ended with it. Return the bytes so far."""
        give_up = time.monotonic() + _SETTLE_S
        with self._lock:
            while self._count(_SETTLE_S, visit_ends=True) and time.monotonic() < give_up:
                self.read()  # each time there is room for as many events again
                time.sleep(_LOOK_S)
            self.read()
            self.heard_s = max(self.heard_s, time.time())
            return self._bytes

    def visit_ended(self) -> int:
        """The same for the visit's record: each visit that had no gateway says so."""
        with self._lock:
            moved = self.settle()
            if self.problem and not self._is_told:
                self._tell(self.problem, missed=1)
            self._is_told = False
            return moved

    def serves(self) -> bool:
        """Whether a job that begins now has a gateway."""
        self.read()
        return not self.problem and not procfs.is_stopped(self._gateway.pid)

    def hear(self, within_s: float) -> bool:
        """Before a commit: hear everything that was decided by now; return whether that was all. A gateway that is lost
        has been told of, and will not say more."""
        with self._lock:
            self._count(within_s, visit_ends=True)
            self.read()
            return not self.filenos() or self._gateway.counts is not None

    def _count(self, within_s: float, *, visit_ends: bool = False) -> int:
        """Return how many connections are open, as far as that is known."""
        if not self.filenos():
            return 0
        self._gateway.count(within_s, visit_ends=visit_ends)
        counts = self._gateway.counts
        if counts is None:
            return 0
        self._bytes = max(self._bytes, counts["bytes_in"] + counts["bytes_out"])
        self._tell_missed(counts["uncounted"])
        return counts["connections"]

    # ---- what the caller changes

    def change(self, rules: tuple[NetworkRule, ...], told: Mapping[str, object]) -> None:
        """Other rules from now on; ``told``: the event that says so."""
        with self._lock:
            self.read()
            if self.problem or not self._gateway.filenos():
                raise UnavailableError(self.problem or "the box is closed", missing=("network",))
            self._gateway.change(rules, self._limits, secrets_of(rules), self._authorities())
            self.rules = rules
            self._calls.change(rules)
            self._events.append(dict(told))

    # ---- of a visit

    def beside(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """What to wait for beside a visit's own descriptors; nothing once the visit has none."""
        return (*own, *self.filenos()) if own else ()

    def ended_with(self, report: Report | None) -> Report | None:
        """The report of a visit's end, with what the gateway says of it; None while it goes on."""
        if report is None:
            return None
        self.close()
        return replace(report, network_bytes=self.network_bytes(), network_problem=self.problem)

    # ---- the end

    def close(self) -> None:
        """No process is inside any more: end what is left, and take the last reports."""
        with self._lock:
            self.heard_s = math.inf
            if self._registered is None:
                self._registering.abandon()
                return
            if not self._gateway.filenos():
                return
            self._keep(self._gateway.close())
            totals = self._gateway.totals
            if totals is not None:
                self._bytes = max(self._bytes, totals["bytes_in"] + totals["bytes_out"])
                self._tell_missed(totals["uncounted"])
            elif not self.problem:
                self._lose(self._gateway.lost or "the gateway did not say how it ended")


class EgressVisit(GroupVisit):
    """A visit that tells what the gateway decided, beside what the recorder saw. Of a living box: its supervisor."""

    def __init__(
        self, link: EgressLink, request: VisitRequest | StandbyRequest, streams: tuple[int, ...],
        source: LeaderSource, cgroup: Cgroup | None,
    ) -> None:  # fmt: skip
        self.link = link
        link.heard_s = 0.0
        request["egress"], request["certificates"] = True, link.certificates()
        super().__init__(request, (*streams, link.listeners), source, cgroup)
        link.handed_over()

    def filenos(self) -> tuple[int, ...]:
        return self.link.beside(super().filenos())

    def receive(self) -> Report | None:
        self.link.read()
        return self.link.ended_with(super().receive())

    def take_notes(self) -> list[Note]:
        own = super().take_notes()
        self.link.note(own)
        return [*own, *self.link.take()]

    def hear(self, attempts: list[Note]) -> None:
        self.link.note(attempts)

    def waits(self, forgiven: str = "") -> bool:
        """Not without a gateway. While it is still being made, that is heard of later."""
        return (bool(forgiven) or self.link.serves()) and super().waits(forgiven)

    def network(self, *, settled: bool = False) -> tuple[int, str]:
        return self.link.visit_ended() if settled else self.link.network_bytes(), self.link.problem

    def hear_network(self, within_s: float) -> bool:
        self.link.settle()
        return self.link.hear(within_s)

    def end_network(self) -> None:
        self.link.close()

    def source(self) -> Source:
        return replace(super().source(), network=self.link.network_bytes)


def secrets_of(rules: tuple[NetworkRule, ...]) -> dict[str, str]:
    """What is injected, by the name of its variable; it goes to the gateway and nowhere else. UnavailableError if one
    of these variables is unset or empty."""
    names = dict.fromkeys(rule.inject.from_env for rule in rules if rule.inject is not None)
    missing = [name for name in names if not os.environ.get(name, "").strip()]
    if missing:
        raise UnavailableError(
            f"network: the rule injects {missing[0]}, but this variable is unset or empty", missing=("network",),
            hint=f"export {missing[0]} first, or remove inject from the rule",
        )  # fmt: skip
    return {name: os.environ[name] for name in names}


def _bundle() -> bytes:
    """The authorities that the caller's programs trust: what is not inspected is verified by them, as ever."""
    own = os.environ.get("SSL_CERT_FILE")
    for path in (own, *_BUNDLES) if own else _BUNDLES:
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:
            continue
        return content if content.endswith(b"\n") else content + b"\n"
    return b""
