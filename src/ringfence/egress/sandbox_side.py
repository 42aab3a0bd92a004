"""One sandbox as the gateway knows it: its rules, its listening sockets, its limits, its connections.

It accepts on sockets that were made in the sandbox's network namespace; each socket's address says what it is for.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ringfence.egress import dns, ending, upstream
from ringfence.egress.addresses import DNS_ADDRESS, DNS_PORT, AddressPlan, asked_address
from ringfence.egress.connection import Connection
from ringfence.egress.relay import ByteBudget, Meter, Rate, Turn, receive
from ringfence.egress.rules import RuleSet
from ringfence.egress.spare_sockets import SpareSockets
from ringfence.egress.told import Teller
from ringfence.egress.upstream import OF_EACH, is_own
from ringfence.errors import SandboxError
from ringfence.model.network_list import EVERY_IPV4, EVERY_IPV6
from ringfence.model.network_rule import NetworkRule
from ringfence.transport import passing

if TYPE_CHECKING:
    from ringfence.egress.answers import Protocol
    from ringfence.egress.gateway import Gateway
    from ringfence.egress.inspected import Inspection
    from ringfence.transport.request import EgressCounts, EgressEvent, EgressLimits, EgressOrder

_ACCEPTS, _DATAGRAMS = 64, 64
"""How many are taken in one turn, so that one sandbox does not hold up the others."""
_PAUSE_S = 0.05
_STREAM_BYTES = 1 << 16
_MOST_ORDER = 16 << 20
_MOST_SOCKETS = 1100
_MOST_KNOWING = 64
DEFAULTS: EgressLimits = {"connections": 1024, "connections_per_second": 0, "bytes": 0, "bytes_out": 0, "bytes_in": 0,
                          "idle_s": 600.0, "total_s": 0.0}  # fmt: skip
EVERYWHERE = (EVERY_IPV4, EVERY_IPV6)
_ABORT = struct.pack("ii", 1, 0)


def _limits(given: Mapping[str, float]) -> EgressLimits:
    """Return all limits; ValueError for an unknown one."""
    unknown = given.keys() - DEFAULTS.keys()
    if unknown or not all(value >= 0 for value in given.values()):
        raise ValueError(f"no limits of a network: {sorted(unknown) or given}")
    return cast("EgressLimits", {**DEFAULTS, **given})


class SandboxSide:
    """A registered sandbox, from its registration to the end of its dialogue."""

    def __init__(self, gateway: Gateway, listeners: int, dialogue: int) -> None:
        self.gateway, self.loop = gateway, gateway.loop
        self.inbox = listeners
        self.dialogue = socket.socket(fileno=dialogue)
        self.dialogue.setblocking(False)
        os.set_blocking(listeners, False)
        self.teller = Teller(self.dialogue)
        self.orders = bytearray()
        self.rules, self.plan = RuleSet.of(()), AddressPlan.of(())
        self.knowing: dict[tuple[str, ...], RuleSet] = {}
        """The rules, with the addresses that are the host's own at the moment."""
        self.inspection: Inspection | None = None
        self.limits = DEFAULTS
        self.rate, self.turn = Rate(0), Turn(_ACCEPTS)
        self.lookups = asyncio.Semaphore(OF_EACH)
        self.out, self.into, self.both = ByteBudget(0, ""), ByteBudget(0, ""), ByteBudget(0, "")
        self.of_rules: dict[str, tuple[ByteBudget, ByteBudget]] = {}
        self.budgets: dict[int, tuple[ByteBudget, ByteBudget]] = {}
        """The same by rules of the present list, each by its ``id``."""
        self.sockets: list[socket.socket] = []
        self.spares = SpareSockets()
        self.late: set[socket.socket] = set()
        """Those of the sockets that were made here, for entries that came to the list later."""
        self.live: dict[asyncio.Task[None], Connection] = {}
        self.accepted = self.refused = 0
        self.has_rules = self.has_changed = self.closing = False
        self.loop.add_reader(self.dialogue, self._heard)
        self.loop.add_reader(self.inbox, self._socket_comes)

    # ---- the dialogue with the caller

    def _heard(self) -> None:
        try:
            data = self.dialogue.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.orders += data
        if not data or len(self.orders) > _MOST_ORDER:
            self.end()
            return
        *lines, rest = self.orders.split(b"\n")
        self.orders = bytearray(rest)
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, order: EgressOrder) -> None:
        if order["op"] == "close":
            self.loop.create_task(ending.close(self))
            return
        if order["op"] == "visit ends":
            ending.of_visit(self)
        if order["op"] in ("count", "visit ends"):
            counts: EgressCounts = {"connections": len(self.live), "bytes_out": self.out.passed,
                                    "bytes_in": self.into.passed, "uncounted": self.teller.uncounted}  # fmt: skip
            self.teller.say({"counts": counts})
            return
        try:
            self._take_rules(order)
        except (SandboxError, ValueError) as error:
            self.teller.say({"failed": str(error)[:1000]})
            return
        except Exception as error:  # e.g. a library is missing: the waiting caller is told so
            self.teller.say({"failed": f"{type(error).__name__} in the gateway: {str(error)[:500]}"})
            return
        self.teller.say({"ready": True})

    def _take_rules(self, order: EgressOrder) -> None:
        """From now on these; connections that they no longer allow end."""
        rules = tuple(NetworkRule.of(rule) for rule in order["rules"])
        judged, limits = RuleSet.of(rules), _limits(order.get("limits", {}))
        plan = self.plan.changed(rules) if self.has_rules else AddressPlan.of(rules)
        self._take_inspection(rules, order)
        self.rules, self.plan, self.limits = judged, plan, limits  # nothing of it fails any more
        self.knowing.clear()
        self.budgets.clear()
        self.teller.names.clear()
        if self.has_rules:
            self.take_sockets()
            self.has_changed = True
            self._listen_by_plan()
        self.has_rules = True
        self.rate = Rate(self.limits["connections_per_second"])
        self.out.set_most(self.limits["bytes_out"], "the sandbox has sent as many bytes as its policy allows")
        self.into.set_most(self.limits["bytes_in"], "the sandbox has received as many bytes as its policy allows")
        self.both.set_most(self.limits["bytes"], "the sandbox has moved as many bytes as its policy allows")
        for task, connection in self.live.items():
            if connection.is_forbidden_now():
                task.cancel("the rule that allowed it was taken away")

    def _take_inspection(self, rules: tuple[NetworkRule, ...], order: EgressOrder) -> None:
        """The authority is made once: the sandbox has its certificate from the beginning."""
        inspected = tuple(rule for rule in rules if rule.needs_inspection)
        if inspected and self.inspection is None and not self.has_rules:
            from ringfence.egress.inspected import Inspection  # with all that it takes, only where a rule asks for it

            self.inspection = Inspection(inspected)
            self.teller.say({"ca": self.inspection.authority.pem()})
        if self.inspection is not None:
            self.inspection.change(inspected, order.get("secrets", {}), order.get("authorities", ""))

    def end(self) -> None:
        """At once: the caller is gone, or all has been said."""
        self.closing = True
        self.stop_listening()
        for task in self.live:
            task.cancel("the caller is gone")
        self.loop.remove_reader(self.dialogue)
        self.teller.close()
        self.inspection = None
        self.gateway.forget(self)

    # ---- sockets that were made in the sandbox

    def take_sockets(self) -> None:
        """Receive those that have been sent by now."""
        while self.inbox >= 0 and self._socket_comes():
            pass

    def _socket_comes(self) -> bool:
        """Receive one message with sockets; False: there is none yet."""
        try:
            kind, descriptors = passing.receive(self.inbox)
        except BlockingIOError:
            return False
        except OSError:
            kind, descriptors = b"", []
        for descriptor in descriptors:
            self._listen_on(socket.socket(fileno=descriptor))
        if kind != passing.SOCKETS or len(self.sockets) > _MOST_SOCKETS:
            self._close_inbox()
            if self.has_changed:
                self._listen_by_plan()
        return True

    def _listen_on(self, made: socket.socket) -> None:
        """Only what can be a listening TCP socket or the resolver's."""
        made.setblocking(False)
        address, port = made.getsockname()[:2]
        kind = made.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
        if kind == socket.SOCK_STREAM and not port:
            self.spares.add(made)
            return
        self.sockets.append(made)
        if kind == socket.SOCK_STREAM:
            self.loop.add_reader(made, self._accept, made)
        elif kind == socket.SOCK_DGRAM and (address, port) == (DNS_ADDRESS, DNS_PORT):
            self.loop.add_reader(made, self._ask, made)

    def _listen_by_plan(self) -> None:
        """Listen for what came to the list, and stop listening for what was taken off it. The sandbox's first sockets
        stay, unless they are in the way of a network's: a program that took the port meanwhile would keep them from
        coming back. While sockets still arrive, nobody can tell which are missing."""
        if self.inbox >= 0:
            return
        wanted = {(address, port): family for family, address, port, kind in self.plan.rows if kind == "tcp"}
        everywhere = {(family, port) for (address, port), family in wanted.items() if address in EVERYWHERE}
        for made in self.sockets[:]:
            place = made.getsockname()[:2]
            covered = made.type == socket.SOCK_STREAM and (made.family, place[1]) in everywhere
            if place not in wanted and (covered or made in self.late):
                self._stop(made)
        there = {made.getsockname()[:2] for made in self.sockets if made.type == socket.SOCK_STREAM}
        self.spares.disturbed = False
        for (address, port), family in wanted.items():
            if (address, port) not in there and not self.spares.disturbed:
                self._listen_late(family, address, port)

    def _listen_late(self, family: int, address: str, port: int) -> None:
        try:
            made = self.spares.listening(family, address, port)
        except OSError as error:
            host = self.plan.target(address, port).host
            problem = error.strerror or "a program of it is in the way"
            reason = f"nothing can listen for {host}:{port} in the sandbox ({problem}); use the proxy there"
            self.tell_refused("tcp", host, address, port, reason)
            return
        self.late.add(made)
        self._listen_on(made)

    def _stop(self, made: socket.socket) -> None:
        self.loop.remove_reader(made)
        self.sockets.remove(made)
        self.late.discard(made)
        made.close()

    def stop_listening(self) -> None:
        self._close_inbox()
        for made in self.sockets[:]:
            self._stop(made)
        self.spares.close()

    def _close_inbox(self) -> None:
        if self.inbox >= 0:
            self.loop.remove_reader(self.inbox)
            os.close(self.inbox)
            self.inbox = -1

    def _ask(self, made: socket.socket) -> None:
        for _ in range(_DATAGRAMS):
            if not self.answer_one(made):
                return

    def answer_one(self, made: socket.socket) -> bool:
        """Answer one datagram; False: there is none."""
        try:
            query, asker = made.recvfrom(4096)
            answer = self.answer(query)
            if answer is not None:
                made.sendto(answer, asker)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the asker's socket is closed, or full
        return True

    def answer(self, query: bytes) -> bytes | None:
        """Answer a query; a refused name is reported the first time."""
        answer = dns.ask(query, self.plan, self.rules)
        if answer.reason and self.teller.is_new(answer.name):
            self.tell_refused("dns", answer.name, "", DNS_PORT, answer.reason)
        return answer.reply

    async def answer_stream(self, connection: Connection) -> None:
        """Answer queries over TCP, until the client ends or says what is no query."""
        waiting = b""
        while data := await receive(self.loop, connection.client, _STREAM_BYTES):
            connection.touch()
            try:
                queries, waiting = dns.split_stream(waiting + data)
            except ValueError:
                return
            for query in queries:
                reply = self.answer(query)
                if reply is None:
                    return
                await self.loop.sock_sendall(connection.client, dns.framed(reply))
                await asyncio.sleep(0)  # others have their turn too

    # ---- connections

    def _accept(self, made: socket.socket) -> None:
        while self.turn.allows():
            try:
                client = made.accept()[0]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                self._pause(made)
                return
            self.begin(client)

    def _pause(self, made: socket.socket) -> None:
        """No descriptor or no memory is left: leave them waiting for a moment, and others in peace."""
        self.loop.remove_reader(made)

        def go_on() -> None:
            if made.fileno() >= 0:
                self.loop.add_reader(made, self._accept, made)

        self.loop.call_later(_PAUSE_S, go_on)

    def begin(self, client: socket.socket) -> None:
        reason = self._too_many()
        if reason:
            address, port = asked_address(client)
            self.tell_refused("tcp", self.plan.target(address, port).host, address, port, reason)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            client.close()
            return
        client.setblocking(False)
        buffer_bytes = upstream.buffer_bytes(len(self.live), self.gateway.connections)
        upstream.narrow(client, buffer_bytes)
        self.accepted += 1
        self.gateway.connections += 1
        connection = Connection(self, client, buffer_bytes)
        upstream.begin_at_once(connection)
        task = self.loop.create_task(connection.serve())
        self.live[task] = connection
        task.add_done_callback(self._ended)

    def _too_many(self) -> str:
        if len(self.live) >= self.limits["connections"]:
            return f"the sandbox has {len(self.live)} connections, as many as its policy allows at once"
        if not self.rate.allows():
            return f"more than {self.limits['connections_per_second']:g} connections in a second"
        if len(self.live) >= self.gateway.share():
            return "the gateway has no more connections for this sandbox; raise the hard limit of open files"
        return ""

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.gateway.connections -= 1
        self.live.pop(task).end()
        if not task.cancelled():
            task.exception()

    def meters(self, rule: NetworkRule) -> tuple[Meter, Meter]:
        """What counts the bytes of a connection under a rule, outward and back."""
        budgets = self.budgets.get(id(rule)) or self._budgets(rule)
        return Meter(self.out, self.both, budgets[0]), Meter(self.into, self.both, budgets[1])

    def _budgets(self, rule: NetworkRule) -> tuple[ByteBudget, ByteBudget]:
        """Those of the rule, also where it was in an earlier list."""
        budgets = self.of_rules.setdefault(str(rule), (ByteBudget(0, ""), ByteBudget(0, "")))
        for budget, most, way in zip(budgets, (rule.max_bytes_out, rule.max_bytes_in), ("out", "in"), strict=True):
            budget.set_most(most or 0, f"max_bytes_{way} of {rule} is reached")
        self.budgets[id(rule)] = budgets
        return budgets

    def rules_knowing(self, addresses: list[str]) -> RuleSet:
        """Return the rules, told which of these addresses are this host's own at this moment."""
        # That a loopback address is the host's own changes nothing: it is judged as a loopback address.
        asked = (address for address in addresses if address != "::1" and not address.startswith("127."))
        own = tuple(address for address in asked if is_own(address))
        if not own:
            return self.rules
        if own not in self.knowing:
            if len(self.knowing) >= _MOST_KNOWING:
                self.knowing.clear()
            self.knowing[own] = RuleSet.of(self.rules.rules, own)
        return self.knowing[own]

    # ---- events

    def tell_refused(self, protocol: Protocol, name: str, address: str, port: int, reason: str) -> None:
        self.tell({
            "decision": "refused", "protocol": protocol, "name": name, "address": address, "port": port, "rule": "",
            "reason": reason, "bytes_out": 0, "bytes_in": 0, "duration_ms": 0, "process": "", "time_s": time.time(),
        })  # fmt: skip

    def tell(self, event: EgressEvent) -> None:
        if event["decision"] == "refused":
            self.refused += 1
        self.teller.event(event)
