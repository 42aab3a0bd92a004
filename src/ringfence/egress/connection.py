"""One connection of a sandbox, from accept to close: where it goes, whether it is allowed, and what passes through it.

No byte goes to a server before the connection is allowed. The name has to match what the client says in the clear: the
server name of TLS, the Host of every HTTP request. Each refusal is a text in the client's own protocol.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from ringfence.egress import ending, plain_http, proxy_entry, relay, upstream
from ringfence.egress.addresses import TargetKind, asked_address
from ringfence.egress.client_hello import Hello
from ringfence.egress.host_port import HostPort
from ringfence.egress.relay import LimitReached, Meter, Pump
from ringfence.egress.sniffing import MOST_BYTES, Spoken, Words, begins_line, other_server, spoken, spoken_in_all
from ringfence.egress.told import MOST_TEXT
from ringfence.egress.upstream import CLOSED, Refused, Unreachable

if TYPE_CHECKING:
    from ringfence.egress.answers import Protocol
    from ringfence.egress.sandbox_side import SandboxSide
    from ringfence.model.network_rule import NetworkRule

SPEAK_S = 30.0
"""How long a client may take to show its protocol, where the client speaks first."""
PAUSE_S = 0.5
"""A client that is silent for this long in the middle of its first line waits for an answer."""
_HTTP, _HTTPS = 80, 443
_CLIENT_FIRST = (_HTTP, _HTTPS)
"""On these ports of a name only HTTP and TLS are spoken, and the client speaks first."""


class Connection:
    """What is known of a connection so far; it is reported once, at its end."""

    def __init__(self, side: SandboxSide, client: socket.socket, buffer_bytes: int = 0) -> None:
        self.side, self.client, self.buffer_bytes = side, client, buffer_bytes
        self.loop, self.pipes = side.loop, side.gateway.pipes
        self.server: socket.socket | None = None
        self.begun: socket.socket | OSError | None = None
        """What ``upstream.begin_at_once`` got: a connection to the server that is under way, or why there is none."""
        self.up: Pump | None = None
        self.down: Pump | None = None
        """From the client to the server and back, where that has begun."""
        self.is_over = False
        self.speaks: Protocol = "tcp"
        self.protocol: Protocol | None = None
        """As in an event; None: what it speaks."""
        self.name = ""
        self.address, self.port = asked_address(client)
        self.target = side.plan.target(self.address, self.port)
        self.rule: NetworkRule | None = None
        self.only_plain = False
        """Port 80 was asked for; only port 443 is listed, and plain HTTP goes on to it as TLS."""
        self.out, self.into = Meter(), Meter()
        self.began = self.touched = self.loop.time()
        self.decision, self.reason = "ended", ""
        """As in its event; without a reason: nothing is decided yet."""
        self.is_blind = self.is_connecting = self.is_told = False
        """Bytes are passed on without a look; it waits for the server; its event was sent."""
        self.said = b""
        """Read before the server was connected to, and not judged yet."""
        self.decided_s = 0.0
        self.task: asyncio.Task[None] | None = None

    # ---- from beginning to end

    async def serve(self) -> None:
        """Serve it to its end. It never raises: what goes wrong with one connection is an event."""
        self.task = asyncio.current_task()
        timers = self._timers()
        try:
            self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._enter()
        except (Refused, Unreachable) as problem:
            self.settle(problem.decision, str(problem))
            await ending.say(self, problem.status, self.reason)
        except LimitReached as limit:
            self.settle("ended", str(limit))
        except (ConnectionError, TimeoutError) as error:
            self.reason = self.reason or error.strerror or ""  # one side is gone, which is no business of ours
        except asyncio.CancelledError as cancelled:
            self._cut_off(str(cancelled.args[0]) if cancelled.args else "the gateway ends")
        except Exception as error:
            self.settle("ended", f"the gateway failed: {type(error).__name__}")
        finally:
            for timer in timers:
                timer.cancel()
            self.end()

    def settle(self, decision: str, reason: str) -> None:
        """Settle how it ends before the client is told: its sandbox may end the next moment, and with it this task.
        A refusal stays one."""
        if self.decision != "refused":
            self.decision, self.reason = decision, reason

    def _cut_off(self, reason: str) -> None:
        if self.decision == "allowed" and self.side.closing:
            self.reason = reason
        elif self.decision == "allowed" or not self.reason:
            self.settle("ended", reason)

    async def _enter(self) -> None:
        kind, host, port, first = self.target.kind, self.target.host, self.port, b""
        if self.up is not None:
            await self.pass_on(b"")
            return
        if kind == TargetKind.DNS:
            await self.side.answer_stream(self)
            return
        if kind == TargetKind.PROXY:
            await proxy_entry.serve(self)
            return
        if kind == TargetKind.SHARED:
            self.name = host
            host, first = await self._name_of_wildcard()
        target = HostPort(host=host, is_address=kind not in (TargetKind.NAME, TargetKind.SHARED))
        await self.carry(await self.connect(target, port), target, port, first)

    def _timers(self) -> list[asyncio.TimerHandle]:
        idle, total = self.side.limits["idle_s"], self.side.limits["total_s"]
        timers = [self.loop.call_later(total, self._cancel, f"it took {total:g} s, as long as a connection may")] if (
            total > 0) else []  # fmt: skip

        def look() -> None:
            left = self.touched + idle - self.loop.time()
            if left <= 0:
                self._cancel(f"no byte passed for {idle:g} s")
            else:
                timers[-1] = self.loop.call_later(left, look)

        if idle > 0:
            timers.append(self.loop.call_later(idle, look))
        return timers

    def _cancel(self, reason: str) -> None:
        if self.task is not None:
            self.task.cancel(reason)

    def touch(self) -> None:
        """A byte has passed."""
        self.touched = self.loop.time()

    def is_forbidden_now(self) -> bool:
        """Whether newer rules forbid it, lead elsewhere, or ask for checks that it did not go through."""
        if self.rule is None:
            return False
        rules = self.side.rules_knowing([self.address]) if self.address else self.side.rules
        decision = rules.decide(self.name or self.address, _HTTPS if self.only_plain else self.port)
        if not decision.allowed or decision.rule is None or rules.rules[decision.rule].demands != self.rule.demands:
            return True
        reached = bool(self.name and self.address)
        return reached and not rules.check_resolved(self.name, self.port, [self.address]).addresses

    # ---- deciding

    def decide(self, target: HostPort, port: int) -> NetworkRule:
        """Return the rule that allows it; raise Refused with what to add to the policy."""
        rules = self.side.rules_knowing([target.host]) if target.is_address else self.side.rules
        decision = rules.decide(target.host, port)
        self.decided_s = time.time()
        if not decision.allowed or decision.rule is None:
            raise Refused(decision.reason)
        self.rule = rules.rules[decision.rule]
        self.out, self.into = self.side.meters(self.rule)
        return self.rule

    async def connect(self, target: HostPort, port: int) -> socket.socket | None:
        """Connect to a target that is allowed; a name is resolved now, once. None: the rule asks for inspection, which
        connects when there is a request."""
        self.port = port
        self.name, self.address = ("", target.host) if target.is_address else (target.host, "")
        try:
            rule = self.decide(target, self._upgraded(target, port))
            if rule.needs_inspection:
                return None
            return await self.open(target, port)
        except (Refused, Unreachable) as problem:
            self.settle(problem.decision, str(problem))
            await ending.learn_to_speak(self)
            raise

    def _upgraded(self, target: HostPort, port: int) -> int:
        """Return the port that it is judged by: that of TLS where plain HTTP is not listed and goes on as TLS."""
        if port != _HTTP or target.is_address or self.side.rules.decide(target.host, port).allowed:
            return port
        by_tls = self.side.rules.decide(target.host, _HTTPS)
        if not by_tls.allowed or by_tls.rule is None or not self.side.rules.rules[by_tls.rule].upgrades:
            return port
        self.only_plain = True
        return _HTTPS

    async def open(self, target: HostPort, port: int) -> socket.socket:
        """Connect to the first of its addresses that may be reached and answers."""
        if self.side.closing:
            raise Unreachable(CLOSED)
        self.is_connecting = True
        if target.is_address:
            addresses = [upstream.literal(target.host, port)]
        else:
            found = await self.side.gateway.resolver.addresses(target.host, port, self.side.lookups)
            texts = [text for _, text, _ in found]
            usable = self.side.rules_knowing(texts).check_resolved(target.host, port, texts)
            if not usable.addresses:
                raise Refused(usable.reason)
            addresses = [address for address in found if address[1] in usable.addresses]
        begun, self.begun = self.begun, None
        self.server, address = await upstream.connect(addresses, self.buffer_bytes, begun)
        self.is_connecting = False
        self.reached(address)
        return self.server

    def reached(self, address: str) -> None:
        """The server has answered: from now on it was allowed, unless what the client says is not."""
        self.address = address
        self.settle("allowed", "")
        self.touch()

    async def carry(self, server: socket.socket | None, target: HostPort, port: int, first: bytes) -> None:
        """Carry what the client says to its target, as the rule wants it."""
        if server is None:
            await self._inspect(target, port, first)
        elif target.is_address:
            await self.pass_on(first)  # it is listed as an address: nothing in it is looked at
        else:
            await self._held_to_name(server, target.host, port, first)

    # ---- holding a name to what the client says

    async def _held_to_name(self, server: socket.socket, name: str, port: int, first: bytes) -> None:
        """Pass bytes to the connected server once the client's own protocol names that server too."""
        client_first = port in _CLIENT_FIRST
        if not first and not client_first and await relay.first_readable(self.loop, self.client, server) is server:
            self.begin_down(server)
            words = await self._words(first, None, may_pause=True)
        else:
            words = await self._words(first, SPEAK_S, may_pause=not client_first)
        if words.kind is Spoken.TLS:
            self.speaks = "tls"
            _check_hello(words, name, unnamed=self.rule is not None and self.rule.sni == "optional")
        elif words.kind is Spoken.HTTP:
            self.speaks = "http"
            await plain_http.carry(self, server, words.data, name, port)
            return
        elif words.kind is Spoken.LINE:
            await plain_http.pass_line(self, server, words.data)
            return
        elif words.kind is Spoken.PROXIED:
            raise Refused(
                f"the client of {name} begins with the PROXY protocol, which hides the host that it asks for;"
                " switch that off in the client, or list the address"
            )
        elif client_first and words.data:
            raise Refused(
                f"{name}:{port} is listed by name, and the client speaks neither TLS nor HTTP there;"
                " list the address, or a port other than 80 and 443"
            )
        await self.pass_on(words.data)

    async def _words(self, data: bytes, within_s: float | None, *, may_pause: bool = False) -> Words:
        """Read until the client's protocol is known, or it ends. ``may_pause``: also until it pauses in a line."""
        kind, hello = spoken(data)
        while kind is Spoken.UNKNOWN:
            pauses = may_pause and begins_line(data)
            try:
                async with asyncio.timeout(PAUSE_S if pauses else SPEAK_S if data else within_s):
                    more = await relay.receive(self.loop, self.client, MOST_BYTES)
            except TimeoutError:
                if pauses:
                    return Words(data=data, kind=Spoken.LINE)
                raise Refused(f"the client sent no complete request to {self.name} within {SPEAK_S:g} s") from None
            if not more:
                kind, hello = spoken_in_all(data)
                break
            self.touch()
            data += more
            kind, hello = spoken(data)
        return Words(data=data, kind=kind, hello=hello)

    async def _name_of_wildcard(self) -> tuple[str, bytes]:
        """Many names share a wildcard's last address: return the one that the client means, and what it has said."""
        words = await self._words(b"", SPEAK_S)
        self.speaks = words.kind.protocol
        if isinstance(words.hello, Hello) and words.hello.name is not None:
            return words.hello.name, words.data
        if words.kind is Spoken.HTTP:
            requests = plain_http.Requests(self, words.data)
            head = await requests.next_head()
            if head is not None:
                return head.host.host, requests.received
        raise Refused(f"many names of {self.name} are in use, and the client does not say which; list the name itself")

    async def _inspect(self, target: HostPort, port: int, first: bytes) -> None:
        """TLS ends here; each request is judged and goes to the verified server (``inspection``)."""
        assert self.rule is not None
        words = await self._words(first, SPEAK_S)
        self.speaks = words.kind.protocol
        if not words.data:
            return
        if words.kind not in (Spoken.TLS, Spoken.HTTP):
            raise Refused(f"{target} is inspected, and the client speaks neither TLS nor HTTP")
        if self.only_plain and words.kind is Spoken.TLS:
            raise Refused(f"port {_HTTP} of {target} is not listed for TLS; use port {_HTTPS}")
        if words.kind is Spoken.TLS and not (target.is_address and isinstance(words.hello, Hello)):
            _check_hello(words, target.host)
        if self.side.inspection is None:
            raise Refused(f"{target} is inspected, but this sandbox has no inspection; open a new one with these rules")
        await self.side.inspection.carry(self, self.rule, target, words)

    # ---- passing bytes

    def begin_down(self, server: socket.socket) -> None:
        """Pass what the server says to the client from now on."""
        if self.down is None:
            self.down = self._pump(server, self.client, self.into)
            self.down.finished.add_done_callback(self._server_is_gone)

    def begin_both(self, server: socket.socket) -> list[Pump]:
        """Pass both directions from now on, without looking at anything."""
        self.up = self.up or self._pump(self.client, server, self.out)
        self.begin_down(server)
        assert self.down is not None
        return [self.up, self.down]

    def _server_is_gone(self, finished: asyncio.Future[None]) -> None:
        if not finished.cancelled() and finished.exception() is not None and self.client.fileno() >= 0:
            try:
                self.client.shutdown(socket.SHUT_RDWR)  # so that nobody waits for the client any more
            except OSError:
                pass

    def _pump(self, source: socket.socket, sink: socket.socket, meter: Meter) -> Pump:
        return Pump(self.pipes, self.side.gateway.edges, source, sink, meter, self.touch)

    async def send_up(self, data: bytes) -> None:
        """Send bytes that were read here to the server, counted."""
        assert self.server is not None
        if len(data) > self.out.room():
            raise LimitReached(self.out.reason() or "the next bytes are more than may still be sent")
        self.out.add(len(data))
        await self.loop.sock_sendall(self.server, data)
        self.touch()

    async def pass_on(self, first: bytes) -> None:
        """Pass both directions until both have ended; nothing is looked at any more."""
        assert self.server is not None
        self.is_blind = True
        if first:
            await self.send_up(first)
        await relay.run(self.begin_both(self.server))

    # ---- the end

    def end(self) -> None:
        """Close it and report it, once."""
        if self.is_over:
            return
        self.is_over = True
        if self.task is None and not self.side.closing:
            self.settle("ended", "it was ended before it began")
        elif self.decision == "ended" and not self.reason:
            self.reason = "nothing was asked for"
        try:
            for pump in (self.up, self.down):
                if pump is not None:
                    pump.give_up()
        finally:  # whatever becomes of them: no socket stays open, and none is without its event
            for link in (self.client, self.server, self.begun):
                if isinstance(link, socket.socket):
                    link.close()
            self.tell()

    def tell(self) -> None:
        """Report it, once."""
        if self.is_told or self.target.kind == TargetKind.DNS:
            return  # of DNS each refused name has been reported
        self.is_told = True
        self.side.tell({
            "decision": self.decision, "protocol": self.protocol or self.speaks, "name": self.name[:MOST_TEXT],
            "address": self.address, "port": self.port, "rule": str(self.rule or ""), "reason": self.reason[:MOST_TEXT],
            "bytes_out": self.out.bytes, "bytes_in": self.into.bytes,
            "duration_ms": round((self.loop.time() - self.began) * 1000), "process": "",
            "time_s": self.decided_s or time.time(),
        })  # fmt: skip


def _check_hello(words: Words, name: str, *, unnamed: bool = False) -> None:
    problem = other_server(words.hello, name, unnamed=unnamed)
    if problem:
        raise Refused(problem)
