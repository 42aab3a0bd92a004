"""Connections whose requests are looked at: TLS ends here, and begins anew to the real server.

The guest sees a certificate of its sandbox's own authority, the server is verified strictly. Both sides speak HTTP/1.1;
each request is read, judged and written anew (``http_head``, ``request_rules``), and bodies pass in bounded stretches.
A program that only knows ``http://`` is answered over the plain connection; its requests still reach the server by TLS.
The injected header is put into what goes to the server and nowhere else. What the server does with it is the server's
business: one that sends it back shows it to the guest.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import lru_cache
from socket import socket

import h11

from ringfence.egress.authority import Authority
from ringfence.egress.http_head import (
    BadRequest,
    BadResponse,
    RequestHead,
    RequestReader,
    UpstreamSide,
    for_wanted,
    response_of,
)
from ringfence.egress.links import Crowd, Gauge, Link, LinkError, LinkLimitReached, TlsLink
from ringfence.egress.request_rules import InspectedRule, admit
from ringfence.model.record import record

BAD_GATEWAY = 502
"""The status of what is not the guest's doing: the server can't be reached, or does not answer as it should."""
Connect = Callable[[], Awaitable[socket | str]]
"""Opens a connection to the server that was checked, without blocking; a text says why there is none."""


@record(eq=False)
class Terms:
    """What holds for one connection of a guest."""

    rule: InspectedRule
    asked_port: int
    """Which port the guest connected to; the server's is the rule's."""
    authority: Authority
    trust: ssl.SSLContext
    """Of ``verifying``."""
    connect: Connect
    out: Gauge
    back: Gauge
    """They count the bytes to and from the server, as they are on the wire."""
    touch: Callable[[], None]
    """Called when bytes move."""
    turn: asyncio.Lock
    """Of the sandbox: held while a certificate is made or a handshake computed, with a turn of the loop each."""
    settle: Callable[[str, str], None]
    """Called with the decision and the reason of its event, if a request is refused or something other than its two
    sides ends it; and before the guest is told, since its sandbox may end the next moment."""


@lru_cache(maxsize=64)
def verifying(more_authorities: str = "") -> ssl.SSLContext:
    """Return what verifies servers: the system's authorities, and those in this text of PEM beside them."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if more_authorities:
        context.load_verify_locations(cadata=more_authorities)
    return context


def load() -> None:
    """Load now what would be loaded later: a gateway that has given up its rights may not read it then."""
    Authority().context_for("localhost")
    verifying()


async def inspect(client: socket, first: bytes, terms: Terms, *, tls: bool) -> None:
    """Serve one connection to its end.

    ``first`` was read from the client before, ``tls`` says whether it is a ClientHello. Nothing is raised but what
    cancels the task. The client stays open for the caller to close.
    """
    with Crowd():
        await _inspect(client, first, terms, tls=tls)


async def _inspect(client: socket, first: bytes, terms: Terms, *, tls: bool) -> None:
    server = _Server(terms)
    try:
        if not tls:
            await _Session(Link(client, first, touch=terms.touch), server, terms).serve()
            return
        guest = TlsLink(client, first, touch=terms.touch)
        async with terms.turn:
            await asyncio.sleep(0)
            guest.start(terms.authority.context_for(terms.rule.name))
        try:
            await guest.handshake(terms.turn)
        except (ssl.SSLError, LinkError) as error:
            terms.settle("ended", _handshake_problem(terms.rule.name, error))
            return
        await _Session(guest, server, terms).serve()
    except LinkError:
        pass  # the guest is gone, which is its own business
    except LinkLimitReached as error:
        terms.settle("ended", error.args[0])
    finally:
        server.close()


def _handshake_problem(name: str, error: ssl.SSLError | LinkError) -> str:
    """Nearly always the cause is a program that has authorities of its own."""
    problem = error.reason if isinstance(error, ssl.SSLError) else error.args[0]
    return (
        f"the program does not accept the gateway's certificate for {name} ({problem or 'TLS was interrupted'}); "
        "have it read the bundle that SSL_CERT_FILE names in the sandbox"
    )


class _Server:
    """The connection to the real server: opened with the first request, and again where it was closed."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.link: TlsLink | None = None
        self.side = UpstreamSide()

    async def ready(self) -> TlsLink:
        """Return a connection that can take a request; raise BadRequest with what to tell the guest."""
        if self.link is not None and self.link.is_quiet() and self.side.next_cycle():
            return self.link
        self.close()
        rule = self.terms.rule
        opened = await self.terms.connect()
        if isinstance(opened, str):
            raise BadRequest(f"{rule.authority} can't be reached: {opened}", BAD_GATEWAY)
        self.link = TlsLink(opened, out=self.terms.out, back=self.terms.back, touch=self.terms.touch)
        self.side = UpstreamSide()
        try:
            self.link.start(self.terms.trust, server_name=rule.name)
            await self.link.handshake(self.terms.turn)
        except ssl.SSLCertVerificationError as error:
            problem = f"the certificate of {rule.authority} is not valid: {error.verify_message}"
            raise BadRequest(f"{problem}. Nothing was sent to it", BAD_GATEWAY) from None
        except (ssl.SSLError, LinkError) as error:
            problem = error.reason if isinstance(error, ssl.SSLError) else error.args[0]
            raise BadRequest(f"{rule.authority} does not speak TLS as it should: {problem}", BAD_GATEWAY) from None
        return self.link

    def close(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None


class _Session:
    """The requests of one connection, one after the other."""

    def __init__(self, guest: Link, server: _Server, terms: Terms) -> None:
        self.guest, self.server, self.terms = guest, server, terms
        self.reader = RequestReader()
        self.is_old = False
        """Whether the request is of HTTP/1.0, which has one response."""

    async def serve(self) -> None:
        try:
            while (head := await self._next_head()) is not None:
                await self._exchange(head)
                if not self.reader.goes_on:
                    break
        except BadRequest as error:
            await self._refuse(error.status, error.args[0])
        except (BadResponse, _ServerGone) as error:
            await self._refuse(BAD_GATEWAY, f"{self.terms.rule.authority}: {error.args[0]}")
        else:
            await self.guest.finish()

    async def _refuse(self, status: int, problem: str) -> None:
        """Tell the guest. A response that was begun is broken off without an end, so nobody takes it for complete."""
        self.terms.settle("ended" if status == BAD_GATEWAY else "refused", problem)
        told = self.reader.refuse(status, f"ringfence: {problem}")
        try:
            await self.guest.write(told)
            if told:
                await self.guest.finish()
        except LinkError:
            pass

    async def _next_head(self) -> RequestHead | None:
        while (event := self.reader.next_event()) is h11.NEED_DATA:
            self.reader.receive(await self.guest.read())
        return event if isinstance(event, RequestHead) else None

    async def _exchange(self, head: RequestHead) -> None:
        """One request and its response."""
        rule = self.terms.rule
        for_wanted(head, rule.name, self.terms.asked_port)
        admitted, headers = admit(head, rule)
        self.is_old = head.version == "1.0"
        link = await self.server.ready()
        await _to_server(link, self.server.side.request(admitted, rule.authority, headers))
        if head.has_body:
            await self._both_ways(link)
        else:
            await self._send_body(link)
            await self._pass_response(link)

    async def _both_ways(self, link: TlsLink) -> None:
        """A server may answer before it has the whole body: the rest goes nowhere, and the connection ends."""
        body, response = asyncio.create_task(self._send_body(link)), asyncio.create_task(self._pass_response(link))
        try:
            await asyncio.wait({body, response}, return_when=asyncio.FIRST_COMPLETED)
            if not response.done() and not isinstance(body.exception(), _ServerGone):
                body.result()
            await response  # a server that takes no more may have said why
        finally:
            for task in (body, response):
                task.cancel()
            await asyncio.gather(body, response, return_exceptions=True)

    async def _send_body(self, link: TlsLink) -> None:
        while True:
            event = self.reader.next_event()
            if event is h11.NEED_DATA:
                self.reader.receive(await self.guest.read())
            elif isinstance(event, (h11.Data, h11.EndOfMessage)):
                await _to_server(link, self.server.side.send(event))
                if isinstance(event, h11.EndOfMessage):
                    return

    async def _pass_response(self, link: TlsLink) -> None:
        side = self.server.side
        while True:
            event = side.next_event()
            if event is h11.NEED_DATA:
                side.receive(await _from_server(link))
            elif isinstance(event, (h11.Response, h11.InformationalResponse)):
                if isinstance(event, h11.Response) or not self.is_old:
                    await self.guest.write(self.reader.answer(response_of(event)))
            elif isinstance(event, h11.Data):
                await self.guest.write(self.reader.answer(event))
            elif isinstance(event, h11.EndOfMessage):
                await self.guest.write(self.reader.answer(h11.EndOfMessage()))
                return
            else:
                raise _ServerGone("the server closed the connection without a response")


class _ServerGone(Exception):
    """The connection to the server broke."""


async def _to_server(link: TlsLink, data: bytes) -> None:
    try:
        await link.write(data)
    except LinkError as error:
        raise _ServerGone(f"the connection to the server broke: {error.args[0]}") from None


async def _from_server(link: TlsLink) -> bytes | memoryview:
    try:
        return await link.read()
    except LinkError as error:
        raise _ServerGone(f"the connection to the server broke: {error.args[0]}") from None
